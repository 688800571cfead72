"""What a step with a ControlNet takes if the ranks run its network, and if ComfyUI's process does and sends residuals.

COMFYUI_PATH=… python -m tests.benchmarks.speed.controlnets [--rounds 5]

The model is Flux-shaped, of a sixth of its width and half of its depth, with 576 tokens of an image on two CPU ranks;
the ControlNet has half of the model's double and single blocks. The way it was runs a network whose file is not known.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.host.graphs import TINY_MODELS

MODEL, LATENT, STEPS = "flux-to-weigh", (1, 16, 48, 48), (2, 6)
KIND = "flux, 5 and 10 blocks"
WAYS = ("no ControlNet", "in ComfyUI's process", "in the ranks")


def prepare(census: Any, row: Any, model: Any, way: str) -> tuple[Any, Any]:
    """Returns the two texts of a sampling."""
    texts = [census.conditioning(MODEL, name) for name in ("positive", "negative")]
    if way == "no ControlNet":
        return texts[0], texts[1]
    control = census.a_controlnet(KIND, row, model)
    if way == "in ComfyUI's process":
        control.control_model_wrapped.paralleldit_loaded_by = None
    return census.run(
        "ControlNetApplyAdvanced", positive=texts[0], negative=texts[1], control_net=control,
        image=census.a_image(row, model), strength=0.7, start_percent=0.0, end_percent=1.0, vae=None,
    )  # fmt: skip


def measure(comfyui: str, rounds: int) -> None:
    from tests.support.census.pack_rows import PACK
    from tests.support.census.program import Census
    from tests.support.census.rows import Row
    from tests.support.host.stock_prompts import write_cases

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_cases(Path(comfyui), base, [MODEL])
        (base / "custom_nodes").mkdir()
        (base / "custom_nodes" / PACK.name).symlink_to(PACK)
        census = Census(comfyui, folder)
        row = Row(MODEL, latent=LATENT, cfg=1.0, plan={"ulysses": 2})
        model = census.load(row, ours=True)
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds + 1):
            for way in WAYS:
                positive, negative = prepare(census, row, model, way)
                took = []
                for steps in STEPS:
                    began = time.perf_counter()
                    census.sample(replace(row, steps=steps), model, positive=positive, negative=negative)
                    took.append(time.perf_counter() - began)
                seconds[way].append((took[1] - took[0]) / (STEPS[1] - STEPS[0]))
                residuals = census.group.runs.kept[0].residuals
                if len(seconds[way]) == 1:
                    print(f"{way}: {residuals / 1e6:.1f} MB of residuals a step", flush=True)
        alone = statistics.median(seconds[WAYS[0]][1:])
        for way in WAYS:
            median = statistics.median(seconds[way][1:])
            print(f"{way}: {median:.3f} s a step, ×{median / alone:.2f}")
        census.group.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(os.environ["COMFYUI_PATH"], options.rounds)
        return
    command = [sys.executable, "-m", "tests.benchmarks.speed.controlnets", "--inside", "--rounds", str(options.rounds)]
    subprocess.run(command, env={**os.environ, **TINY_MODELS}, check=True)


if __name__ == "__main__":
    main()
