"""Sends changes of a model's weights to the ranks, where ComfyUI's own code applies them.

ComfyUI's patch is (strength, value, strength of the weight itself, (dim, start, length) or None, function or None). The
value is an adapter (LoRA, DoRA, LoHa, LoKr, OFT, …), or (kind, tensors) like a difference, or a tuple of one tensor.
In a model merge it is a list: a weight of another model, then that model's changes of it. Such a weight does not
travel. The ranks read it from its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..wire.tensors import Tensors, UnsendableError
from ..wire.tree import pack, unpack
from .merges import MergedFile, MergedWeight
from .source import HostSource

KINDS = ((), ("diff",), ("set",))  # of changes by tensors, as ComfyUI names them; without a name, it is a difference
MERGE = "merge"  # in place of an adapter's class


class PackedPatches(NamedTuple):
    """patches: a patcher's list, by a weight's name, see `pack`. tensors: that it names. files: of other models, in the
    order of their numbers."""

    patches: dict[str, list]
    tensors: Tensors
    files: list[HostSource]

    def to_json(self) -> dict[str, Any]:
        return {"patches": self.patches, "files": [each.to_json() for each in self.files]}

    def add(self, name: str, path: str, changes: Sequence[tuple]) -> list[list]:
        """Packs the changes of a weight, and their tensors under paths that begin with `path`."""
        return [self.pack(name, f"{path}.{index}", *change) for index, change in enumerate(changes)]

    def pack(
        self, name: str, path: str, strength: float, value: Any, strength_model: float, offset: Any, function: Any
    ) -> list[Any]:
        """Packs one of ComfyUI's patches as JSON: its strength; its adapter's class, MERGE, or nothing; its value; the
        strength of the weight itself; the part that changes; and whether the halves of the change swap places. The
        value is packed as `tree.py` does. Of a merge, it is the number of the other model's file, the name of its
        weight, and that model's changes of it."""
        import comfy.utils
        from comfy.weight_adapter import WeightAdapterBase, adapters

        if function not in (None, comfy.utils.swap_scale_shift):
            raise UnsendableError(f"The change of {name} uses a function, which cannot be sent to the ranks.")
        is_adapter = isinstance(value, WeightAdapterBase)
        if is_adapter and type(value) not in adapters or isinstance(value, tuple) and value[:-1] not in KINDS:
            kind = type(value).__name__ if is_adapter else value[0]
            raise UnsendableError(f"The change of {name} is of the kind {kind}, which the ranks do not know.")
        if isinstance(value, MergedWeight):
            if value.source not in self.files:
                self.files.append(value.source)
            kind = MERGE
            packed = [self.files.index(value.source), value.name, self.add(value.name, path, value.changes)]
        else:
            kind = type(value).__name__ if is_adapter else ""
            packed = pack(value.weights if isinstance(value, WeightAdapterBase) else value, path, self.tensors)
        return [float(strength), kind, packed, float(strength_model), offset and [*offset], function is not None]


def pack_patches(patches: Mapping[Any, Sequence[tuple]]) -> PackedPatches:
    """Packs a patcher's list for the ranks. In a merge, MergedWeights stand for ComfyUI's lists. Raises
    UnsendableError."""
    found = PackedPatches({}, {}, [])
    for name, changes in patches.items():
        found.patches[name] = found.add(name, name, changes)
    return found


def unpack_patches(
    patches: Mapping[str, Sequence[Sequence]], tensors: Tensors, files: Sequence[MergedFile]
) -> dict[str, list[tuple]]:
    """The inverse of `pack_patches`, in the ranks: the list of ComfyUI's ModelPatcher."""
    import comfy.utils
    from comfy.weight_adapter import adapters

    classes: dict[str, Callable[..., Any]] = {each.__name__: each for each in adapters}

    def unpack_change(strength: float, kind: str, value: Any, own: float, offset: Any, swaps: bool) -> tuple:
        if kind == MERGE:
            file, name, changes = value
            found = files[file].merge(name, [unpack_change(*each) for each in changes])
        else:
            parts = unpack(value, tensors)
            found = classes[kind](set(), parts) if kind else parts
        return strength, found, own, offset and tuple(offset), comfy.utils.swap_scale_shift if swaps else None

    return {name: [unpack_change(*each) for each in changes] for name, changes in patches.items()}


def set_patches(
    patcher: Any,
    patches: Mapping[str, Sequence[Sequence]],
    tensors: Tensors,
    files: Sequence[MergedFile],
    device: torch.device,
) -> list[torch.Tensor]:
    """Replaces the patches of ComfyUI's ModelPatcher.

    It applies them when it loads the model again. GGUF weights stay packed, so their patches are applied each time a
    layer dequantises them. Returns the tensors that stay on the device for that.
    """
    from comfy.model_patcher import LowVramPatch

    from .gguf_layout import is_packed

    weights = dict(patcher.model.named_parameters(remove_duplicate=False))  # a pipeline stage has only its own
    on_use = {name for name in patches if is_packed(weights.get(name))}
    if on_use:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    found = unpack_patches(patches, tensors, files)
    patcher.patches = {name: changes for name, changes in found.items() if name not in on_use}
    patcher.weight_wrapper_patches = {name: [LowVramPatch(name, found)] for name in on_use}
    return list(tensors.values()) if on_use else []


def patch_weight(patcher: Any, name: str, weight: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Applies ComfyUI's ModelPatcher's patches to a copy of a weight, and returns it. The model's weight stays."""
    import comfy.utils

    before = comfy.utils.set_attr_param(patcher.model, name, weight)
    try:
        return patcher.patch_weight_to_device(name, device, return_weight=True)
    finally:
        comfy.utils.set_attr(patcher.model, name, before)


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
