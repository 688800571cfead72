"""What ComfyUI's LoRA nodes ask of the weights, as the engine's additions to its parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import comfy.utils
import torch
from comfy.weight_adapter import LoRAAdapter, WeightAdapterBase

from ...parallel_backend.weights.adapters import Addition
from ...worker.wire.protocol import Header
from ...worker.wire.tensors import Tensors
from ..errors import Refused
from .host_names import HostNames
from .remote_weights import Patches

PREFIX = "diffusion_model."
FORMATS = {"loha": "a LoHa", "lokr": "a LoKr", "oft": "an OFT", "boft": "a BOFT", "glora": "a GLoRA"}

# ComfyUI's own: the name in its module, alone or with (dim, start, length) and a function of the difference.
PatchKey = str | tuple


def accept(names: HostNames, patches: Mapping[PatchKey, Any], strength: float) -> dict[PatchKey, Any]:
    """Those of the patches that are for this model, all of which can be applied.

    Raises Refused for a kind that cannot be, for one that does not fit, and where none is for this model.
    """
    own = {key: value for key, value in patches.items() if name_of(key) in names.shapes}
    refused = sorted({words for key, value in own.items() if (words := why_refused(key, value))})
    if refused:
        raise Refused(
            f"The parallel model cannot apply {' or '.join(refused)}; it takes plain LoRA, and differences of weights.",
            "Remove that node, or use the stock loader.",
        )
    if not own and strength:
        raise none_applied()
    for key, value in own.items():
        list(additions_of(names, name_of(key), (strength, value, 1.0, *cut_of(key)), ""))
    unknown = sum(name_of(key) not in names.shapes for key in patches if name_of(key, "").startswith(PREFIX))
    logging.info(
        "[ParallelDiT] LoRA at strength %g: %d keys applied, %d unknown, besides those that ComfyUI names",
        *(strength, len(own), unknown),
    )
    return own


def none_applied() -> Refused:
    return Refused(
        "None of the LoRA's keys is a weight of the parallel model, so 0 would be applied: the LoRA is for another "
        "model.",
        "Remove that node; if only its text-encoder part is wanted, set strength_model to 0.",
    )


def name_of(key: PatchKey, prefix: str = PREFIX) -> str:
    """The name in ComfyUI's module that a patch is for, without the prefix."""
    return (key if isinstance(key, str) else key[0]).removeprefix(prefix)


def cut_of(key: PatchKey) -> tuple[tuple[int, int, int] | None, Callable | None]:
    """The range of a dim that a patch is for, and the function of the difference, as (dim, start, length) and None."""
    return (None, None) if isinstance(key, str) else (key[1], key[2] if len(key) > 2 else None)


def why_refused(key: PatchKey, value: Any) -> str | None:
    """The words for a patch of a kind that the ranks cannot apply."""
    offset, function = cut_of(key)
    if function not in (None, comfy.utils.swap_scale_shift) or (offset and offset[0] != 0):
        return "a LoRA for a part of a weight that is not a range of its rows"
    if isinstance(value, LoRAAdapter):
        _up, _down, _alpha, mid, dora_scale, reshape = value.weights
        features = {
            "a DoRA (LoRA with dora_scale)": dora_scale,
            "a LoCon with a middle weight (lora_mid)": mid,
            "a LoRA that changes the shape of weights (reshape_weight), as Flux.1 Canny and Depth have it": reshape,
        }
        return next((words for words, found in features.items() if found is not None), None)
    if isinstance(value, WeightAdapterBase):
        return FORMATS.get(value.name, f"the format {value.name!r}")
    if isinstance(value, list):
        return "a model merge"
    kind = "diff" if len(value) == 1 else value[0]
    if kind != "diff" or difference(value) is None:
        return f"a patch of the kind {kind!r}"
    return "a difference of another shape (pad_weight)" if len(value) == 2 and len(value[1]) > 1 else None


def difference(value: tuple) -> torch.Tensor | None:
    return value[0] if len(value) == 1 else value[1][0]


def additions(names: HostNames, patches: Patches) -> tuple[list[Header], Tensors]:
    """The engine's additions for a patcher's list, as JSON objects, and the tensors that they name."""
    found: list[Header] = []
    tensors: Tensors = {}
    for key, entries in patches.items():
        for index, patch in enumerate(entries):
            label = f"{name_of(key)}.{index}"
            found += [addition.to_json() for addition in additions_of(names, name_of(key), patch, label)]
            up, down, _alpha = factors(patch[1])
            tensors |= {f"{label}.up": up} | ({} if down is None else {f"{label}.down": down})
    return found, tensors


def factors(value: Any) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Up and down, or the whole difference without a down; and alpha over the rank."""
    if not isinstance(value, LoRAAdapter):
        whole: Any = difference(value)  # there, or `accept` has refused the patch
        return whole, None, 1.0
    up, down, alpha = value.weights[:3]
    return up, down, 1.0 if alpha is None else float(alpha) / down.shape[0]


def additions_of(names: HostNames, name: str, patch: tuple, label: str) -> Iterator[Addition]:
    """A patch of one of ComfyUI's tensors, by the parameters that its rows are in. Raises Refused if it does not
    fit."""
    strength, value, _strength_model, offset, function = patch
    up, down, alpha = factors(value)
    start, count = offset[1:] if offset else (0, names.shapes[name][0])
    check_shape(name, up, down, (count, *names.shapes[name][1:]))
    half = count // 2
    for first, up_row, length in ((start, half, half), (start + half, 0, half)) if function else ((start, 0, count),):
        for piece in names.pieces[name]:
            top, bottom = max(piece.host_row, first), min(piece.host_row + piece.count, first + length)
            if top < bottom:
                yield Addition(
                    parameter=piece.parameter,
                    row=piece.row + top - piece.host_row,
                    up_row=up_row + top - first,
                    count=bottom - top,
                    scale=strength * alpha,
                    up=f"{label}.up",
                    down=None if down is None else f"{label}.down",
                )


def check_shape(name: str, up: torch.Tensor, down: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    if down is None:
        fits, made = up.shape == shape, tuple(up.shape)
    else:
        fits = (len(up), up[0].numel(), down[0].numel()) == (shape[0], len(down), math.prod(shape[1:]))
        made = (len(up), down[0].numel())
    if not fits:
        raise Refused(
            f"The LoRA changes {name} by a weight of {made}, and the parallel model's has the shape {shape}: the LoRA "
            "is for another model.",
            "Remove that node.",
        )
