"""`COMFYUI_PATH=… python -m tests.benchmarks.faults`:
every fault of `tests/support/host/faults.py`, and what came of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.support.host.faults import CASES, LACKS, Outcome, frail_host, lack, suffer


def main() -> None:
    print("| fault | the node's error begins | s to the error | s to the next good image | processes left |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, frail_host(Path(os.environ["COMFYUI_PATH"]), Path(folder)) as host:
        for name, case in CASES.items():
            show(name, suffer(host, case.moment, case.fault))
        for name, (file, harm, _) in LACKS.items():
            show(name, lack(host, host.base / file, harm))


def show(name: str, outcome: Outcome) -> None:
    said = " ".join(outcome.said.splitlines()[:2]) or "(no node was running)"
    to_error = f"{outcome.to_error:.1f}" if outcome.said else ""
    print(f"| {name} | {said} | {to_error} | {outcome.to_good:.1f} | {len(outcome.left)} |", flush=True)


if __name__ == "__main__":
    main()
