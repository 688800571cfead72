"""The weights of a model in ComfyUI's process. Nodes that read or change weights need them, and samplings that cannot
run in the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from comfy.quant_ops import QuantizedTensor
from torch.utils.weak import WeakIdKeyDictionary

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
HARMLESS = ("requires_grad_", "detach_", "retain_grad")
WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
TENSOR: Any = torch.Tensor
DATA = TENSOR.data  # a property that reads and writes weights without torch's checks
# What the stock loader's weights say of themselves while ComfyUI has not loaded them onto a device.
CPU = torch.device("cpu")
AT_REST = {TENSOR.device.__get__: CPU, TENSOR.is_meta.__get__: False}
# They need numbers that stay where they are.
IN_MEMORY = ("data_ptr", "storage", "untyped_storage", "numpy", "tolist", "item")
ALIASES = (DATA.__get__, torch.Tensor.detach, torch.Tensor.requires_grad_)  # their result is the same weight


class Empty(NamedTuple):
    """A part's own weights without numbers."""

    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]


class LocalWeights:
    """Fills a module on the meta device with the weights of its file, as the stock loader would, and empties it again.

    No weight is in this process until somebody needs the weights. Then the pages of the file, `source`, are mapped.
    is_here: whether the module has its weights now.
    is_changed: whether a node has written over them. Then the ranks cannot run the model.
    """

    def __init__(self, module: torch.nn.Module, source: HostSource) -> None:
        self.source = source
        self.is_here = self.is_changed = False
        self.mapped: torch.nn.Module | None = None
        self.dtypes: dict[str, torch.dtype] = {}  # by name, of the weights that the file has in another dtype
        self.parts = dict(module.named_modules())
        self.defer_weights()
        self.empty = {
            path: Empty(dict(parameters_of(part)), dict(buffers_of(part))) for path, part in self.parts.items()
        }
        self.filled: dict[str, tuple[dict[str, Any], Any]] = {}  # by name: a part's own weights, and the empty one
        self.versions = {id(each): version_of(each) for each in module.buffers() if type(each) is torch.Tensor}

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
        path, _, own = name.rpartition(".")
        built = self.empty.get(path)
        return built and built.parameters.get(own, built.buffers.get(own))

    def own_weight(self, name: str) -> Any:
        """Returns what the module has if no node has replaced it."""
        return self.empty_of(name)

    def map_file(self) -> torch.nn.Module:
        """Returns a module of the same class whose weights are the file's pages. Raises ModelFileError."""
        if self.mapped is None:
            model, _, self.dtypes = map_model(self.source)
            self.mapped = model.diffusion_model
        return self.mapped

    def read(self, name: str) -> torch.Tensor:
        """Returns a weight with its numbers, in the dtype of the stock loader. Raises ModelFileError."""
        path, _, own = name.rpartition(".")
        weight = getattr(self.map_file().get_submodule(path), own)  # a parameter, or a buffer
        return weight.to(self.dtypes.get(name, weight.dtype))

    def count_bytes(self) -> int:
        """Returns the bytes of the module's weights."""
        return sum(weight.nbytes for part in self.parts.values() for weight in part.parameters(recurse=False))

    def bring(self) -> None:
        """Fills the module. Keeps weights that a node has put into it. Raises ModelFileError."""
        if self.is_here:
            return
        mapped = self.map_file()
        cast_weights(mapped, self.dtypes)
        for path, real in mapped.named_modules():
            part, empty = self.parts[path], self.empty[path]
            self.fill(path, parameters_of(part), empty.parameters, parameters_of(real))
            self.fill(path, buffers_of(part), empty.buffers, buffers_of(real))
            for name, value in vars(real).items():
                if isinstance(value, torch.Tensor) and getattr(vars(part).get(name), "is_meta", False):
                    self.filled[join_path(path, name)] = (vars(part), vars(part)[name])
                    vars(part)[name] = value
        self.put_numbers()
        self.is_here = True

    def fill(self, path: str, own: dict[str, Any], empty: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """own: a part's weights as they are. empty: its weights as they were built. found: their values. A buffer that
        a node has written into keeps its numbers."""
        for name, value in found.items():
            present = own.get(name)
            before = self.versions.get(id(present))
            is_written = present is not None and before is not None and version_of(present) != before
            if present is empty.get(name) and not is_written:
                own[name] = value
                self.filled[join_path(path, name)] = (own, empty[name])

    def put_numbers(self) -> None:
        """Computes the weights that a node has put into the module without numbers. ComfyUI would fill them with
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
                if isinstance(weight, DeferredParameter) and isinstance(own, DeferredParameter) and weight.original:
                    slots[name] = own if weight.original is own.weight else weight

    def find_written(self) -> bool:
        """Compares the weights, without ComfyUI's patches of them, with the file's. Returns whether a node has written
        over them, or whether nobody can tell because the file is another now."""
        try:
            model, _, dtypes = map_model(self.source)
        except ModelFileError:
            return True
        for name, (own, _) in self.filled.items():
            path, _, key = name.rpartition(".")
            stored = getattr(model.diffusion_model.get_submodule(path), key)
            if not are_same(own.get(key), stored, dtypes.get(name)):
                return True
        return False

    def drop(self) -> None:
        """Empties the module."""
        for name, (own, empty) in self.filled.items():
            own[name.rpartition(".")[2]] = empty
        self.filled.clear()
        self.mapped, self.is_here = None, False

    def change(self, name: str) -> torch.Tensor:
        """Returns a weight that a node is about to write over, in memory of its own. What nodes have computed from
        weights, such as copies, is computed first, because it has the numbers of before. Raises ModelFileError."""
        for deferred in list(DEFERRED):
            deferred.keep(deferred.read())
        self.bring()
        self.is_changed = True
        weight = self.read(name)
        weight.data = weight.data.clone()  # the file's pages stay as they are
        return weight


def are_same(present: Any, stored: Any, dtype: torch.dtype | None) -> bool:
    """Whether a weight is the file's. dtype: that it has if it is another than the file's."""
    if present is None or stored is None:
        return present is stored
    if type(present) is not type(stored) or present.shape != stored.shape or present.dtype != (dtype or stored.dtype):
        return False
    return all(map(are_equal, list_plain_tensors(stored), list_plain_tensors(present)))


@torch.inference_mode(False)
def count_writes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy that knows how often it was written to. A tensor that was made in inference mode does not."""
    return tensor.clone()


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class Weight:
    """A weight of a module, by its name."""

    def __init__(self, weights: LocalWeights, name: str) -> None:
        self.weights, self.name = weights, name

    def read(self) -> torch.Tensor:
        return self.weights.read(self.name)

    def change(self) -> torch.Tensor:
        return self.weights.change(self.name)


class DeferredParameter(torch.nn.Parameter):
    """A weight whose numbers are in the ranks, or a tensor computed from such weights.

    It is on the meta device: it has a shape and a dtype but no numbers. If torch fails because there are no numbers,
    this class repeats the call with the file's numbers. Code that writes over a weight fills the module first.

    weight: the module's weight, if it is one. compute: otherwise, returns the numbers. is_copy: whether it is a clone,
    with memory of its own. like: another one with the same numbers. held: numbers that somebody has the address of.
    """

    weight: Weight | None = None
    is_copy = False
    like: DeferredParameter | None = None
    held: torch.Tensor | None = None
    compute: Callable[[], torch.Tensor]

    def read(self) -> torch.Tensor:
        return self.weight.read() if self.weight else self.compute()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Writes the numbers, for nodes that save weights by torch."""
        return self.read().__reduce_ex__(protocol)

    def detach(self) -> torch.Tensor:
        """Returns an alias of the same weight."""
        with without_function_modes():
            found = super().detach().as_subclass(DeferredParameter)
        found.weight, found.compute, found.like = self.weight, self.read, self
        return found

    def keep(self, numbers: torch.Tensor) -> None:
        """Gives a tensor that is no weight its numbers."""
        self.compute, self.like, self.held = (lambda: numbers), None, None
        DEFERRED.pop(self, None)

    @property
    def original(self) -> Weight | None:
        """The module's weight that has the same numbers, if it is known."""
        return self.weight or (self.like.original if self.like is not None else None)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}

        if func in AT_REST and not COUNTING.get():
            return AT_REST[func]
        if func == torch.Tensor.to and is_there(args, kwargs):
            return args[0]
        others = [each for each in tensors_in((args, kwargs)) if not isinstance(each, cls)]
        if any(each.is_meta for each in others):  # the caller only asks for shapes
            return super().__torch_function__(func, types, args, kwargs)
        device = others[0].device if others else None

        def run() -> Any:
            return func(*with_numbers(args, device), **with_numbers(kwargs, device))

        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if name in IN_MEMORY and isinstance(first, cls):
            if first.held is None or first.weight and first.weight.weights.is_changed:
                first.held = first.read()
            return func(first.held, *args[1:], **kwargs)
        in_place = name.endswith("_") and not name.startswith("_") and name not in HARMLESS
        if func == DATA.__set__ and isinstance(first, cls):
            value, present = with_numbers(args[1], None), first.read()
            if value.dtype == present.dtype and value.cpu().equal(present.cpu()):  # a move to another device
                return None
            if not first.weight:
                return first.keep(value)
        if in_place or name in WRITES or func == DATA.__set__:
            if isinstance(first, cls) and first.weight:
                return func(first.weight.change(), *with_numbers(args[1:], device), **with_numbers(kwargs, device))
            if not isinstance(first, cls):
                return run()
            if not first.is_copy:
                raise Refused(
                    "The parallel model cannot take a node that writes into a part of a weight: its weights are in "
                    "worker processes.",
                    "Remove that node, or bypass Parallelize Model. Its code could write to a clone of the weight.",
                )
            target = first.read().clone()
            result = func(target, *with_numbers(args[1:], device), **with_numbers(kwargs, device))
            first.keep(target)
            return first if result is target else result
        if others:
            return run()
        try:
            result = super().__torch_function__(func, types, args, kwargs)
        except (
            NotImplementedError,
            RuntimeError,
        ):  # it may lack numbers; if the caller is wrong, the repeated call fails, too
            return run()
        if result is first:
            return first
        found = cls.defer(result, run, first.weight if isinstance(first, cls) and func in ALIASES else None)
        if isinstance(found, cls):
            found.is_copy = func == torch.Tensor.clone or func == torch.clone
            found.like = first if isinstance(first, cls) and (found.is_copy or func in ALIASES) else None
        return found

    @classmethod
    def defer(cls, result: Any, compute: Callable[[], Any], weight: Weight | None = None) -> Any:
        """Defers a result that torch computed from tensors without numbers. compute: computes it from tensors with
        numbers."""
        if isinstance(result, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in result):
            found = [cls.defer(each, lambda place=place: compute()[place]) for place, each in enumerate(result)]
            return type(result)(found) if type(result) in (list, tuple) else type(result)(*found)
        if not isinstance(result, torch.Tensor) or not result.is_meta:
            return result
        deferred: DeferredParameter = result.as_subclass(cls)
        deferred.weight, deferred.compute = weight, compute
        if not weight:
            DEFERRED[deferred] = None
        return deferred


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


DEFERRED: Any = WeakIdKeyDictionary()  # those that are no weights and have no numbers yet
SPLITS.update({DeferredParameter: split_plain_rows, QuantisedParameter: QUANTISED[QuantizedTensor]})


def is_there(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether these arguments of `Tensor.to` ask for the tensor as it is."""
    asked = [*args[1:], *(value for name, value in kwargs.items() if name not in ("non_blocking", "memory_format"))]
    devices = [torch.device(each) for each in asked if isinstance(each, (str, torch.device))]
    dtypes = [each for each in asked if isinstance(each, torch.dtype)]
    plain = len(devices) + len(dtypes) == len([each for each in asked if each is not None and each is not False])
    return plain and all(each == CPU for each in devices) and all(each == args[0].dtype for each in dtypes)


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
