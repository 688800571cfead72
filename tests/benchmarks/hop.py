"""The cost of the hop: what a forward takes in ComfyUI, less what the workers' own part of it takes.

COMFYUI_PATH=… python -m tests.benchmarks.hop

A one-layer DiT on patches of 16 makes the forward cheap and the latent large: 4×256×256 in fp32 is 1 MiB. A KSampler's
step is the sampler's own arithmetic in ComfyUI, the hop (two copies over the socket and the hand-over to the ranks),
and the workers' forward. In loop mode the workers' part is the whole loop, and the hop is the event a step.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import diffusers
import torch

from demo.host import PACK_NAME, ComfyHost
from tests.support.host.graphs import Job, status

SIDE, RUNS, STEPS = 2048, 5, 100
TARGET_MS = 3.0
PLANS = {"1 rank": {"cfg": 1, "ulysses": 1}, "2 ranks (ulysses)": {"cfg": 1, "ulysses": 2}}


NODE_PACK = "hop_stopwatch"
NODE_PACK_SOURCE = '''"""Benchmark-only: writes down the seconds that the model's forward takes inside ComfyUI."""

import copy
import time
from pathlib import Path

import torch


class Stopwatch(torch.nn.Module):
    def __init__(self, model, path):
        super().__init__()
        self.model, self.path = model, Path(path)
        self.dtype = model.dtype

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args, **kwargs):
        started = time.perf_counter()
        result = self.model(*args, **kwargs)
        with self.path.open("a") as file:
            print(time.perf_counter() - started, file=file)
        return result


class TimeForward:
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "replace"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "path": ("STRING",)}}

    def replace(self, model, path):
        patcher = model.clone()
        patcher.model = copy.copy(model.model)
        modules = {**model.model._modules, "diffusion_model": Stopwatch(model.model.diffusion_model, path)}
        patcher.model._modules = modules
        return (patcher,)


NODE_CLASS_MAPPINGS = {"Benchmark_TimeForward": TimeForward}
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


def measure(host: ComfyHost, job: Job, path: Path) -> tuple[float, float, float]:
    """Seconds a step: the KSampler's, the forward's as ComfyUI sees it, and the workers' own."""
    before = status(host)
    path.unlink(missing_ok=True)
    timed = job.prompt(lambda graph, model: graph.add("Benchmark_TimeForward", model=model, path=str(path)))
    step = seconds_a_step(host, timed, job.steps)
    after = status(host)
    forwards = [float(line) for line in path.read_text().split()]
    worker = (after["seconds"]["call"] - before["seconds"]["call"]) / len(forwards)
    return step, sum(forwards) / len(forwards), worker


def measure_loop(host: ComfyHost, job: Job) -> tuple[float, float]:
    """Seconds a step where the workers run the loop: the KSampler's, and the workers' own."""
    before = status(host)["seconds"]["sample"]
    step = seconds_a_step(host, replace(job, scheduler="model's own").prompt(), job.steps)
    return step, (status(host)["seconds"]["sample"] - before) / job.steps


def main() -> int:
    """Prints the table; returns 1 where the hop costs more than the target, or loop mode is slower than step mode."""
    comfyui = os.environ["COMFYUI_PATH"]
    worst, slower = 0.0, False
    with tempfile.TemporaryDirectory(prefix="hop-") as base:
        save_model(Path(base) / "models" / "diffusers" / "hop")
        pack = Path(base) / "custom_nodes" / NODE_PACK
        pack.mkdir(parents=True)
        (pack / "__init__.py").write_text(NODE_PACK_SOURCE)
        arguments_of_host = ("--whitelist-custom-nodes", PACK_NAME, NODE_PACK)
        with ComfyHost(Path(comfyui), Path(base), extra_args=arguments_of_host) as host:
            print(f"4×{SIDE // 8}×{SIDE // 8} fp32 latent (1 MiB), medians of {RUNS} runs, ms a step")
            print(f"{'':30}{'KSampler':>12}{'= sampler':>12}{'+ hop':>12}{'+ workers':>12}")
            for name, plan in PLANS.items():
                job = Job("hop", width=SIDE, height=SIDE, plan=plan, steps=STEPS, cfg=1.0)
                host.run(replace(job, steps=10).prompt())
                runs = [(measure(host, job, Path(base) / "seconds.txt"), measure_loop(host, job)) for _ in range(RUNS)]
                parts = [(step, step - forward, forward - worker, worker) for (step, forward, worker), _ in runs]
                figures = [statistics.median(figure) * 1e3 for figure in zip(*parts, strict=True)]
                print(f"{name + ', step mode':30}" + "".join(f"{figure:12.2f}" for figure in figures), flush=True)
                loop, own = (statistics.median(figure) * 1e3 for figure in zip(*[run for _, run in runs], strict=True))
                print(f"{name + ', loop mode':30}{loop:12.2f}{'':12}{loop - own:12.2f}{own:12.2f}", flush=True)
                worst, slower = max(worst, figures[2]), slower or loop > figures[0]
    print(f"target for the hop: at most {TARGET_MS:g} ms; {'met' if worst <= TARGET_MS else 'missed'}")
    print(f"loop mode is {'slower' if slower else 'never slower'}")
    return int(worst > TARGET_MS or slower)


if __name__ == "__main__":
    sys.exit(main())
