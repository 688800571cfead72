"""What each test file took in the last whole run: kept in tests/durations.json, shown by `dev.py test --slowest`. The
longest runs first."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).resolve().parents[2]
KEPT = TESTS / "durations.json"
TIERS = ("gate", "slow")
SHOWN = 25
UNKNOWN_S = 15.0  # of a file that no run has been kept of


@dataclass
class Duration:
    """Of one file, in seconds. setup: what its fixtures took, their ends included. run: its tests' own bodies."""

    tests: int = 0
    setup: float = 0.0
    run: float = 0.0

    @property
    def seconds(self) -> float:
        return self.setup + self.run


Durations = Mapping[str, Duration]  # by the file's path in tests/


def read(tier: str) -> dict[str, Duration]:
    """What was kept of a tier's last runs. tier: gate, or slow for the tests that are marked slow."""
    found = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    return {path: Duration(**entry) for path, entry in found.get(tier, {}).items()}


def write(tier: str, durations: Durations) -> None:
    """Replaces the entries of these files, and drops those of files that are gone. A file is a line of the JSON."""
    tiers = {name: dict(read(name)) for name in TIERS}
    tiers[tier] |= durations
    blocks = []
    for name, entries in tiers.items():
        lines = [
            f"    {json.dumps(path)}: {json.dumps(asdict(entries[path]))}"
            for path in sorted(entries)
            if (TESTS / path).is_file()
        ]
        blocks.append(f'  "{name}": {{' + ",".join(f"\n{line}" for line in lines) + "\n  }")
    KEPT.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


class Recorder:
    """A pytest plugin that keeps the durations of a run's files, the slow tests' apart from the others'.

    A file's tests of a tier keep their older entry if one of them fails.
    """

    def __init__(self) -> None:
        self._durations: dict[str, defaultdict[str, Duration]] = {tier: defaultdict(Duration) for tier in TIERS}
        self._failed: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = "slow" if "slow" in report.keywords else "gate"
        path = report.nodeid.partition("::")[0]
        duration = self._durations[tier][path]
        if report.failed:
            self._failed.add((tier, path))
        if report.when == "call":
            duration.tests += 1
            duration.run += report.duration
        else:
            duration.setup += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # it was stopped, maybe in the middle of a file
        for tier, durations in self._durations.items():
            finished = {
                path: Duration(found.tests, round(found.setup, 1), round(found.run, 1))
                for path, found in durations.items()
                if found.tests and (tier, path) not in self._failed
            }
            write(tier, finished)


class LongestFirst(LoadFileScheduling):
    """Shares out whole files: a process runs next the longest that waits, so that none begins when the others are done.

    seconds: what each took in former runs.
    """

    def __init__(self, config: Any, log: Any, seconds: Mapping[str, float]) -> None:
        super().__init__(config, log)
        self._seconds = seconds

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = max(self.workqueue, key=lambda file: self._seconds.get(file, UNKNOWN_S))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def table(tier: str, durations: Durations) -> str:
    """The files that take longest, and the sums of all."""
    if not durations:
        return f"{tier}: no run has been kept."
    slowest = sorted(durations.items(), key=lambda item: -item[1].seconds)[:SHOWN]
    total = Duration(*map(sum, zip(*map(astuple, durations.values()), strict=True)))
    rows = [*slowest, (f"all {len(durations)} files", total)]
    lines = [f"{tier:<50}{'seconds':>9}{'set-up':>9}{'tests':>8}"]
    lines += [f"{name:<50}{found.seconds:>9.1f}{found.setup:>9.1f}{found.tests:>8}" for name, found in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(table(tier, read(tier)) for tier in TIERS))
