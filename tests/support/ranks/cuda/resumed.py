"""Runs a long list of cases by `device_ranks` to its end, whatever some of them do: hang, crash, or lose the device."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.ranks.cuda.fresh import run_ranks

Case = Sequence[Any]
PROGRAM = "cuda.device_ranks"
SILENCE_SECONDS = 240.0  # that a case, or the start, may take
# For one list; when so many have ended early, or some one after the other at their first case, those left are not run.
JOBS, FRUITLESS = 8, 2
SAY_SECONDS = 10.0
LAST_LINES = 8  # of what the ranks said


class Progress:
    """What the ranks of one job have written so far. It is asked whether anything still comes."""

    def __init__(self, out: Path, ranks: int, total: int) -> None:
        self.files = [Path(f"{out}.{rank}") for rank in range(ranks)]
        self.total = total
        self.lines, self.changed, self.spoken = -1, time.monotonic(), time.monotonic()

    def alive(self) -> bool:
        now, lines = time.monotonic(), sum(file.read_bytes().count(b"\n") for file in self.files if file.exists())
        if lines != self.lines:
            self.lines, self.changed = lines, now
        if now - self.spoken > SAY_SECONDS:
            self.spoken = now
            print(f"{lines // len(self.files)} of {self.total} cases on {len(self.files)} ranks", flush=True)
        return now - self.changed < SILENCE_SECONDS

    def told(self) -> dict[str, list[dict[str, Any]]]:
        """By case, what each rank that ended it has told."""
        found: dict[str, list[dict[str, Any]]] = {}
        for file in self.files:
            for line in file.read_text().splitlines() if file.exists() else ():
                told = json.loads(line)
                found.setdefault(json.dumps(told.pop("case")), []).append(told)
        return found


def told_by_ranks(device: str, ranks: int, cases: Sequence[Case], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By case, as JSON, what each rank has told of it."""
    found: dict[str, list[dict[str, Any]]] = {}
    left, fruitless = [json.dumps(case) for case in cases], 0
    for job in range(JOBS):
        if not left or fruitless == FRUITLESS:
            break
        own = folder / f"{ranks}-ranks-{job}"
        own.mkdir(parents=True, exist_ok=True)
        (own / "cases.json").write_text(f"[{','.join(left)}]")
        progress = Progress(own / "told", ranks, len(left))
        arguments = [device, str(own / "cases.json"), str(own / "told")]
        codes, said = run_ranks(own, ranks, PROGRAM, arguments, progress.alive)
        told = progress.told()
        ended = [case for case in left if len(told.get(case, ())) == ranks or failed(told.get(case, ()))]
        found |= {case: told[case] for case in ended}
        left = [case for case in left if case not in found]
        fruitless = 0 if ended else fruitless + 1
        if left and not (ended and failed(told[ended[-1]])):
            found[left.pop(0)] = [{"failed": why(codes, said)}]
    return found | {case: [{"failed": "Not run, as the ranks were lost again and again."}] for case in left}


def failed(told: Sequence[dict[str, Any]]) -> bool:
    return any("failed" in each for each in told)


def why(codes: Sequence[int | None], said: str) -> str:
    """Of a case in which the ranks were lost."""
    ends = ", ".join("ended by its starter" if code is None else f"exit code {code}" for code in codes)
    last = "\n".join(said.strip().splitlines()[-LAST_LINES:])
    silent = f"nothing came for {SILENCE_SECONDS:.0f} s" if not any(codes) else "a rank ended"
    return f"The ranks were lost in this case: {silent} ({ends}).\n{last}"
