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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from parallel_backend.costs.machine import CARD, Link
from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.groups.timeline import Timeline
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.exchange import ulysses
from parallel_backend.seams.kernels.backends import Backend
from tests.support.fakes.measure import import_comfyui
from tests.support.links.profiles import PROFILES
from tests.support.pages import show_table

CPU, META, DTYPE = torch.device("cpu"), torch.device("meta"), torch.bfloat16
RANKS, PIECES = 4, (1, 2, 3)
LINKS = ("PCIe 3.0 x8", "PCIe 4.0 x16", "PCIe 4.0 x16, peer-to-peer")
LATENCY = 2e-5  # seconds, of an exchange over PCIe


class Model(NamedTuple):
    """A model of a published size, and a call of it. build: makes it with these arguments for ComfyUI's classes."""

    name: str
    build: Callable[..., torch.nn.Module]
    call: Callable[[], Call]


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=DTYPE, device=META)


def build(path: str, name: str, **arguments: Any) -> torch.nn.Module:
    """Makes one of ComfyUI's classes without data."""
    operations = importlib.import_module("comfy.ops").disable_weight_init
    made = getattr(importlib.import_module(path), name)
    return made(**arguments, dtype=DTYPE, device=META, operations=operations).eval().requires_grad_(False)


def build_flux(double: int = 19, single: int = 38) -> torch.nn.Module:
    return build(
        "comfy.ldm.flux.model", "Flux", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=4096,
        hidden_size=3072, mlp_ratio=4.0, num_heads=24, depth=double, depth_single_blocks=single, axes_dim=[16, 56, 56],
        theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[],
    )  # fmt: skip


def build_wan() -> torch.nn.Module:
    return build(
        "comfy.ldm.wan.model", "WanModel", model_type="t2v", patch_size=(1, 2, 2), text_len=512, in_dim=16, dim=5120,
        ffn_dim=13824, freq_dim=256, text_dim=4096, out_dim=16, num_heads=40, num_layers=40,
    )  # fmt: skip


def build_zimage() -> torch.nn.Module:
    return build(
        "comfy.ldm.lumina.model", "NextDiT", patch_size=2, in_channels=16, dim=3840, n_layers=30, n_refiner_layers=2,
        n_heads=30, n_kv_heads=30, multiple_of=256, ffn_dim_multiplier=8 / 3, norm_eps=1e-5, qk_norm=True,
        cap_feat_dim=2560, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512], rope_theta=256.0,
        z_image_modulation=True, time_scale=1000.0, pad_tokens_multiple=32,
    )  # fmt: skip


def build_h3() -> torch.nn.Module:
    """Makes the published class, whose defaults are its sizes. ComfyUI's own files ("pruned") have a table of 1025
    timesteps of eight numbers, and 20.1 billion parameters. The class looks at its timestep, so it gets one with
    data."""
    made = build("comfy.ldm.minimax.model", "MiniMaxH3Model", adaln_curve_grid=1025, time_embed_dim=8)
    timestep = torch.full((1,), 700.0)
    made.register_forward_pre_hook(lambda _model, args: (args[0], timestep, *args[2:]))
    return made


def call_flux() -> Call:
    more = {"context": empty(1, 512, 4096), "y": empty(1, 768), "guidance": empty(1)}
    return Call((empty(1, 16, 128, 128), empty(1)), {**more, "transformer_options": {}})


def call_wan() -> Call:
    return Call((empty(1, 16, 21, 60, 104), empty(1)), {"context": empty(1, 512, 4096), "transformer_options": {}})


def call_zimage() -> Call:
    more = {"context": empty(1, 128, 2560), "num_tokens": 128, "transformer_options": {}}
    return Call((empty(1, 16, 128, 128), empty(1)), more)


def call_h3(width: int = 832, height: int = 480, frames: int = 124) -> Call:
    """A text alone. Frames are 17k + 5 at 24 a second, of which 17 become 5 in the latents; sound has 40 a second."""
    video = (1, 24, (frames - 5) // 17 * 5 + 2, height // 16, width // 16)
    sound = (1, 32, 2, round(frames / 24 * 40))
    more = {"context": empty(1, 128, 5120), "transformer_options": {}}
    return Call(([empty(*video), empty(*sound)], empty(1)), more)


MODELS = (
    Model("Flux.1, 1024²", build_flux, call_flux),
    Model("Wan 14B, 81 frames, 832 × 480", build_wan, call_wan),
    Model("Z-Image, 1024²", build_zimage, call_zimage),
    Model("MiniMax H3, 124 frames, 832 × 480", build_h3, call_h3),
)


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
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with patch("parallel_backend.groups.mesh.shake_hands"):
            mesh = replace(build_mesh(plan, CPU, timeline=Timeline(CPU)), device=META)
        parallel = ParallelModel(model, mesh, DTYPE)
        with ExitStack() as stack:
            stack.enter_context(patch.object(ulysses.dist, "all_to_all_single", clock.exchange))
            stack.enter_context(patch.object(Backend, "attend", clock.attend))
            stack.enter_context(parallel.showing_whole(False, True))
            parallel.run_calls([call])
            clock.__init__(link)
            with clock:
                parallel.run_calls([call])
        parallel.remove()
        mesh.close()
        return Forward(clock.now, clock.sending, clock.waited)
    finally:
        dist.destroy_process_group()


def left_table() -> str:
    """What is left of an exchange, and what a forward takes in pieces, by the whole one's time."""
    pieces = " | ".join(f"{each} pieces" if each > 1 else "whole" for each in PIECES)
    lines = [f"| left of exchanges; a forward | link | {pieces} |", f"|---|---|{'---|' * len(PIECES)}"]
    for model in MODELS:
        made = model.build()
        for name in LINKS:
            found = [run(made, model.call(), each, Link(PROFILES[name].link, LATENCY)) for each in PIECES]
            cells = [f"{each.waited / found[0].sending:.0%}; {1000 * each.seconds:.0f} ms" for each in found]
            lines.append(f"| {model.name} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    import_comfyui()
    show_table("clock", left_table())


if __name__ == "__main__":
    main()
