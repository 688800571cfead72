"""The cost of the hop: KSampler's seconds a step through the host, less the workers' own seconds a step.

COMFYUI_PATH=… python -m tests.benchmarks.hop [--runs 5] [--steps 100]

A one-layer DiT on patches of 16 makes the forward cheap and the latent large: 4×256×256 in fp32 is 1 MiB.
What is left is the host's sampler arithmetic, two copies over the socket, and the hand-over to the ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import diffusers
import torch

from demo.host import ComfyHost
from tests.graphs import Job, status

SIDE = 2048
TARGET_MS = 3.0
PLANS = {"1 rank": {"cfg": 1, "ulysses": 1}, "2 ranks (ulysses)": {"cfg": 1, "ulysses": 2}}


def save_model(folder: Path) -> None:
    """A one-layer DiT for 4-channel latents of 256×256."""
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=4,
        num_layers=1,
        sample_size=SIDE // 8,
        patch_size=16,
        num_embeds_ada_norm=10,
    )
    model.save_pretrained(folder)


def measure(host: ComfyHost, job: Job) -> tuple[float, float]:
    """Seconds a step, of the KSampler and of the workers, in one run of `job`."""
    marks: dict[int, float] = {}

    def mark(event: dict) -> None:
        if event["type"] == "progress":
            marks[event["data"]["value"]] = time.perf_counter()

    before = status(host)
    host.run(job.prompt(), on_event=mark)
    after = status(host)
    forwards = after["counts"]["forward"] - before["counts"]["forward"]
    worker = (after["seconds"]["forward"] - before["seconds"]["forward"]) / forwards
    # The host sends the first and the last step's progress at once, and drops some between.
    return (marks[job.steps] - marks[1]) / (job.steps - 1), worker


def main() -> int:
    """Prints the table; returns 1 where the hop costs more than the target."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.hop")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    comfyui = os.environ.get("COMFYUI_PATH")
    if not comfyui:
        parser.error("set COMFYUI_PATH to a folder with ComfyUI's main.py")
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="hop-") as base:
        save_model(Path(base) / "models" / "diffusers" / "hop")
        with ComfyHost(Path(comfyui), Path(base)) as host:
            print(f"4×{SIDE // 8}×{SIDE // 8} fp32 latent (1 MiB), medians of {arguments.runs} runs")
            print(f"{'':20}{'KSampler':>12}{'workers':>12}{'hop':>12}   ms a step")
            for name, plan in PLANS.items():
                job = Job("hop", width=SIDE, height=SIDE, plan=plan, steps=arguments.steps, cfg=1.0)
                host.run(Job("hop", width=SIDE, height=SIDE, plan=plan, steps=10, cfg=1.0).prompt())
                runs = [measure(host, job) for _ in range(arguments.runs)]
                step = statistics.median(step for step, _ in runs) * 1e3
                worker = statistics.median(worker for _, worker in runs) * 1e3
                hop = statistics.median(step - worker for step, worker in runs) * 1e3
                worst = max(worst, hop)
                print(f"{name:20}{step:12.2f}{worker:12.2f}{hop:12.2f}", flush=True)
    print(f"target: at most {TARGET_MS:g} ms; {'met' if worst <= TARGET_MS else 'missed'}")
    return int(worst > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
