"""Models and methods of links.py: real models with fewer tokens and channels, and fewer blocks, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import diffusers
import torch

from parallel_backend.plan import INT4
from tests.support.cases.host import sdxl
from tests.support.links.profiles import CARD_ITEMSIZE

Conditions = dict[str, Any]
TEXT_WIDTH = 256


@dataclass(frozen=True)
class Case:
    """A model with 1/shrink of a real one's width and tokens, and about as many heads, by which an exchange is cut.
    Its head dim is a multiple of 8, as real ones are: a CPU's attention is up to a third slower with another.
    build: with so many blocks, or three times as many of Flux. latents: their shape, with the batch that a step has.
    comfyui: whether the class is ComfyUI's. is_deep: whether it has so many blocks that stages of them can be compared:
    PipeFusion sends once for each stage, and other methods once for each block."""

    build: Callable[[int], torch.nn.Module]
    depth: int
    shrink: float
    latents: tuple[int, ...]
    conditions: Callable[[int], Conditions]
    sigma: float = 500.0  # the timestep, in the model's units
    comfyui: bool = False
    is_deep: bool = False

    def model(self) -> torch.nn.Module:
        """With seeded weights."""
        torch.manual_seed(0)
        return self.build(self.depth).eval()

    def request(self) -> tuple[torch.Tensor, torch.Tensor, Conditions]:
        """Latents, timestep and conditions, seeded."""
        torch.manual_seed(1)
        latents = torch.randn(self.latents)
        return latents, torch.full(self.latents[:1], self.sigma), self.conditions(self.latents[0])

    @property
    def guided(self) -> bool:
        return self.latents[0] == 2


@dataclass(frozen=True)
class Method:
    """One way to run a step. plan: of the engine, of one rank without one. overlap: whether it computes while it
    exchanges. peer: diffusers' own context parallel. tolerance: relative, to one rank."""

    name: str
    plan: dict[str, Any] | None = None
    overlap: bool = True
    peer: bool = False
    tolerance: float = 1e-4

    @property
    def slower(self) -> float:
        """By how much the link is slower for it. A byte of a lossy exchange is half of what a card sends in its place,
        and a quarter of what a CPU rank does."""
        return torch.float32.itemsize / CARD_ITEMSIZE if self.name == INT4 else 1.0


def text_of(tokens: int) -> Callable[[int], Conditions]:
    return lambda batch: {"encoder_hidden_states": torch.randn(batch, tokens, TEXT_WIDTH)}


def flux(depth: int) -> torch.nn.Module:
    return diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=depth, num_single_layers=2 * depth, num_attention_heads=24, attention_head_dim=24,
        joint_attention_dim=TEXT_WIDTH, pooled_projection_dim=64, axes_dims_rope=(8, 8, 8),
    )  # fmt: skip


def flux_conditions(batch: int) -> Conditions:
    return {**text_of(96)(batch), "pooled_projections": torch.randn(batch, 64)}


def wan(depth: int) -> torch.nn.Module:
    return diffusers.WanTransformer3DModel(
        num_layers=depth, num_attention_heads=20, attention_head_dim=16, in_channels=4, out_channels=4, ffn_dim=864,
        text_dim=TEXT_WIDTH, freq_dim=64,
    )  # fmt: skip


def zimage(depth: int) -> torch.nn.Module:
    return diffusers.ZImageTransformer2DModel(
        in_channels=4, dim=480, n_layers=depth, n_refiner_layers=1, n_heads=30, n_kv_heads=30, cap_feat_dim=TEXT_WIDTH,
        axes_dims=[4, 6, 6], axes_lens=[256, 64, 64],
    )  # fmt: skip


def pixart(depth: int) -> torch.nn.Module:
    return diffusers.PixArtTransformer2DModel(
        num_layers=depth, num_attention_heads=16, attention_head_dim=16, cross_attention_dim=256, sample_size=64,
        caption_channels=TEXT_WIDTH, in_channels=4, use_additional_conditions=False,
    )  # fmt: skip


def pixart_conditions(batch: int) -> Conditions:
    return {
        **text_of(68)(batch),
        "resolution": torch.full((batch, 2), 512.0),
        "aspect_ratio": torch.ones(batch, 1),
    }


SDXL_CHANNELS = 64


def unet(_depth: int) -> torch.nn.Module:
    return sdxl.build(SDXL_CHANNELS)


def unet_case(batch: int) -> Case:
    """1024², 320 channels and latents of 128 × 128 in the real one. A forward has 180 times fewer FLOPs than its 6.8
    TFLOP, and an exchange 36 times fewer bytes."""
    latents = (batch, 4, 48, 48)
    return Case(unet, 1, 180 / 36, latents, sdxl.conditions, comfyui=True)


CASES = {
    # 1024², 19 + 38 blocks, 24 heads of 128 and 4608 tokens in the real one, 512 of them text.
    "Flux-shaped": Case(flux, 1, 16 / 3, (1, 4, 48, 64), flux_conditions),
    # 81 frames of 832 × 480, 40 blocks, 40 heads of 128 and 32760 tokens in the real one.
    "Wan-shaped": Case(wan, 2, 16, (1, 4, 8, 32, 32), text_of(32)),
    # 1024², 30 blocks beside 2 of each refiner, 30 heads of 128 and 4224 tokens in the real one, 128 of them text.
    "Z-Image-shaped": Case(zimage, 5, 8, (1, 4, 44, 44), text_of(32), 0.5),
    # 1024², cond and uncond, 28 blocks, 16 heads of 72 and 4096 tokens in the real one.
    "PixArt-shaped, guided": Case(pixart, 3, 4.5, (2, 4, 60, 60), pixart_conditions),
    "SDXL-shaped": unet_case(1),
    "SDXL-shaped, guided": unet_case(2),
}
# With a fifth of the real blocks.
DEPTHS = {"Flux-shaped": 4, "Wan-shaped": 8, "PixArt-shaped, guided": 8}
CASES |= {f"{name}, deep": replace(CASES[name], depth=depth, is_deep=True) for name, depth in DEPTHS.items()}
ONE = Method("one rank")
SYNCHRONOUS = "no overlap"
LOSSY = 0.1  # the tolerance of methods that change the result


def methods(case: Case, ranks: int) -> list[Method]:
    """All on so many ranks, that on one rank first."""
    heads = {"ulysses": ranks}
    found = [ONE, Method(f"ulysses {ranks}", heads), Method(f"ring {ranks}", {"ring": ranks})]
    if case.is_deep:
        stages = {"pipefusion": ranks, "sync_steps": 1}
        counts = (2 * ranks, 4 * ranks)
        named = {f"pipefusion {ranks}, {count} patches": {**stages, "patches": count} for count in counts}
        return [*found, *(Method(name, plan, tolerance=LOSSY) for name, plan in named.items())]
    if ranks == 4:
        found.append(Method("ulysses 2, ring 2", {"ulysses": 2, "ring": 2}))
    if case.guided:
        found.append(Method("cfg 2" if ranks == 2 else "cfg 2, ulysses 2", {"cfg": 2, "ulysses": ranks // 2}))
    if case.guided and case.comfyui and ranks > 2:
        found.append(Method("cfg 2", {"cfg": 2, "dp": ranks // 2}))  # the other ranks have nothing to do
    if case.build is not unet:
        found.append(Method(INT4, heads | {"exchange_dtype": INT4}, tolerance=LOSSY))
    if not case.comfyui:
        found.append(Method("diffusers", peer=True))
    return [*found, Method(SYNCHRONOUS, heads, overlap=False)]
