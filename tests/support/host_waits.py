"""`python -m tests.support.host_waits COMFYUI [ROW ...]`: how often hosts wait for their devices in a forward, on its
whole way from ComfyUI's process to the ranks and back, on labelled tensors. "ROW × 2" makes two calls.

Prints a line for each row of the equality table under each plan of two ranks: of ComfyUI's process, of the rank that
waits the most between its blocks, and within them; then where ranks waited.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from demo.host import REPOSITORY

JOB = 40  # rows


def main(comfyui: str, *rows: str) -> None:
    os.environ["COMFYUI_PATH"] = comfyui
    os.chdir(REPOSITORY)
    from tests.support.cases.host import CASES
    from tests.support.cases.library_plans import plans
    from tests.support.ranks.pool import RankPool

    wanted = [(row, plan) for row in rows or CASES for plan in plans("comfyui", row.partition(" × ")[0])]
    cases = [["comfyui", row, plan, "fp32"] for row, plan in wanted]
    with tempfile.TemporaryDirectory() as name, RankPool(Path(name)) as pool:
        for start in range(0, len(cases), JOB):
            folder = Path(name) / f"{start}"
            folder.mkdir()
            told = pool.run(2, "cuda.labelled_ranks", cases[start : start + JOB], str(folder), cases=JOB)
            for case in told[0]:
                print_line(case, [each[case] for each in told])


def print_line(case: str, ranks: list[dict[str, Any]]) -> None:
    _, row, plan, _ = json.loads(case)
    failed = next((each["failed"] for each in ranks if "failed" in each), "")
    if failed:
        print(f"{row} {plan}: failed: {failed.splitlines()[-1]}")
        return
    comfyui = sum(ranks[0]["comfyui"].values())
    outside, inside = (max(sum(each[kind].values()) for each in ranks) for kind in ("outside", "inside"))
    where = sum((Counter(each["outside"]) | Counter(each["inside"]) for each in ranks[:1]), Counter())
    places = "; ".join(f"{count} × {place}" for place, count in where.items())
    print(f"{row} {plan}: ComfyUI {comfyui}, rank {outside}, in blocks {inside}: {places}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
