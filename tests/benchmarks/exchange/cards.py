"""What a step of MiniMax H3 is predicted to take on cards that nobody has run the pack on, beside published figures.

COMFYUI_PATH=… python -m tests.benchmarks.exchange.cards [--write]

It measures nothing. It counts a forward of ComfyUI's class of the published sizes, and asks `costs.predict`, as `auto`
does. A card's speed is its data sheet's, times the share of it that one published profile reached on another card, so
a prediction of one card may well be wrong by a third, and a ratio of two is better. Sizes: the defaults of the class,
which are what `comfy/model_detection.py` finds in the published files, and the curve table [1025, 8] that the pruned
files have. The int8 file has 19.53 GiB, and what is counted here has 19.60. There is no guidance (the model has it
distilled), so a step is one forward.

Published figures, all of denoising alone, without text and VAE, and all exact but the second:
- buqi-code/buqi-minimax-h3-multigpu, README: 20 steps, fp8, 124 frames (its example; its VAE has seven chunks). Its
  profile is where PRODUCTS, ATTENTION and the link of RTX PRO cards come from.
- H3VM: 20 steps, int8. How many frames it had is not known: 124 are assumed.
- vllm-project/vllm-omni, recipes/MiniMaxAI/MiniMax-H3-RTX-PRO-6000.md: 50 steps, bf16, 124 frames, tensor parallel
  over two, times Ulysses; and its pull request 5857: 49 updates, bf16, Ulysses over two, with offloaded layers.
"""

from __future__ import annotations

import argparse
import importlib
import math
from dataclasses import replace
from typing import NamedTuple

import torch

from parallel_backend.costs.forward import ForwardCost, count_forward
from parallel_backend.costs.machine import Link, Machine, Speed
from parallel_backend.costs.predict import Prediction, predict
from parallel_backend.models.checks import sizes_of
from parallel_backend.models.spec import spec_named
from parallel_backend.plan import AUTO, HOST, SHARED, WHOLE, ParallelPlan
from parallel_backend.weights.sizes import WeightSizes
from tests.benchmarks.exchange.clock import LATENCY, build_h3, call_h3
from tests.support.fakes.measure import import_comfyui
from tests.support.links.profiles import PROFILES
from tests.support.pages import write_table

PRODUCTS, ATTENTION = 320 / 516, 176 / 258  # of the data sheet's FLOP/s: 270 to 370 and 176 TFLOP/s in buqi's profile
OTHERS = 0.8  # of the data sheet's bytes per second, assumed
LEFT = 0.9  # of a card's memory, for the model and a forward; assumed
PEER = 25e9  # bytes per second between RTX PRO cards on PCIe 5.0 x16, in buqi's profile
BY_RAM = PROFILES["PCIe 4.0 x16"].link  # between GeForce cards, which NCCL joins through RAM; PCIe 5.0 x8 is as fast


class Card(NamedTuple):
    """A card by its data sheet: FLOP/s of dense products in bf16 (with fp32 sums) and in 8 bits, bytes per second and
    GB of memory, and the link's bytes per second."""

    name: str
    bf16: float
    eight: float
    memory: float
    gb: int
    link: float

    def machine(self, ranks: int, bits: int) -> Machine:
        products = PRODUCTS * (self.eight if bits == 8 else self.bf16)
        memory = OTHERS * self.memory
        speed = Speed(self.name, products, ATTENTION * self.bf16, memory, 5e-6, math.inf, memory, memory)
        link = Link(self.link, LATENCY)
        return Machine((speed,) * ranks, link, link, link, link, host=PROFILES["PCIe 4.0 x16"].host)


RTX_5060_TI = Card("RTX 5060 Ti", 47e12, 190e12, 448e9, 16, BY_RAM)
RTX_4090 = Card("RTX 4090", 165e12, 661e12, 1008e9, 24, BY_RAM)
PRO_5000 = Card("RTX PRO 5000", 258e12, 516e12, 1344e9, 72, PEER)
PRO_6000 = Card("RTX PRO 6000", 500e12, 1000e12, 1792e9, 96, PEER)


class Run(NamedTuple):
    """A step of 124 frames of this size on so many cards. published: seconds by the number of cards."""

    card: Card
    ranks: int
    size: tuple[int, int]
    bits: int
    published: dict[int, float]
    by: str = ""


RUNS = (
    Run(PRO_5000, 2, (832, 480), 8, {1: 78.3 / 20, 2: 41.0 / 20}, "buqi"),
    Run(PRO_5000, 2, (1344, 768), 16, {2: 10.30}, "vLLM-Omni, offloaded"),
    Run(RTX_5060_TI, 2, (832, 480), 8, {}),
    Run(RTX_5060_TI, 2, (1152, 640), 8, {1: 525.6 / 20, 2: 323.1 / 20}, "H3VM, 13 dB"),
    Run(RTX_4090, 2, (832, 480), 8, {}),
    Run(RTX_4090, 2, (1152, 640), 8, {}),
    Run(PRO_6000, 2, (1344, 768), 16, {2: 5.571}, "vLLM-Omni"),
    Run(PRO_6000, 4, (1344, 768), 16, {4: 3.375}, "vLLM-Omni"),
    Run(PRO_6000, 4, (1344, 768), 8, {}),
)


def count(model: torch.nn.Module, width: int, height: int) -> ForwardCost:
    """Counts a forward. The layout, which the class would make of values, is given."""
    call, spec = call_h3(width, height), spec_named("comfy.ldm.minimax.model.MiniMaxH3Model")
    assert spec
    (video, sound), text = call.latents, call.kwargs["context"]
    layout = importlib.import_module("comfy.ldm.minimax.model").PackedLayout
    payload = {"layout": layout(text.shape[1], *video.shape[2:], sound.shape[-1])}
    run = lambda: model(*call.args, **call.kwargs, minimax_payload=payload)  # noqa: E731
    blocks = list(model.get_submodule(spec.blocks[0].path).children())
    return count_forward(model, blocks, run, rows=1, heads=sizes_of(model, spec).heads)


def sizes(model: torch.nn.Module, bits: int) -> WeightSizes:
    """Returns the bytes of the weights. In 8 bits are the four products of each block, as in the published files."""
    by_block, rest = [0] * len(model.get_submodule("blocks")), 0
    for name, weight in model.named_parameters():
        kept = bits == 8 and name.startswith("blocks.") and "adaln" not in name and weight.ndim == 2
        size = weight.numel() if kept else weight.nbytes
        if name.startswith("blocks."):
            by_block[int(name.split(".")[1])] += size
        else:
            rest += size
    return WeightSizes(rest, tuple(by_block))


def predict_plan(run: Run, plan: ParallelPlan, cost: ForwardCost, weights: WeightSizes) -> Prediction:
    """Predicts a plan with the weights where the card has room for them: whole, or else shared, or else in RAM."""
    machine, room = run.card.machine(plan.world_size, run.bits), LEFT * run.card.gb * (1 << 30)
    ways = (WHOLE, SHARED, HOST) if plan.replicas > 1 else (WHOLE, HOST)
    found = [predict(cost, 1, replace(plan, weights=way), machine, weights) for way in ways]
    return next((each for each in found if each.bytes <= room), replace(found[-1], fits=False))


def list_candidates(ranks: int) -> list[ParallelPlan]:
    plans = [ParallelPlan(ulysses=ranks, pieces=pieces) for pieces in (1, 2, 3)]
    plans += [ParallelPlan(ring=ranks), *([ParallelPlan(ulysses=2, ring=2)] if ranks == 4 else [])]
    return plans


def table() -> str:
    lines = [
        "| cards | weights, size | published: 1 card; all | predicted: 1; all | times | plan | GB a card; in stages |",
        "|---|---|---|---|---|---|---|",
    ]
    model = build_h3()
    for run in RUNS:
        cost, weights = count(model, *run.size), sizes(model, run.bits)
        one = predict(cost, 1, ParallelPlan(), run.card.machine(1, run.bits), weights)
        best = min((predict_plan(run, plan, cost, weights) for plan in list_candidates(run.ranks)), key=rank)
        stages = predict_plan(run, ParallelPlan(pipefusion=run.ranks, patches=1), cost, weights)
        published = "; ".join(f"{run.published[each]:.2f}" if each in run.published else "–" for each in (1, run.ranks))
        cells = [
            f"{run.ranks} × {run.card.name}",
            f"{run.bits} bits, {run.size[0]} × {run.size[1]}",
            published + (f" ({run.by})" if run.by else ""),
            f"{one.seconds:.2f}; {best.seconds:.2f}",
            f"{one.seconds / best.seconds:.2f}",
            told(best.plan),
            "; ".join(f"{each.bytes / 1e9:.0f}{'' if each.fits else ' (too much)'}" for each in (best, stages)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def told(plan: ParallelPlan) -> str:
    return str(replace(plan, weights=AUTO) if plan.weights == WHOLE else plan)


def rank(found: Prediction) -> tuple[bool, float]:
    return not found.fits, found.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    options = parser.parse_args()
    import_comfyui()
    print(found := table())
    if options.write:
        write_table("cards", found)


if __name__ == "__main__":
    main()
