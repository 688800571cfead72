"""How rounding queries, keys, values and results changes a whole sampling, by format, built or not.

python -m tests.benchmarks.exchange.formats [--models demo flux wan] [--steps 20]

One process; attention's inputs and result are rounded as if they had travelled. A format is a number, a block that
shares a scale, and the scale's dtype. "differences" travel against what arrived the step before, so errors do not add
up; a first step travels in int8. "k, v" sends only these so, and the others in int8. Bits are those of a number with
its share of the scale.

demo is the trained demo model with guidance 3. flux and wan have random weights and heads of 128 numbers, as the real
ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from tests.benchmarks.exactness import head, row
from tests.benchmarks.pipefusion_demo import GUIDANCE, MODEL, relative_error

FLOAT8 = torch.float8_e4m3fn
NAMES = ("q", "k", "v", "result")
PICTURES = 8  # of the demo model
TINY = 1e-30


class Format(NamedTuple):
    """bits: of a number; 8 in float8 if `is_float`, else an integer. block: the most numbers that share a scale; 0 for
    the whole head. scale: bf16, or e8m0, which is a power of two in one byte."""

    bits: int
    block: int
    scale: str = "bf16"
    is_float: bool = False

    def __str__(self) -> str:
        block = f"blocks of {self.block}" if self.block else "whole heads"
        return f"{'fp8' if self.is_float else f'int{self.bits}'}, {block}, {self.scale}"

    def length(self, size: int) -> int:
        """The numbers of a block in a head of this size."""
        most = self.block or size
        return next(size // count for count in range(1, size + 1) if size % count == 0 and size <= most * count)

    def bits_of(self, size: int) -> float:
        return self.bits + (16 if self.scale == "bf16" else 8) / self.length(size)

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """What arrives of these values."""
        largest = 448 if self.is_float else 2 ** (self.bits - 1) - 1
        blocks = values.unflatten(-1, (-1, self.length(values.shape[-1])))
        scale = (blocks.abs().amax(-1, keepdim=True) / largest).clamp_min(TINY)
        scale = scale.bfloat16().float() if self.scale == "bf16" else scale.log2().ceil().exp2()
        scaled = (blocks / scale).clamp(-largest, largest)
        numbers = scaled.to(FLOAT8).float() if self.is_float else scaled.round()
        return (numbers * scale).flatten(-2)


INT8, FP8 = Format(8, 64), Format(8, 64, is_float=True)
FORMATS = (
    Format(8, 0, is_float=True), FP8, Format(8, 32, "e8m0", is_float=True), Format(8, 0), INT8, Format(8, 32),
    Format(8, 32, "e8m0"), Format(6, 64), Format(6, 32),
)  # fmt: skip
DIFFERENCES = (Format(8, 64), Format(6, 64), Format(5, 64), Format(4, 64), Format(3, 32))


class Wire(TorchFunctionMode):
    """While entered, what self-attention takes and returns is rounded, in one step of a sampling after another.
    names: what travels as differences. size: of a head."""

    def __init__(self, whole: Format | None, differences: Format | None = None, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.whole, self.differences, self.names = whole, differences, names
        self.arrived: dict[tuple[int, str], torch.Tensor] = {}
        self.calls = self.size = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = [*args[:3], *(kwargs.pop(name) for name in ("query", "key", "value")[len(args) :])]
        if given[0].shape[2] != given[1].shape[2]:
            return func(*given, *args[3:], **kwargs)
        self.calls, self.size = self.calls + 1, given[0].shape[3]
        given = [self.send(name, each) for name, each in zip(NAMES, given, strict=False)]
        return self.send(NAMES[-1], func(*given, *args[3:], **kwargs))

    def send(self, name: str, values: torch.Tensor) -> torch.Tensor:
        if self.whole is None:
            return values
        before = self.arrived.get((self.calls, name)) if name in self.names else None
        if before is None or self.differences is None:
            now = self.whole.rounded(values)
        else:
            now = before + self.differences.rounded(values - before)
        self.arrived[self.calls, name] = now
        return now

    def bits(self) -> float:
        """Of a number in the mean of what travels, after the first step."""
        assert self.whole
        share = len(self.names) / len(NAMES)
        of_differences = self.differences.bits_of(self.size) if self.differences else 0.0
        return of_differences * share + self.whole.bits_of(self.size) * (1 - share)


class Model(NamedTuple):
    """forward: takes latents and a timestep."""

    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    latents: torch.Tensor
    scheduler: Any

    @torch.inference_mode()
    def sample(self, steps: int, wire: Wire) -> torch.Tensor:
        self.scheduler.set_timesteps(steps)
        latents = self.latents
        for timestep in self.scheduler.timesteps:
            wire.calls = 0
            with wire:
                prediction = self.forward(latents, timestep)
            latents = self.scheduler.step(prediction, timestep, latents, return_dict=False)[0]
        return latents


def demo() -> Model:
    options = {"torch_dtype": torch.float32, "low_cpu_mem_usage": False}
    model = diffusers.DiTTransformer2DModel.from_pretrained(MODEL / "transformer", **options).eval()
    classes = model.config["num_embeds_ada_norm"]
    labels = torch.cat([torch.arange(PICTURES) * classes // PICTURES, torch.full((PICTURES,), classes)])

    def forward(latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        given = {"timestep": timestep.expand(2 * PICTURES), "class_labels": labels}
        cond, uncond = model(torch.cat([latents] * 2), **given).sample[:, : latents.shape[1]].chunk(2)
        return uncond + GUIDANCE * (cond - uncond)

    side = model.config["sample_size"]
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(Path(MODEL) / "scheduler")
    return Model(forward, torch.randn(PICTURES, model.config["in_channels"], side, side), scheduler)


def flux() -> Model:
    model = diffusers.FluxTransformer2DModel(
        in_channels=64, num_layers=2, num_single_layers=4, num_attention_heads=6, attention_head_dim=128,
        joint_attention_dim=256, pooled_projection_dim=64, axes_dims_rope=(16, 56, 56),
    ).eval()  # fmt: skip
    side, text = 16, 32
    places = torch.stack([torch.zeros(side, side), *torch.meshgrid([torch.arange(side)] * 2, indexing="ij")], -1)
    inputs = {
        "encoder_hidden_states": torch.randn(1, text, 256), "pooled_projections": torch.randn(1, 64),
        "img_ids": places.flatten(0, 1).float(), "txt_ids": torch.zeros(text, 3),
    }  # fmt: skip
    forward = lambda latents, timestep: model(latents, timestep=timestep.view(1) / 1000, **inputs).sample  # noqa: E731
    return Model(forward, torch.randn(1, side * side, 64), diffusers.FlowMatchEulerDiscreteScheduler())


def wan() -> Model:
    model = diffusers.WanTransformer3DModel(
        num_layers=4, num_attention_heads=6, attention_head_dim=128, in_channels=16, out_channels=16, ffn_dim=1536,
        text_dim=256, freq_dim=64,
    ).eval()  # fmt: skip
    text = torch.randn(1, 32, 256)
    forward = lambda latents, timestep: model(latents, timestep.view(1), text).sample  # noqa: E731
    return Model(forward, torch.randn(1, 16, 3, 20, 20), diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0))


MODELS = {"demo": demo, "flux": flux, "wan": wan}


def wires() -> dict[str, Callable[[], Wire]]:
    found = {str(each): lambda each=each: Wire(each) for each in FORMATS}
    for names in (("k", "v"), NAMES):
        for each in DIFFERENCES:
            words = f"differences of {', '.join(names)}: {each}"
            found[words] = lambda each=each, names=names: Wire(INT8, each, names)
    return found


def main() -> int:
    """Prints a table a model."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exchange.formats")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.models:
        torch.manual_seed(0)
        model = MODELS[name]()
        exact = model.sample(arguments.steps, Wire(None))
        print(f"\n{name}, {arguments.steps} steps\n\n{head('format', 'bits', 'relative error')}", flush=True)
        for words, make in wires().items():
            wire = make()
            error = relative_error(model.sample(arguments.steps, wire), exact)
            print(row(words, f"{wire.bits():.2f}", f"{error:.1e}"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
