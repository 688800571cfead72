"""How long a cold prompt takes from Run to its first step, by when its ranks start (the setting `start`).

COMFYUI_PATH=… python -m tests.benchmarks.speed.cold [--encoder SECONDS] [--runs 3]

Each prompt is the first of a ComfyUI of its own. A node that waits stands for the text encoder, which on a GPU leaves
the CPU to the ranks. The model is tiny: what is measured is the start of the ranks, and the first step of a model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from demo.host import ComfyHost
from tests.conftest import PIPELINES, write_pipeline
from tests.support.host.graphs import Graph, Job, Link, write_packs
from worker.settings import START

SETTLE_SECONDS = 30.0  # of a ComfyUI that has just started, so that ranks which start with it are there


def to_first_step(comfyui: Path, start: str, encoder: float) -> float:
    """Seconds."""
    with tempfile.TemporaryDirectory() as folder:
        base, job = Path(folder), Job("tiny-dit", steps=2)
        write_pipeline(base / "models" / "diffusers" / job.model, *PIPELINES[job.model])
        (base / "user").mkdir()
        (base / "user" / "paralleldit.json").write_text(json.dumps({"start": start, "ranks": 2}))

        def slowly(graph: Graph, conditioning: Link) -> Link:
            return graph.add("Test_Wait", value=conditioning, seconds=encoder)

        with ComfyHost(comfyui, base, extra_args=write_packs(base)) as host:
            time.sleep(SETTLE_SECONDS)
            first: list[float] = []
            began = time.monotonic()
            host.run(
                job.prompt(patch_positive=slowly),
                on_event=lambda event: first.append(time.monotonic()) if event["type"] == "progress" else None,
            )
            return first[0] - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--encoder", type=float, default=10.0, help="seconds that conditioning takes")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    comfyui = Path(os.environ["COMFYUI_PATH"])
    took: dict[str, list[float]] = {start: [] for start in START}
    for _ in range(options.runs):  # in turns, so that what slows the machine down slows all
        for start in START:
            took[start].append(to_first_step(comfyui, start, options.encoder))
    at_sampler = statistics.median(took["sampler"])
    print(f"From Run to the first step, of it {options.encoder:g} s for the conditioning; median of {options.runs}:")
    for start, seconds in took.items():
        median = statistics.median(seconds)
        print(f"start={start}: {median:.1f} s, {median / at_sampler:.2f} of start=sampler")


if __name__ == "__main__":
    main()
