"""Adapters of each kind that ComfyUI loads, for the matrices and convolutions of a model's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK, SIZE = 4, 0.2
Tensors = dict[str, torch.Tensor]
Random = Callable[..., torch.Tensor]
Make = Callable[..., Tensors]


def low_rank(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    return {
        ".lora_up.weight": random(rows, RANK, *[1 for _ in window]),
        ".lora_down.weight": random(RANK, columns, *window),
    }


def with_middle(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    """Convolutions with a third matrix, as LoCon has them (CP decomposition)."""
    if not window:
        return low_rank(rows, columns, random=random)
    found = low_rank(rows, columns, *[1 for _ in window], random=random)
    return {**found, ".lora_mid.weight": random(RANK, RANK, *window)}


def products(rows: int, columns: int, *window: int, random: Random) -> Tensors:
    middle = {f".hada_t{place}": random(RANK, RANK, *window) for place in (1, 2)} if window else {}
    sides = {"a": (RANK, rows), "b": (RANK, columns)} if window else {"a": (rows, RANK), "b": (RANK, columns)}
    factors = {f".hada_w{place}_{side}": 2 * random(*shape) for place in (1, 2) for side, shape in sides.items()}
    return {**factors, **middle}


# By kind, how one layer's is made of the shape of its weight: names behind the layer's, and tensors.
ADAPTERS: dict[str, Make] = {
    "LoRA": low_rank,
    "LoCon": with_middle,
    "DoRA": lambda rows, columns, *window, random: {
        **low_rank(rows, columns, *window, random=random),
        ".dora_scale": 1 + random(rows, 1, *[1 for _ in window]).abs(),
    },
    "LoHa": products,
    "LoKr": lambda rows, columns, *window, random: {
        ".lokr_w1": random(4, 4), ".lokr_w2": random(rows // 4, columns // 4, *window)
    },
    "OFT": lambda rows, columns, *window, random: {".oft_blocks": random(rows // 16, 16, 16)},
    "BOFT": lambda rows, columns, *window, random: {
        ".oft_blocks": random(2, rows // 16, 16, 16), ".alpha": torch.tensor(4.0)
    },
    "GLoRA": lambda rows, columns, *window, random: {
        ".a1.weight": random(RANK, columns), ".a2.weight": random(columns, RANK),
        ".b1.weight": random(RANK, columns), ".b2.weight": random(rows, RANK),
    },
    "a difference": lambda rows, columns, *window, random: {
        ".diff": 0.3 * random(rows, columns, *window), ".diff_b": random(rows)
    },
    "weights": lambda rows, columns, *window, random: {".set_weight": 0.1 * random(rows, columns, *window)},
}  # fmt: skip


def own_names(layer: str) -> str:
    return f"diffusion_model.{layer}"


def make_lora(weights: Mapping[str, torch.Tensor], names: Callable[[str], str] = own_names) -> Tensors:
    """A LoRA for every matrix and convolution of these weights, of about a third of their size. names: of a layer."""
    generator, tensors = torch.Generator().manual_seed(4), {}
    for key, weight in sorted(weights.items()):
        if weight.ndim not in (2, 4) or not key.endswith(".weight"):
            continue
        name, size = names(key.removesuffix(".weight")), (float(weight.std()) / 3 / RANK**0.5) ** 0.5
        up, down = (len(weight), RANK, *[1] * (weight.ndim - 2)), (RANK, *weight.shape[1:])
        for end, shape in {"B": up, "A": down}.items():
            tensors[f"{name}.lora_{end}.weight"] = size * torch.randn(shape, generator=generator)
    return tensors


def make_adapter(kind: str, weights: Mapping[str, torch.Tensor]) -> Tensors:
    """One for every convolution and matrix of the blocks that it fits, by kohya's names."""
    generator, tensors = torch.Generator().manual_seed(4), {}

    def random(*shape: int) -> torch.Tensor:
        return SIZE * torch.randn(*shape, generator=generator)

    for key, weight in weights.items():
        is_layer = key.endswith(".weight") and "_block" in key and weight.ndim in (2, 4)
        if is_layer and not any(size % 16 for size in weight.shape[:2]):
            name = "lora_unet_" + key.removesuffix(".weight").replace(".", "_")
            made = ADAPTERS[kind](*weight.shape, random=random)
            tensors |= {name + end: tensor.contiguous() for end, tensor in made.items()}
    return tensors


def write_adapter(kind: str, model: Path, folder: Path) -> str:
    """Returns the name of the file."""
    save_file(make_adapter(kind, load_file(model)), folder / f"{kind}.safetensors")
    return f"{kind}.safetensors"
