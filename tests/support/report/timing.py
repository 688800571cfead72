"""What a step takes in a real ComfyUI: its own loader in one process, and ours on one rank and on all devices.

A KSampler samples from a Flux with random weights, by ComfyUI's own class, through the API queue. A step's time is what
more steps add to a prompt, so that loading and saving are no part of it. Each round has every variant, in an order that
changes by round, and frees the devices before each.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from demo.host import ComfyHost
from tests.support.host.graphs import find_node, groups, latents, log, relative_error
from tests.support.host.stock_prompts import host_with_cases, prompt

# A group for the ranks of all devices, and one for a single rank, so that none is started anew.
ALL, ONE = 1, 2
ROOM = 12 << 30  # bytes of a card for the size without another name: weights of 4 GB, twice
FREE_SECONDS = 1.0  # for ComfyUI to begin to free; the next prompt waits for its end
TELLING = ("WARNING", "ERROR", "Traceback", "NCCL WARN", "out of memory")
LOG_LINES, LOG_WIDTH = 20, 200


@dataclass(frozen=True)
class Size:
    """What is sampled. steps: of the shorter and the longer prompt. words: for the report."""

    case: str
    steps: tuple[int, int]
    rounds: int
    words: str


SIZES = {
    "cuda": Size("flux-to-time", (4, 16), 5, "Flux of 3 double and 6 single blocks at full width, bf16, 1024×1024"),
    "small": Size(
        "flux-to-time-small", (4, 16), 5, "Flux of 1 double and 2 single blocks at full width, bf16, 1024×1024"
    ),
    "cpu": Size("flux-deep", (1, 5), 1, "a tiny Flux, fp32, 72×96"),
}


@dataclass
class Variant:
    """One row. plan: None is ComfyUI's own loader, and {} an automatic one.

    seconds: a step, by round. error: of the latents, as a share of stock's greatest value. Of the ranks, as they say
    it: the plan, the share of a step that they waited for one another, and the memory of each.
    """

    name: str
    plan: dict[str, int] | None
    group: int = ALL
    seconds: list[float] = field(default_factory=list)
    error: float | None = None
    ran: str = ""
    communication: float | None = None
    memory: list[int] = field(default_factory=list)


@dataclass
class Timing:
    """The table, and what the ranks' logs have that a reader should see."""

    size: Size
    variants: list[Variant]
    log_lines: list[str]


def variants(devices: int) -> list[Variant]:
    shared = [
        Variant(f"ours, {devices} ranks, automatic plan", {}),
        Variant(f"ours, {devices} ranks, ulysses={devices}", {"ulysses": devices}),
        Variant(f"ours, {devices} ranks, ring={devices}", {"ring": devices}),
    ]
    stock = [Variant("stock KSampler, stock loader", None), Variant("ours, 1 rank", {"cfg": 1}, ONE)]
    return [*stock, *(shared if devices > 1 else [])]


def size_of(device: str, devices: int) -> str:
    """Returns which size the devices have room for, beside ComfyUI's own process."""
    cards = range(devices if device == "cuda" else 0)
    return "small" if any(torch.cuda.get_device_properties(card).total_memory < ROOM for card in cards) else device


def measure(
    comfyui: Path, folder: Path, device: str, devices: int, env: Mapping[str, str] | None = None, rounds: int = 0
) -> Timing:
    """Takes folder for a few gigabytes. env: of ComfyUI and the ranks. rounds: in place of the size's. Raises
    PromptError, HostError."""
    size, found = SIZES[size_of(device, devices)], variants(devices)
    seeds = itertools.count(1)
    with host_with_cases(comfyui, folder, [size.case], env, cpu=device == "cpu") as host:
        for round_ in range(rounds or size.rounds):
            for place in range(len(found)):
                variant = found[(round_ + place) % len(found)]
                host.free()
                time.sleep(FREE_SECONDS)
                host.run(made(size, variant, 1, next(seeds)))
                fewer, more = (seconds(host, made(size, variant, steps, next(seeds))) for steps in size.steps)
                variant.seconds.append((more - fewer) / (size.steps[1] - size.steps[0]))
                print(f"{variant.name}: {variant.seconds[-1]:.4f} s a step", flush=True)
        compare(host, size, found)
        used = sorted({variant.group for variant in found if variant.plan is not None})
        lines = [line for group in used for line in telling(host, group)]
    return Timing(size, found, lines)


def made(size: Size, variant: Variant, steps: int, seed: int) -> dict[str, Any]:
    """A prompt; of a seed that the host has no result of."""
    built = prompt(size.case, variant.plan, group=variant.group, cfg=1.0, steps=steps)
    find_node(built, "KSampler")["inputs"]["seed"] = seed
    return built


def seconds(host: ComfyHost, built: dict[str, Any]) -> float:
    began = time.perf_counter()
    host.run(built)
    return time.perf_counter() - began


def compare(host: ComfyHost, size: Size, found: list[Variant]) -> None:
    """Notes how far the latents are from stock's, and what the ranks say of their run."""
    stock: torch.Tensor | None = None
    for variant in found:
        drawn = latents(host, made(size, variant, size.steps[0], seed=0))
        if stock is None:
            stock = drawn
            continue
        variant.error = relative_error(drawn, stock)
        (group,) = (each for each in groups(host) if each["group"] == variant.group)
        run = group["runs"][0]
        variant.ran = run["plan"]
        shares = [waited / took for took, waited in run["steps"] if took]
        variant.communication = statistics.median(shares) if shares else None
        variant.memory = [rank["accelerator"] or rank["resident"] for rank in group["status"]["memory"]]


def telling(host: ComfyHost, group: int) -> Iterator[str]:
    """Warnings and errors in the ranks' logs, each once."""
    (found,) = (each for each in groups(host) if each["group"] == group)
    lines = (line for rank in range(found["status"].get("ranks", 1)) for line in log(host, rank, group).splitlines())
    said = dict.fromkeys(line[:LOG_WIDTH] for line in lines if any(word in line for word in TELLING))
    yield from list(said)[:LOG_LINES]
