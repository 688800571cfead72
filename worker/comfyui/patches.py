"""Sends changes of a model's weights to the ranks, where ComfyUI's own code applies them.

ComfyUI's patch is (strength, value, strength of the weight itself, (dim, start, length) or None, function or None). The
value is an adapter (LoRA, DoRA, LoHa, LoKr, OFT, …), or (kind, tensors) like a difference, or a tuple of one tensor.
In a model merge it is a list: a weight of another model, then that model's changes of it. Such a weight does not
travel. The ranks read it from its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from ..wire.tensors import Tensors, UnsendableError
from ..wire.tree import pack, unpack
from .merges import MergedChanges, MergedFile, MergedWeight
from .source import HostSource

KINDS = ((), ("diff",), ("set",))  # of changes by tensors, as ComfyUI names them; without a name, it is a difference


@dataclass(frozen=True)
class OtherWeight:
    """A weight of another model. file: the number of its file in the request. patches: the other model's changes."""

    file: int
    name: str
    patches: tuple[Patch, ...]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> OtherWeight:
        return cls(**{**fields, "patches": tuple(map(Patch.from_json, fields["patches"]))})


@dataclass(frozen=True)
class Patch:
    """One change of a weight.

    name: of the weight. adapter: the adapter's class; empty for a difference. value: the adapter's weights, or (kind,
    tensors), packed. offset: the part of the weight that changes. swaps: whether the halves of the change swap places.
    other: of a merge, in place of the value.
    """

    name: str
    strength: float
    strength_model: float
    adapter: str
    value: Any
    offset: tuple[int, int, int] | None = None
    swaps: bool = False
    other: OtherWeight | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Patch:
        offset, other = fields["offset"], fields["other"]
        return cls(**{**fields, "offset": offset and tuple(offset), "other": other and OtherWeight.from_json(other)})


class PackedPatches(NamedTuple):
    """patches: of a model. tensors: that they name. files: of other models, in the order of their numbers."""

    patches: list[Patch]
    tensors: Tensors
    files: list[HostSource]

    def to_json(self) -> dict[str, Any]:
        return {"patches": [asdict(each) for each in self.patches], "files": [each.to_json() for each in self.files]}

    def add(self, name: str, path: str, changes: Sequence[tuple]) -> list[Patch]:
        """Packs the changes of a weight, and their tensors under paths that begin with `path`."""
        return [self.pack(name, f"{path}.{place}", *change) for place, change in enumerate(changes)]

    def pack(
        self, name: str, path: str, strength: float, value: Any, strength_model: float, offset: Any, function: Any
    ) -> Patch:
        import comfy.utils
        from comfy.weight_adapter import WeightAdapterBase, adapters

        if function not in (None, comfy.utils.swap_scale_shift):
            raise UnsendableError(f"The change of {name} uses a function, which cannot be sent to the ranks.")
        is_adapter = isinstance(value, WeightAdapterBase)
        if is_adapter and type(value) not in adapters or isinstance(value, tuple) and value[:-1] not in KINDS:
            kind = type(value).__name__ if is_adapter else value[0]
            raise UnsendableError(f"The change of {name} is of the kind {kind}, which the ranks do not know.")
        parts = value.weights if isinstance(value, WeightAdapterBase) else value
        other = None
        if isinstance(value, MergedWeight):
            if value.source not in self.files:
                self.files.append(value.source)
            nested = tuple(self.add(value.name, path, value.changes))
            parts, other = None, OtherWeight(self.files.index(value.source), value.name, nested)
        return Patch(
            name=name,
            strength=float(strength),
            strength_model=float(strength_model),
            adapter=type(value).__name__ if is_adapter else "",
            value=pack(parts, path, self.tensors),
            offset=offset and tuple(offset),
            swaps=function is not None,
            other=other,
        )


def pack_patches(patches: Mapping[Any, Sequence[tuple]]) -> PackedPatches:
    """Packs a patcher's list for the ranks. In a merge, MergedWeights stand for ComfyUI's lists. Raises
    UnsendableError."""
    found = PackedPatches([], {}, [])
    for name, changes in patches.items():
        found.patches.extend(found.add(name, name, changes))
    return found


def unpack_patches(patches: Sequence[Patch], tensors: Tensors, files: Sequence[MergedFile]) -> dict[str, list[tuple]]:
    """The inverse of `pack_patches`, in the ranks: the list of ComfyUI's ModelPatcher."""
    import comfy.utils
    from comfy.weight_adapter import adapters

    classes: dict[str, Callable[..., Any]] = {each.__name__: each for each in adapters}
    found: dict[str, list[tuple]] = {}
    for patch in patches:
        parts = unpack(patch.value, tensors)
        value = classes[patch.adapter](set(), parts) if patch.adapter else parts
        if other := patch.other:
            nested = unpack_patches(other.patches, tensors, files).get(other.name, [])
            value = MergedChanges(files[other.file], other.name, nested)
        function = comfy.utils.swap_scale_shift if patch.swaps else None
        found.setdefault(patch.name, []).append((patch.strength, value, patch.strength_model, patch.offset, function))
    return found


def set_patches(
    patcher: Any, patches: Sequence[Patch], tensors: Tensors, files: Sequence[MergedFile], device: torch.device
) -> list[torch.Tensor]:
    """Replaces the patches of ComfyUI's ModelPatcher.

    It applies them when it loads the model again. GGUF weights stay packed, so their patches are applied each time a
    layer dequantises them. Returns the tensors that stay on the device for that.
    """
    from comfy.model_patcher import LowVramPatch

    from .gguf_layout import is_packed

    weights = dict(patcher.model.named_parameters(remove_duplicate=False))  # a pipeline stage has only its own
    on_use = {patch.name for patch in patches if is_packed(weights.get(patch.name))}
    if on_use:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    found = unpack_patches(patches, tensors, files)
    patcher.patches = {name: changes for name, changes in found.items() if name not in on_use}
    patcher.weight_wrapper_patches = {name: [LowVramPatch(name, found)] for name in on_use}
    return list(tensors.values()) if on_use else []


def patch_weight(patcher: Any, name: str, weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Applies ComfyUI's ModelPatcher's patches to a copy of a weight, and returns it. The model's weight stays."""
    import comfy.utils

    before = comfy.utils.get_attr(patcher.model, name)
    comfy.utils.set_attr_param(patcher.model, name, weight)
    try:
        patcher.patch_weight_to_device(name, device)
        return comfy.utils.get_attr(patcher.model, name)
    finally:
        patcher.backup.pop(name, None)
        comfy.utils.set_attr(patcher.model, name, before)


def restore_weight(patcher: Any, name: str, weight: torch.Tensor) -> None:
    """Sets the model's weight to this value."""
    import comfy.utils

    comfy.utils.set_attr_param(patcher.model, name, weight)


def offload_patched(patcher: Any, in_file: Mapping[str, torch.Tensor]) -> None:
    """Moves the weights that patches will change off the device: into the file's pages, which ranks share, or into RAM.

    The ModelPatcher changes one weight after another, and keeps all originals until the last: on the device, that would
    be the model twice.
    """
    import comfy.utils

    weights = dict(patcher.model.named_parameters(remove_duplicate=False))
    for name in patcher.patches.keys() & weights.keys():
        if weights[name].device != patcher.offload_device:
            original = in_file.get(name)
            if original is None:
                original = weights[name].to(patcher.offload_device)
            comfy.utils.set_attr_param(patcher.model, name, original)
