"""What of an exchange is exposed in the order in which a rank's own operations ask a card for work.

`COMFYUI_PATH=… python -m tests.benchmarks.exchange.clock [--write]` runs the ranks' code on ComfyUI's classes of
published sizes, as rank 0 of four, on tensors without data. Nothing is sent. A clock adds up what each operation would
take: products and attention by their FLOPs, others by their bytes, exchanges by the link's rate. The card computes one
operation after the other, and the link has one exchange after the other, each from when it is asked for. A wait moves
the card's clock to the exchange's end. So "left" is what ranks would wait, by the code's own order: no formula of
`costs.predict` takes part. The host's own time is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from parallel_backend.costs.machine import CARD, Link
from parallel_backend.groups.calls import Call
from parallel_backend.groups.timeline import Timeline
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.exchange import ulysses
from parallel_backend.seams.kernels.backends import Backend
from tests.support.fakes.measure import build_comfyui, import_comfyui
from tests.support.fakes.models import COMFYUI, Model
from tests.support.fakes.rank import one_of
from tests.support.host import mounted
from tests.support.links.profiles import PROFILES
from tests.support.pages import show_table

CPU, META, DTYPE = torch.device("cpu"), torch.device("meta"), torch.bfloat16
RANKS, PIECES = 4, (1, 2, 3)
LINKS = ("PCIe 3.0 x8", "PCIe 4.0 x16", "PCIe 4.0 x16, peer-to-peer")
LATENCY = 2e-5  # seconds, of an exchange over PCIe


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=DTYPE, device=META)


def make_call(model: Model) -> Call:
    """Makes a call of one picture or video."""
    conditions = {name: empty(1, *shape) for name, shape in model.conditions.items()}
    latents = empty(1, model.channels, *model.latents)
    return Call((latents, empty(1)), {**conditions, "transformer_options": {}})


MODELS = {
    "Flux.1, 1024²": COMFYUI["flux-dev"],
    "Wan 14B, 81 frames, 832 × 480": COMFYUI["wan-14b"],
    "Qwen-Image, 1328²": COMFYUI["qwen-image"],
}


class Clock(TorchDispatchMode):
    """Seconds of a card and its link while entered. now: of the card. free: when the link has sent what it was asked
    for. sending: seconds of exchanges. waited: seconds in which the card has nothing to compute."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link
        self.now = self.free = self.sending = self.waited = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not (func.is_view or func.namespace == "c10d" or "empty" in func.__name__):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, torch.Tensor)]
            moved = sum(leaf.numel() * leaf.element_size() for leaf in tensors) / CARD.memory
            self.now += max(CARD.operation, moved, count_products(func, args, found) / CARD.linear)
        return found

    def exchange(self, received: Any, send: torch.Tensor, _of: Any, to: Sequence[int], **_: Any) -> Any:
        """In place of an all-to-all of rank 0."""
        seconds = self.link.seconds(sum(to[1:]) * send.element_size(), 1)
        self.free = max(self.free, self.now) + seconds
        self.sending += seconds
        return Sending(self, self.free)

    def attend(self, query: torch.Tensor, key: torch.Tensor, *_: Any) -> torch.Tensor:
        """In place of a kernel, BHLD."""
        batch, heads, rows, width = query.shape
        self.now += 4 * batch * heads * rows * key.shape[2] * width / CARD.attention
        return query.new_empty(batch, rows, heads, width).transpose(1, 2)


def count_products(func: Any, args: tuple, found: Any) -> float:
    """Returns the FLOPs of an operator's products. torch counts none for a linear layer that it has not taken apart."""
    if func is torch.ops.aten.linear.default:
        return 2.0 * args[0].numel() * found.shape[-1]
    count = flop_registry.get(func.overloadpacket)
    return count(*args, out_val=found) if count else 0.0


class Sending(NamedTuple):
    """An exchange. end: in seconds."""

    clock: Clock
    end: float

    def wait(self) -> None:
        self.clock.waited += max(0.0, self.end - self.clock.now)
        self.clock.now = max(self.clock.now, self.end)


class Forward(NamedTuple):
    """Seconds of a forward: in all, of its exchanges, and of waits for them."""

    seconds: float
    sending: float
    waited: float


def run(model: torch.nn.Module, call: Call, pieces: int, link: Link, ranks: int = RANKS) -> Forward:
    """Runs a forward on the clock as rank 0. The first one learns how modules attend."""
    plan, clock = ParallelPlan(ulysses=ranks, pieces=pieces), Clock(link)
    with one_of(plan, CPU, timeline=Timeline(CPU)) as mesh:
        parallel = ParallelModel(model, replace(mesh, device=META), DTYPE)
        with ExitStack() as stack:
            stack.enter_context(patch.object(ulysses.dist, "all_to_all_single", clock.exchange))
            stack.enter_context(patch.object(Backend, "attend", clock.attend))
            stack.enter_context(parallel.showing_whole(False, True))
            parallel.run_calls([call])
            clock.__init__(link)
            with clock:
                parallel.run_calls([call])
        parallel.remove()
        return Forward(clock.now, clock.sending, clock.waited)


def probe(comfyui: str) -> dict[int, Any]:
    """By the number of pieces, a forward of a few of Flux's blocks. For `tests/support/programs`."""
    mounted.import_comfyui(comfyui)
    attention: Any = importlib.import_module("comfy.ldm.modules.attention")
    flux: Any = importlib.import_module("comfy.ldm.flux.math")
    flux.optimized_attention = attention.attention_pytorch  # as on GPUs
    few = replace(COMFYUI["flux-dev"], depths={"depth": 2, "depth_single_blocks": 4})
    model, call, link = build_comfyui(few, META), make_call(few), Link(PROFILES["PCIe 4.0 x16"].link, LATENCY)
    return {pieces: run(model, call, pieces, link)._asdict() for pieces in PIECES}


def left_table() -> str:
    """What is left of an exchange, and what a forward takes in pieces, by the whole one's time."""
    pieces = " | ".join(f"{each} pieces" if each > 1 else "whole" for each in PIECES)
    lines = [f"| left of exchanges; a forward | link | {pieces} |", f"|---|---|{'---|' * len(PIECES)}"]
    for words, model in MODELS.items():
        made = build_comfyui(model, META)
        for name in LINKS:
            link = Link(PROFILES[name].link, LATENCY)
            found = [run(made, make_call(model), each, link) for each in PIECES]
            cells = [f"{each.waited / found[0].sending:.0%}; {1000 * each.seconds:.0f} ms" for each in found]
            lines.append(f"| {words} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    import_comfyui()
    show_table("clock", left_table())


if __name__ == "__main__":
    main()
