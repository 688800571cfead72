"""`COMFYUI_PATH=… python -m tests.benchmarks.interrupt`: how soon `POST /interrupt` ends a prompt on the demo model.

For ComfyUI's loop and for the workers': the seconds from the request to `execution_interrupted`, the seconds until
the ranks are idle, and the length of a step, of 20 prompts each.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from demo.host import REPOSITORY, ComfyHost
from tests.support.host.faults import spaced, wait_until
from tests.support.host.graphs import latents, status
from tests.support.host.soak import JOB, LONG, LOOPED

PROMPTS = 20


def interrupt(host: ComfyHost, scheduler: str | None, at: int) -> tuple[float, float, float]:
    """Interrupts a prompt at a step: seconds to the event, to idle ranks, and of a step."""
    prompt_id = host.queue(spaced(replace(JOB, steps=LONG, scheduler=scheduler)).prompt())
    times: dict[str, float] = {}
    steps: list[tuple[int, float]] = []

    def follow(event: dict) -> None:
        if event["type"] == "progress":
            steps.append((event["data"]["value"], time.monotonic()))
            if event["data"]["value"] >= at and "asked" not in times:
                times["asked"] = time.monotonic()
                host.interrupt(prompt_id)
        if event["type"] == "execution_interrupted":
            times["ended"] = time.monotonic()

    host.wait(prompt_id, on_event=follow)
    wait_until(lambda: status(host)["state"] == "ready")
    idle = time.monotonic()
    (first, began), *_, (last, seen) = steps
    step = (seen - began) / (last - first)
    return times["ended"] - times["asked"], idle - times["asked"], step


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "models" / "diffusers").mkdir(parents=True)
        (base / "models" / "diffusers" / "shapes-dit").symlink_to(REPOSITORY / "demo" / "shapes-dit")
        with ComfyHost(Path(os.environ["COMFYUI_PATH"]), base) as host:
            latents(host, spaced(JOB).prompt())
            print("| loop | to execution_interrupted: median | most | to idle ranks: median | most | a step |")
            print("|---|---|---|---|---|---|")
            for name, scheduler in (("ComfyUI's", None), ("the workers'", LOOPED)):
                measured = [interrupt(host, scheduler, at) for at in range(5, 5 + PROMPTS)]
                ended, idle, step = ([1000 * value for value in values] for values in zip(*measured, strict=True))
                cells = [
                    statistics.median(ended),
                    max(ended),
                    statistics.median(idle),
                    max(idle),
                    statistics.median(step),
                ]
                print(f"| {name} | " + " | ".join(f"{cell:.0f} ms" for cell in cells) + " |")


if __name__ == "__main__":
    main()
