"""Sends changes of a model's weights to the ranks, where ComfyUI's own code applies them.

ComfyUI's patch is (strength, value, strength of the weight itself, (dim, start, length) or None, function or None). The
value is an adapter (LoRA, DoRA, LoHa, LoKr, OFT, …), or (kind, tensors) like a difference, or a tuple of one tensor.
In a model merge it is a list: a weight of another model, then that model's changes of it. Such a weight does not
travel. The ranks read it from its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..wire.protocol import Header
from ..wire.tensors import Tensors, UnsendableError
from ..wire.tree import pack, unpack
from .model import map_model
from .source import HostSource

PREFIX = "diffusion_model."  # the patcher's names are the module's with this prefix
KINDS = ((), ("diff",), ("set",))  # of changes by tensors, as ComfyUI names them; without a name, it is a difference
MERGE = "merge"  # in place of an adapter's class
# Finds the file, the name and the changes of another model's weight in ComfyUI's list.
FindMerged = Callable[[list], tuple[HostSource, str, Sequence[tuple]]]


@dataclass(eq=False)
class MergedFile:
    """The file of another model. It is mapped while its weights are read. copy: see `bring_copy`."""

    source: HostSource
    copy: Any = None
    model: Any = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)

    def map(self) -> None:
        """Raises ModelFileError."""
        if self.model is None:
            self.model, _, self.dtypes = map_model(self.source)

    def unmap(self) -> None:
        self.model = None

    def read(self, name: str, like: torch.Tensor, **options: Any) -> torch.Tensor:
        """Returns the numbers of a weight, rounded to the dtype of the stock loader, on the device and in the dtype of
        another tensor. Raises ModelFileError."""
        from comfy.model_management import cast_to_device
        from comfy.model_patcher import get_key_weight

        self.map()
        weight, _, dequantise = get_key_weight(self.model, name)
        numbers = cast_to_device(weight, like.device, like.dtype, copy=True)
        numbers = dequantise(numbers, **options) if dequantise else numbers
        dtype = self.dtypes.get(name.removeprefix(PREFIX))
        return numbers.to(dtype).to(numbers.dtype) if dtype else numbers


def pack_patches(patches: Mapping[Any, Sequence[tuple]], find_merged: FindMerged) -> tuple[Header, Tensors]:
    """Packs a patcher's changes, by a weight's name. Returns fields of a PATCH request, and its tensors. Raises
    UnsendableError."""
    tensors: Tensors = {}
    files: list[HostSource] = []
    found = {name: pack_changes(name, name, changes, find_merged, tensors, files) for name, changes in patches.items()}
    return {"patches": found, "files": [each.to_json() for each in files]}, tensors


def pack_changes(
    name: str, path: str, changes: Sequence[tuple], find_merged: FindMerged, tensors: Tensors, files: list[HostSource]
) -> list[list[Any]]:
    """Packs the changes of a weight. Adds their tensors, under paths that begin with `path`, and other models' files.

    Of each: its strength; its adapter's class, MERGE, or nothing; its value; the strength of the weight itself; the
    part that changes; and whether the halves of the change swap places. The value is packed as `tree.py` does. Of a
    merge, it is the number of the other model's file, the name of its weight, and that model's changes of it."""
    import comfy.utils
    from comfy.weight_adapter import WeightAdapterBase, adapters

    found = []
    value: Any
    for index, (strength, value, strength_model, offset, function) in enumerate(changes):
        if function not in (None, comfy.utils.swap_scale_shift):
            raise UnsendableError(f"The change of {name} uses a function, which cannot be sent to the ranks.")
        place = f"{path}.{index}"
        kind, content = (type(value).__name__, value.weights) if isinstance(value, WeightAdapterBase) else ("", value)
        if kind and type(value) not in adapters or isinstance(value, tuple) and value[:-1] not in KINDS:
            kind = kind or content[0]
            raise UnsendableError(f"The change of {name} is of the kind {kind}, which the ranks do not know.")
        if isinstance(value, list):
            source, other, more = find_merged(value)
            if source not in files:
                files.append(source)
            packed = pack_changes(other, place, more, find_merged, tensors, files)
            kind, packed = MERGE, [files.index(source), other, packed]
        else:
            packed = pack(content, place, tensors)
        swaps = function is not None
        found.append([float(strength), kind, packed, float(strength_model), offset and [*offset], swaps])
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
            # With the function, ComfyUI makes numbers of the weight as it computes with it. Only then it is read.
            weight = torch.empty(0), partial(files[file].read, name)
            found = [weight, *(unpack_change(*each) for each in changes)]
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
