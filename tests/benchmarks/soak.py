"""`COMFYUI_PATH=… python -m tests.benchmarks.soak [PROMPTS]`: prompts in a row, with cancels and two plans.

Every result is compared with the first of its plan, every history entry is checked; then what the processes held at
prompt 50 and at the end. `tests/support/host/soak.py` says what is run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from demo.host import REPOSITORY, ComfyHost
from tests.support.host.soak import growth, soak

SETTLED = 50


def main(prompts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "models" / "diffusers").mkdir(parents=True)
        (base / "models" / "diffusers" / "shapes-dit").symlink_to(REPOSITORY / "demo" / "shapes-dit")
        started, course = time.monotonic(), []
        with ComfyHost(Path(os.environ["COMFYUI_PATH"]), base) as host:
            for held in soak(host, prompts):
                course.append(held)
                if len(course) % 50 == 0:
                    print(f"{len(course)} prompts, {time.monotonic() - started:.0f} s", flush=True)
    print(f"\n| process | kind | at prompt {SETTLED} | at prompt {prompts} | |\n|---|---|---|---|---|")
    for name, kinds in growth(course, SETTLED).items():
        for kind, (early, late) in kinds.items():
            scale = 2**20 if kind == "memory" else 1
            unit = " MiB" if kind == "memory" else ""
            print(
                f"| {name} | {kind} | {early / scale:.0f}{unit} | {late / scale:.0f}{unit} | {late / early - 1:+.1%} |"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
