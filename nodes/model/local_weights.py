"""The weights of a model in ComfyUI's process. Nodes that read or change weights need them, and samplings that cannot
run in the ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from comfy.quant_ops import QuantizedTensor

from ...parallel_backend.compat import buffers_of, parameters_of, without_function_modes, writes_to_arguments
from ...parallel_backend.models.parallel_mlp import SPLITS, split_plain_rows
from ...parallel_backend.weights.tensors import are_equal, list_plain_tensors
from ...worker.comfyui.model import cast_weights, map_model
from ...worker.comfyui.quantised_rows import QUANTISED
from ...worker.comfyui.source import HostSource
from ...worker.compat import version_of
from ...worker.errors import ModelFileError
from ..costs.forward import COUNTING
from ..errors import Refused

WRITTEN = "weights that a node has written over"
TENSOR: Any = torch.Tensor
DATA = TENSOR.data  # a property that reads and writes weights without torch's checks
# What the stock loader's weights say of themselves while ComfyUI has not loaded them onto a device.
CPU = torch.device("cpu")
AT_REST = {TENSOR.device.__get__: CPU, TENSOR.is_cpu.__get__: True, TENSOR.is_meta.__get__: False}


class Own(NamedTuple):
    """A weight of the module as it was built. slots: the dict of the part that has it. key: in this dict. version: how
    often it was written to by then."""

    slots: dict[str, Any]
    key: str
    weight: Any
    version: int


class LocalWeights:
    """Fills a module on the meta device with the weights of its file, as the stock loader would, and empties it again.

    No weight is in this process until somebody needs it. Then the pages of the file, `source`, are mapped.
    """

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

    def without_numbers(self, name: str, like: torch.Tensor) -> DeferredParameter:
        """like: has its shape and dtype."""
        deferred = DeferredParameter(like, requires_grad=False)
        deferred.weight = Weight(self, name)
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

    def read(self, name: str) -> torch.Tensor:
        """Returns a weight with its numbers, in the dtype of the stock loader. Torch counts what is written into it.
        Raises ModelFileError."""
        mapped = self.map_file()
        if dtype := self.dtypes.pop(name, None):
            cast_weights(mapped, {name: dtype})
        weight = find_weight(mapped, name)
        if weight.is_inference() and type(weight.data) is torch.Tensor:
            path, _, own = name.rpartition(".")
            setattr(mapped.get_submodule(path), own, count_writes(weight))
        return find_weight(mapped, name)

    def bring(self) -> None:
        """Fills the module. Keeps weights that a node has put into it, and buffers that it has written into. Raises
        ModelFileError."""
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
        for path, part in self.parts.items():
            slots = parameters_of(part)
            for name, weight in slots.items():
                own = self.own_weight(join_path(path, name))
                if weight is not own and isinstance(own, DeferredParameter):
                    present = weight.read() if isinstance(weight, DeferredParameter) else weight
                    slots[name] = own if are_same(present, own.read(), None) else weight

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


class Weight:
    """A weight of a module, by its name. numbers: once somebody has read them. version: how often they were written to
    by then."""

    numbers: torch.Tensor | None = None
    version = 0

    def __init__(self, weights: LocalWeights, name: str) -> None:
        self.weights, self.name = weights, name

    def read(self) -> torch.Tensor:
        """Raises ModelFileError."""
        if self.numbers is None:
            self.numbers = self.find_numbers()
            self.version = version_of(self.numbers)
            self.weights.given.append(self)
        return self.numbers

    def find_numbers(self) -> torch.Tensor:
        return self.weights.read(self.name)

    @property
    def is_written(self) -> bool:
        return self.numbers is not None and version_of(self.numbers) != self.version


class DeferredParameter(torch.nn.Parameter):
    """A weight whose numbers are in the ranks. It is on the meta device, so it has a shape and a dtype.

    Whatever else torch does with it, torch does with the file's numbers, writes included.
    """

    weight: Weight

    def read(self) -> torch.Tensor:
        return self.weight.read()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Writes the numbers, for nodes that save weights by torch."""
        return self.read().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.read(), memo)

    def detach(self) -> torch.Tensor:
        """Returns an alias of the same weight."""
        with without_function_modes():
            found = super().detach().as_subclass(DeferredParameter)
        found.weight = self.weight
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if COUNTING.get():
            return super().__torch_function__(func, types, args, kwargs)
        if func in AT_REST:
            return AT_REST[func]
        first = args[0] if args and isinstance(args[0], cls) else None
        if first is not None and func == DATA.__get__:
            return first.detach()
        if first is not None and func == DATA.__set__:
            return first.set_data(with_numbers(args[1], None))
        name = getattr(func, "__name__", "")
        if first is not None and name in ("__get__", "__set__"):
            found = super().__torch_function__(func, types, args, kwargs)
            if not isinstance(found, torch.Tensor):  # such as its shape
                return found
        others = [each for each in tensors_in((args, kwargs)) if not isinstance(each, cls)]
        is_write = name.endswith("_") and not name.endswith("__") or name.startswith(("__i", "__set"))
        device = others[0].device if others and not is_write else None
        found = func(*with_numbers(args, device), **with_numbers(kwargs, device))
        return first if first is not None and found is first.read() else found

    def set_data(self, value: torch.Tensor) -> None:
        present = self.read()
        if value.dtype != present.dtype or not value.cpu().equal(present):  # else it is a move to another device
            present.data, self.weight.version = value, -1


class QuantisedParameter(QuantizedTensor):
    """A quantised weight whose numbers are in the ranks. It refuses to be written over."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if writes_to_arguments(func) and isinstance(args[0], cls):
            raise Refused(
                "The parallel model cannot take a node that writes into a quantised weight: its weights are in worker "
                "processes.",
                "Remove that node, or bypass Parallelize Model.",
            )
        return super().__torch_dispatch__(func, types, args, kwargs)


SPLITS.update({DeferredParameter: split_plain_rows, QuantisedParameter: QUANTISED[QuantizedTensor]})


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Returns the tensors in a call's arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each)


def with_numbers(value: Any, device: torch.device | None) -> Any:
    """Replaces the deferred tensors in a call's arguments. device: where their numbers are needed."""
    if isinstance(value, DeferredParameter):
        return value.read().to(device)
    if isinstance(value, dict):
        return {name: with_numbers(each, device) for name, each in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(with_numbers(each, device) for each in value)
    return value
