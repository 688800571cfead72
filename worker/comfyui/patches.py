"""What ComfyUI's nodes change of a model's weights, as it goes to the ranks, where ComfyUI's own code applies it.

A patch of ComfyUI's is (strength, what, strength of the weight itself, (dim, start, length) or None, function or None);
what is an adapter (LoRA, DoRA, LoHa, LoKr, OFT, …), or (kind, tensors) like a difference, or a tuple of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..wire.tensors import Tensors, UnsendableError
from ..wire.tree import pack, unpack


@dataclass(frozen=True)
class Patch:
    """One change. name: of the weight. adapter: its class, empty for a difference; value: its weights, or (kind,
    tensors), packed. offset: the part of the weight that it is for. swaps: whether the halves of it change places."""

    name: str
    strength: float
    strength_model: float
    adapter: str
    value: Any
    offset: tuple[int, int, int] | None = None
    swaps: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Patch:
        offset = fields["offset"]
        return cls(**{**fields, "offset": offset and tuple(offset)})


def packed(patches: Mapping[Any, Sequence[tuple]]) -> tuple[list[Patch], Tensors]:
    """A patcher's list as what goes to the ranks, and the tensors that it names. Raises UnsendableError."""
    import comfy.utils
    from comfy.weight_adapter import WeightAdapterBase

    found: list[Patch] = []
    tensors: Tensors = {}
    for name, entries in patches.items():
        for place, (strength, value, strength_model, offset, function) in enumerate(entries):
            if function not in (None, comfy.utils.swap_scale_shift):
                raise UnsendableError(f"The change of {name} has a function, which cannot be sent to the ranks.")
            is_adapter = isinstance(value, WeightAdapterBase)
            parts = value.weights if isinstance(value, WeightAdapterBase) else value
            found.append(
                Patch(
                    name=name,
                    strength=float(strength),
                    strength_model=float(strength_model),
                    adapter=type(value).__name__ if is_adapter else "",
                    value=pack(parts, f"{name}.{place}", tensors),
                    offset=offset and tuple(offset),
                    swaps=function is not None,
                )
            )
    return found, tensors


def applied(patches: Sequence[Patch], tensors: Tensors) -> dict[str, list[tuple]]:
    """`packed`'s inverse, in the ranks: the list of ComfyUI's ModelPatcher."""
    import comfy.utils
    from comfy.weight_adapter import adapters

    classes: dict[str, Callable[..., Any]] = {each.__name__: each for each in adapters}
    found: dict[str, list[tuple]] = {}
    for patch in patches:
        parts = unpack(patch.value, tensors)
        value = classes[patch.adapter](set(), parts) if patch.adapter else parts
        function = comfy.utils.swap_scale_shift if patch.swaps else None
        found.setdefault(patch.name, []).append((patch.strength, value, patch.strength_model, patch.offset, function))
    return found


def put_on(patcher: Any, patches: Sequence[Patch], tensors: Tensors, device: torch.device) -> list[torch.Tensor]:
    """Has ComfyUI's ModelPatcher apply these, in place of others: to weights in blocks of GGUF's, which are not made
    anew, whenever a layer dequantises them; to all others when it loads the model again. Returns the tensors that stay
    on the device for that."""
    from comfy.model_patcher import LowVramPatch

    from .gguf_layout import is_packed

    held = dict(patcher.model.named_parameters(remove_duplicate=False))  # of a pipeline stage, its own
    on_use = {patch.name for patch in patches if is_packed(held.get(patch.name))}
    if on_use:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    found = applied(patches, tensors)
    patcher.patches = {name: changes for name, changes in found.items() if name not in on_use}
    patcher.weight_wrapper_patches = {name: [LowVramPatch(name, found)] for name in on_use}
    return list(tensors.values()) if on_use else []


def patched(patcher: Any, name: str, weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What ComfyUI's ModelPatcher makes of a weight with the patches that it has for it. The model's own stays."""
    import comfy.utils

    held = comfy.utils.get_attr(patcher.model, name)
    comfy.utils.set_attr_param(patcher.model, name, weight)
    try:
        patcher.patch_weight_to_device(name, device)
        return comfy.utils.get_attr(patcher.model, name)
    finally:
        patcher.backup.pop(name, None)
        comfy.utils.set_attr(patcher.model, name, held)


def restore(patcher: Any, name: str, weight: torch.Tensor) -> None:
    """Gives the model's weight this value."""
    import comfy.utils

    comfy.utils.set_attr_param(patcher.model, name, weight)


def send_away(patcher: Any, in_file: Mapping[str, torch.Tensor]) -> None:
    """Has the weights that are to be made anew wait where a ModelPatcher keeps what it puts back: in the file's pages,
    which ranks share, or in RAM.

    It makes one after the other, and holds what they were until the last: on the device, that would be the model twice.
    """
    import comfy.utils

    held = dict(patcher.model.named_parameters(remove_duplicate=False))
    for name in patcher.patches.keys() & held.keys():
        if held[name].device != patcher.offload_device:
            away = in_file.get(name)
            comfy.utils.set_attr_param(
                patcher.model, name, held[name].to(patcher.offload_device) if away is None else away
            )
