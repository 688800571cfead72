"""The cost of the hop: KSampler's seconds a step, less the workers' own, less what the KSampler takes by itself.

COMFYUI_PATH=… python -m tests.benchmarks.hop [--runs 5] [--steps 100]

A one-layer DiT on patches of 16 makes the forward cheap and the latent large: 4×256×256 in fp32 is 1 MiB.
What is left is the host's own sampler arithmetic, which a model that does nothing shows, and the hop itself: two copies
over the socket and the hand-over to the ranks.
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

from demo.host import PACK_NAME, ComfyHost
from tests.graphs import Job, status

SIDE = 2048
TARGET_MS = 3.0
PLANS = {"1 rank": {"cfg": 1, "ulysses": 1}, "2 ranks (ulysses)": {"cfg": 1, "ulysses": 2}}


NODE_PACK = "hop_baseline"
NODE_PACK_SOURCE = '''"""Benchmark-only: the MODEL with a diffusion model that does nothing, in ComfyUI itself."""

import copy

import torch


class Nothing(torch.nn.Module):
    dtype = torch.float32

    def forward(self, x, timesteps, **_options):
        return torch.zeros_like(x)


class DoNothing:
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "replace"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    def replace(self, model):
        patcher = model.clone()
        patcher.model = copy.copy(model.model)
        patcher.model._modules = {**model.model._modules, "diffusion_model": Nothing()}
        return (patcher,)


NODE_CLASS_MAPPINGS = {"Benchmark_DoNothing": DoNothing}
'''


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


def seconds_a_step(host: ComfyHost, prompt: dict, steps: int) -> float:
    """The KSampler's, in one run."""
    marks: dict[int, float] = {}

    def mark(event: dict) -> None:
        if event["type"] == "progress":
            marks[event["data"]["value"]] = time.perf_counter()

    host.run(prompt, on_event=mark)
    # The host sends the first and the last step's progress at once, and drops some between.
    return (marks[steps] - marks[1]) / (steps - 1)


def measure(host: ComfyHost, job: Job) -> tuple[float, float, float]:
    """Seconds a step: the KSampler's, the workers' own, and the KSampler's with a model that does nothing."""
    before = status(host)
    step = seconds_a_step(host, job.prompt(), job.steps)
    after = status(host)
    forwards = after["counts"]["forward"] - before["counts"]["forward"]
    worker = (after["seconds"]["forward"] - before["seconds"]["forward"]) / forwards
    nothing = job.prompt(lambda graph, model: graph.add("Benchmark_DoNothing", model=model))
    return step, worker, seconds_a_step(host, nothing, job.steps)


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
        pack = Path(base) / "custom_nodes" / NODE_PACK
        pack.mkdir(parents=True)
        (pack / "__init__.py").write_text(NODE_PACK_SOURCE)
        arguments_of_host = ("--whitelist-custom-nodes", PACK_NAME, NODE_PACK)
        with ComfyHost(Path(comfyui), Path(base), extra_args=arguments_of_host) as host:
            print(f"4×{SIDE // 8}×{SIDE // 8} fp32 latent (1 MiB), medians of {arguments.runs} runs, ms a step")
            print(f"{'':20}{'KSampler':>12}{'- workers':>12}{'- host':>12}{'= hop':>12}")
            for name, plan in PLANS.items():
                job = Job("hop", width=SIDE, height=SIDE, plan=plan, steps=arguments.steps, cfg=1.0)
                host.run(Job("hop", width=SIDE, height=SIDE, plan=plan, steps=10, cfg=1.0).prompt())
                runs = [measure(host, job) for _ in range(arguments.runs)]
                figures = [statistics.median(figure) * 1e3 for figure in zip(*runs, strict=True)]
                hop = statistics.median(step - worker - nothing for step, worker, nothing in runs) * 1e3
                worst = max(worst, figures[0] - figures[1])
                print(f"{name:20}" + "".join(f"{figure:12.2f}" for figure in [*figures, hop]), flush=True)
    print(f"target for KSampler less workers: at most {TARGET_MS:g} ms; {'met' if worst <= TARGET_MS else 'missed'}")
    return int(worst > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
