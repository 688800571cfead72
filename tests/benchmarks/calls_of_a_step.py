"""What it gains that the calls of a step go as one request: cond and uncond of different lengths under cfg=2.

COMFYUI_PATH=… python -m tests.benchmarks.calls_of_a_step [--rounds 5] [--steps 8] [--side 64]

A KSampler samples from a small Flux with random weights, by ComfyUI's own class. "apart" has a wrapper around the
diffusion model that does nothing, behind which calls go one after the other. Each round runs every variant, in an order
that changes by round; ratios are taken within a round, and their medians printed. Beside the time stands the busiest
rank's CPU time, which bounds the step's, and does not depend on what else the machine does. Then, how long it takes to
plan anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from safetensors.torch import load_file, save_file

from demo.host import PACK_NAME, ComfyHost
from tests.support.host.graphs import NODE_PACK, NODE_PACK_SOURCE, Graph, Link, ranks, status
from tests.support.host.stock_prompts import prompt, write_cases

CASE = "longcat-image"
WRAPPER_PACK = "wrapped"
WRAPPER_PACK_SOURCE = '''"""Benchmark-only: a wrapper of the diffusion model that does nothing."""

from comfy.patcher_extension import WrappersMP


class Wrap:
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "wrap"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    def wrap(self, model):
        patcher = model.clone()
        call = lambda executor, *args, **kwargs: executor(*args, **kwargs)
        patcher.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "benchmark", call)
        return (patcher,)


NODE_CLASS_MAPPINGS = {"Benchmark_Wrap": Wrap}
'''


def wrapped(graph: Graph, model: Link) -> Link:
    return graph.add("Benchmark_Wrap", model=model)


# Two ranks have a group, and one has another, so that none is started anew.
VARIANTS = {
    "one rank": {"plan": {"cfg": 1}, "group": 2, "negative": "longer"},
    "cfg 2, apart": {"plan": {"cfg": 2}, "negative": "longer", "patch": wrapped},
    "cfg 2, one request": {"plan": {"cfg": 2}, "negative": "longer"},
    "ulysses 2": {"plan": {"ulysses": 2}, "negative": "longer"},
    "cfg 2, equal lengths, apart": {"plan": {"cfg": 2}, "patch": wrapped},
    "cfg 2, equal lengths, one request": {"plan": {"cfg": 2}},
}


def write_base(comfyui: Path, base: Path) -> None:
    for name, source in ((NODE_PACK, NODE_PACK_SOURCE), (WRAPPER_PACK, WRAPPER_PACK_SOURCE)):
        (base / "custom_nodes" / name).mkdir(parents=True)
        (base / "custom_nodes" / name / "__init__.py").write_text(source)
    write_cases(comfyui, base, [CASE])
    text = load_file(base / "input" / f"{CASE} negative.safetensors")["conditioning"]
    save_file({"conditioning": text.repeat(1, 2, 1)}, base / "input" / f"{CASE} longer.safetensors")


class Taken(NamedTuple):
    """Seconds a step. cpu: of the rank that took most."""

    wall: float
    cpu: float


def cpu_seconds(host: ComfyHost, group: int) -> list[float]:
    """What each rank has taken so far."""
    return [sum(psutil.Process(pid).cpu_times()[:2]) for pid in ranks(host, group)]


def measure(host: ComfyHost, seed: int, steps: int, side: int, **options: Any) -> Taken:
    """Of a prompt whose model is loaded."""
    group, before = options.get("group", 1), []
    for count in (1, steps):
        before = cpu_seconds(host, group) if count > 1 else []
        made = prompt(CASE, size=(1, 16, side, side), steps=count, **options)
        sampler = next(node for node in made.values() if node["class_type"] == "KSampler")
        sampler["inputs"]["seed"] = seed  # one that the host has no result of
        started = time.perf_counter()
        host.run(made)
    wall = time.perf_counter() - started
    cpu = max(now - then for now, then in zip(cpu_seconds(host, group), before, strict=True))
    return Taken(wall / steps, cpu / steps)


def replan_seconds(host: ComfyHost, side: int) -> float:
    """What a load of the ranks takes that is another plan alone: auto, with and without guidance in turns."""
    before = status(host)
    for turn in range(10):
        made = prompt(CASE, plan={}, size=(1, 16, side, side), steps=1 + turn // 2, cfg=1.0 + turn % 2)
        host.run(made)
    after = status(host)
    loads = after["counts"]["load"] - before["counts"]["load"]
    return (after["seconds"]["load"] - before["seconds"]["load"]) / loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--side", type=int, default=64, help="of the latents; a token is 2×2 of them")
    options = parser.parse_args()
    comfyui = Path(os.environ["COMFYUI_PATH"])
    measured: dict[str, list[Taken]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        write_base(comfyui, Path(folder))
        packs = ("--whitelist-custom-nodes", PACK_NAME, NODE_PACK, WRAPPER_PACK)
        with ComfyHost(comfyui, Path(folder), extra_args=packs) as host:
            for round_ in range(options.rounds):
                names = list(VARIANTS)
                for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                    taken = measure(host, round_, options.steps, options.side, **VARIANTS[name])
                    measured[name].append(taken)
            replan = replan_seconds(host, options.side)
    print(f"{'ms a step':35}{'wall':>8}{'CPU':>8}")
    for name, found in measured.items():
        print(f"{name:35}" + "".join(f"{statistics.median(each) * 1e3:8.1f}" for each in zip(*found, strict=True)))
    for kind in ("", ", equal lengths"):
        pairs = list(zip(measured[f"cfg 2{kind}, apart"], measured[f"cfg 2{kind}, one request"], strict=True))
        wall = statistics.median(apart.wall / one.wall for apart, one in pairs)
        cpu = statistics.median(apart.cpu / one.cpu for apart, one in pairs)
        print(f"cfg 2{kind}, in one request: {wall:.2f} × as fast, {cpu:.2f} × by the busiest rank's CPU time")
    print(f"another plan on the weights that are there: {replan * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
