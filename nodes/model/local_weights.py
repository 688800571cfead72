"""The weights of a model in ComfyUI's process. Nodes that read or change weights need them, and samplings that cannot
run in the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import comfy.lora
import comfy.model_patcher
import comfy.utils
import torch
from comfy.quant_ops import QuantizedTensor

from ...parallel_backend.compat import buffers_of, parameters_of, version_of
from ...parallel_backend.weights.tensors import are_equal, list_plain_tensors
from ...worker.comfyui.model import cast_weights, map_model
from ...worker.comfyui.patches import PREFIX
from ...worker.comfyui.source import HostSource
from ...worker.errors import ModelFileError
from .deferred_weight import CPU, DeferredParameter, QuantisedParameter, Weight
from .weight_changes import Patches, as_difference, is_model_as_lora

WRITTEN = "weights that a node has written over"


class Own(NamedTuple):
    """A weight of the module as it was built. slots: the dict of the part that has it. key: in this dict. version: how
    often it was written to by then."""

    slots: dict[str, Any]
    key: str
    weight: Any
    version: int


class LocalWeights:
    """Fills a module on the meta device with the weights of its file, as the stock loader would, and empties it again.
    While the ranks have them, the module shows them with a patcher's changes, as ComfyUI's patcher would.

    No weight is in this process until somebody needs it. Then the pages of the file, `source`, are mapped.
    on_show: called with the module's weights that are others now, by name.
    patchable: the names of the weights that a usual LoRA can change. A hook can change others, too.
    """

    on_show: Callable[[Mapping[str, Any]], None]

    def __init__(self, module: torch.nn.Module, source: HostSource) -> None:
        self.source = source
        self.mapped: torch.nn.Module | None = None
        self.dtypes: dict[str, torch.dtype] = {}  # by name, of the weights that the file has in another dtype
        self.given: list[Weight] = []  # weights that somebody has read
        self.are_written = False  # by a node, as `find_written` has found
        self.parts = dict(module.named_modules())
        self.defer_weights()
        self.own = dict(self.list_own())
        self.filled: set[str] = set()  # names of those that the module has now
        self.shown: dict[str, DeferredParameter] = {}  # by name, those that it has with a patcher's changes
        self.patchable = {
            f"{PREFIX}{join_path(path, name)}"
            for path, part in self.parts.items()
            for name, _ in part.named_parameters(recurse=False)
            if not any(list(child.parameters()) for child in part.children())
        }

    def defer_weights(self) -> None:
        """Makes the module's weights, and its buffers without numbers, DeferredParameters. Quantised layers keep
        theirs, which refuse writes. Makes torch count what nodes write into other buffers."""
        copies: dict[torch.Tensor, torch.Tensor] = {}
        for path, part in self.parts.items():
            buffers = buffers_of(part)
            for name, buffer in buffers.items():
                if type(buffer) is torch.Tensor and buffer.is_meta:
                    buffers[name] = self.without_numbers(join_path(path, name), buffer)
            for slots in (vars(part), buffers):
                for name, value in slots.items():
                    if type(value) is torch.Tensor and value.is_inference() and not value.is_meta:
                        slots[name] = copies.setdefault(value, count_writes(value))
            for name, parameter in part.named_parameters(recurse=False):
                if type(parameter) is torch.nn.Parameter and type(parameter.data) is torch.Tensor:
                    part.register_parameter(name, self.without_numbers(join_path(path, name), parameter.data))
                elif isinstance(parameter, QuantizedTensor):
                    weight: Any = parameter
                    weight.__class__ = QuantisedParameter

    def list_own(self) -> Iterator[tuple[str, Own]]:
        """Yields the module's parameters and buffers by name, and its attributes that are tensors without numbers."""
        for path, part in self.parts.items():
            for slots in (parameters_of(part), buffers_of(part), vars(part)):
                for key, weight in slots.items():
                    if isinstance(weight, torch.Tensor) and (slots is not vars(part) or weight.is_meta):
                        version = version_of(weight) if type(weight) is torch.Tensor else 0
                        yield join_path(path, key), Own(slots, key, weight, version)

    def without_numbers(self, name: str, like: torch.Tensor, changes: Sequence[tuple] = ()) -> DeferredParameter:
        """like: has its shape and dtype. changes: see `Weight`."""
        deferred = DeferredParameter(like, requires_grad=False)
        deferred.weight = Weight(self, name, changes)
        return deferred

    def defer(self, name: str, present: Any) -> Any:
        """Returns a weight without its numbers. If a node has put the present weight into the module, returns that."""
        empty = self.empty_of(name)
        if empty is None or present is not self.own_weight(name) and name not in self.filled:
            return present
        if isinstance(empty, DeferredParameter):
            return empty
        return self.without_numbers(name, torch.empty(empty.shape, dtype=empty.dtype, device="meta"))

    def empty_of(self, name: str) -> Any:
        """Returns the module's weight without numbers. None if it has none of this name."""
        return self.own[name].weight if name in self.own else None

    def own_weight(self, name: str) -> Any:
        """Returns what the module has if no node has replaced it."""
        return self.shown.get(name, self.empty_of(name))

    @property
    def is_changed(self) -> bool:
        """Whether a node has written over weights. Then the ranks cannot run the model."""
        return self.are_written or any(each.is_written for each in self.given)

    def map_file(self) -> torch.nn.Module:
        """Returns a module of the same class whose weights are the file's pages. Writes change them in this process
        alone. Raises ModelFileError."""
        if self.mapped is None:
            model, _, self.dtypes = map_model(self.source)
            self.mapped = model.diffusion_model
        return self.mapped

    def read(self, name: str, changes: Sequence[tuple] = ()) -> torch.Tensor:
        """Returns a weight with its numbers, in the dtype of the stock loader. Torch counts what is written into it.
        changes: that ComfyUI's patcher makes of it. Raises ModelFileError."""
        mapped = self.map_file()
        if dtype := self.dtypes.pop(name, None):
            cast_weights(mapped, {name: dtype})
        weight = find_weight(mapped, name)
        if weight.is_inference() and type(weight.data) is torch.Tensor:
            weight = count_writes(weight)
            comfy.utils.set_attr(mapped, name, weight)
        if not changes:
            return weight
        model, key = torch.nn.Module(), PREFIX + name
        model.diffusion_model = mapped
        patcher = comfy.model_patcher.ModelPatcher(model, CPU, CPU)
        patcher.patches = {key: [*changes]}
        patched: Any = patcher.patch_weight_to_device(key, CPU, return_weight=True)
        return torch.nn.Parameter(patched, requires_grad=False)

    def bring(self) -> None:
        """Fills the module. Keeps weights that a node has put into it, and buffers that it has written into. Raises
        ModelFileError."""
        self.show({})
        mapped = self.map_file()
        cast_weights(mapped, self.dtypes)
        self.dtypes = {}
        for name, own in self.own.items():
            found = find_weight(mapped, name)
            is_as_built = type(own.weight) is not torch.Tensor or version_of(own.weight) == own.version
            if found is not None and own.slots.get(own.key) is own.weight and is_as_built:
                own.slots[own.key] = found
                self.filled.add(name)
        self.put_numbers()

    def put_numbers(self) -> None:
        """Gives numbers to aliases of weights that a node has put into the module. ComfyUI would fill them with
        zeros."""
        for part in self.parts.values():
            slots = parameters_of(part)
            for name, weight in slots.items():
                if isinstance(weight, DeferredParameter):
                    slots[name] = torch.nn.Parameter(weight.read(), requires_grad=False)

    def take_back_copies(self) -> None:
        """Puts the module's own weights where a node has put copies of them, as nodes do that change a weight for a
        call."""
        for name, own in self.own.items():
            weight, present = self.own_weight(name), own.slots.get(own.key)
            if present is not weight and isinstance(weight, DeferredParameter):
                numbers = present.read() if isinstance(present, DeferredParameter) else present
                if are_same(numbers, weight.read(), None):
                    own.slots[own.key] = weight

    def find_written(self) -> bool:
        """Compares the weights, without ComfyUI's patches of them, with the file's. Returns whether a node has written
        over them, or whether nobody can tell because the file is another now."""
        try:
            model, _, dtypes = map_model(self.source)
        except ModelFileError:
            model, dtypes = None, {}
        self.are_written = model is None or not all(
            are_same(own.slots.get(own.key), find_weight(model.diffusion_model, name), dtypes.get(name))
            for name, own in self.own.items()
            if name in self.filled
        )
        return self.are_written

    def keep_patchable(self, patches: Patches) -> Patches:
        """Returns the changes of those weights that ComfyUI patches when it loads a model."""
        return {name: changes for name, changes in patches.items() if name in self.patchable}

    def name_originals(self, patches: Patches, originals: Mapping[str, list]) -> dict[str, list]:
        """Returns the changes of hooks, in which a model as LoRA is a merge's change that names this model's weight.
        Leaves out what only hooks change, such as a table of positions, if the other model has the same numbers.
        originals: the model's own list for merges."""
        found = {}
        for name, changes in patches.items():
            if name in self.patchable:
                found[name] = [as_difference(each, originals[name][0]) for each in changes]
            elif not (name in originals and all(self.is_same(name, each) for each in changes)):
                found[name] = changes
        return found

    def is_same(self, name: str, change: tuple) -> bool:
        if not is_model_as_lora(change) or not name.startswith(PREFIX):
            return False
        _, (other,) = change[1]
        return are_same(other.cpu(), self.read(name.removeprefix(PREFIX)).cpu(), None)

    def show(self, patches: Patches) -> None:
        """Puts the weights with these changes into the module, and no others. Leaves those that a node has replaced. Of
        quantised weights, it shows those whose shape changes."""
        shown = {}
        for key, changes in patches.items():
            name = key.removeprefix(PREFIX)
            empty = self.empty_of(name)
            shape = comfy.lora.calculate_shape(changes, empty, key) if isinstance(empty, torch.nn.Parameter) else None
            if shape and (isinstance(empty, DeferredParameter) or shape != empty.shape):
                shown[name] = self.without_numbers(name, torch.empty(shape, dtype=empty.dtype, device="meta"), changes)
        own = {name: shown.get(name, self.empty_of(name)) for name in {**self.shown, **shown}}
        for name, weight in own.items():
            before = self.put(name, weight)
            if before is not self.own_weight(name):
                self.put(name, before)
        self.shown = shown
        if own:
            self.on_show(own)

    def put(self, name: str, weight: Any) -> Any:
        """Puts a weight into the module, and returns what was there."""
        own = self.own[name]
        before, own.slots[own.key] = own.slots[own.key], weight
        return before

    def take_replaced(self) -> dict[str, Any]:
        """Puts the weights with changes back where nodes have replaced them. Returns the nodes' weights, and those that
        nodes have written over."""
        before = {name: (self.put(name, weight), weight) for name, weight in self.shown.items()}
        return {name: weight for name, (weight, own) in before.items() if weight is not own or own.weight.is_written}

    def put_replaced(self, weights: Mapping[str, Any]) -> None:
        for name, weight in weights.items():
            self.put(name, weight)
        self.put_numbers()

    def drop(self) -> None:
        """Empties the module."""
        for name in self.filled:
            self.own[name].slots[self.own[name].key] = self.own[name].weight
        for weight in self.given:
            weight.numbers = None
        self.filled.clear()
        self.given.clear()
        self.mapped = None


def are_same(present: Any, stored: Any, dtype: torch.dtype | None) -> bool:
    """Whether a weight is the file's. dtype: that it has if it is another than the file's."""
    if present is None or stored is None:
        return present is stored
    if type(present) is not type(stored) or present.shape != stored.shape or present.dtype != (dtype or stored.dtype):
        return False
    return all(map(are_equal, list_plain_tensors(stored), list_plain_tensors(present)))


@torch.inference_mode(False)
def count_writes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the same memory that knows how often it was written to. One that was made in inference mode
    does not."""
    place = tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    counted = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*place)
    return torch.nn.Parameter(counted, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else counted


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def find_weight(module: torch.nn.Module, name: str) -> Any:
    """Returns a parameter, buffer or other attribute of a module by name. None if there is none."""
    path, _, own = name.rpartition(".")
    return getattr(module.get_submodule(path), own, None)
