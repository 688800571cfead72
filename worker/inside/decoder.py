"""Makes functions and objects in a rank, see `object_graph.py`."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from ..wire.tensors import UnsendableError
from ..wire.tree import PLAIN
from . import tags
from .code_files import CodeFiles, codes_of, find_installed
from .object_graph import DICTS, OF_RANKS, VALUES, Encoded, State, key_of, replaced_tensors, set_slot, slots_of

CPU = torch.device("cpu")  # each rank has it; of others it has its own


class Held(NamedTuple):
    """An object here. stays, network: see `Entry`. known: the slots that ComfyUI's process has."""

    value: Any
    kind: str
    stays: bool
    network: str
    known: dict[str, Encoded]


class Decoder:
    """The graph in a rank. An object keeps its identity, and what it learned, for as long as a sampling lasts. Networks
    stay for the next sampling if it uses them."""

    def __init__(self, files: CodeFiles, model: torch.nn.Module, device: Callable[[], torch.device]) -> None:
        """model: whose parts are named by path. device: of this rank."""
        self.files, self.model, self.device = files, model, device
        self.read = functools.cache(load_file)  # files with networks' weights
        self.run = ""
        self.objects: dict[str, Held] = {}
        self.names: dict[int, str] = {}
        self.count = 0  # of tensors that were made here, or by the ranks before an earlier load

    def begin_sampling(self, run: str, networks: Collection[str] = ()) -> None:
        """Forgets the objects of another run, but for these networks."""
        if run != self.run:
            self.run = run
            self.objects = {name: each for name, each in self.objects.items() if each.network in networks}
            self.names = {id(each.value): name for name, each in self.objects.items()}
            self.read.cache_clear()

    @property
    def networks(self) -> list[Any]:
        """ComfyUI's patchers of the networks that run inside of the model or beside it."""
        found = [each.value for each in self.objects.values() if each.kind == tags.PATCHER]
        if not found:
            return []
        from comfy.sd import VAE

        of_vaes = [each.value.patcher for each in self.objects.values() if isinstance(each.value, VAE)]
        return [each for each in found if each not in of_vaes]

    def apply(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what `Encoder.changes` returned. Raises ValueError for what is not here as described."""
        new = [(each[tags.REF], *each[tags.NEW]) for each in changes if tags.NEW in each]
        for name, kind, made, *held in sorted(new, key=lambda each: each[1] == tags.FUNCTION):  # which needs its cells
            self.add(name, kind, self.make(kind, made), *held)
        for each in changes:
            target, kind, _, _, known = self.objects[each[tags.REF]]
            for key, value in each[tags.SLOTS]:
                if kind == tags.TENSOR:
                    self.fill_tensor(target, value)
                    continue
                set_slot(target, kind, self.decode(key), self.decode(value), True)
                if type(key) in PLAIN:
                    known[key_of(key)] = value
            for key in each[tags.GONE]:
                set_slot(target, kind, self.decode(key), None, False)
                known.pop(key_of(key), None)
        for name, kind, *_ in new:
            target = self.objects[name].value
            if kind == tags.PATCHER:  # its network has its weights now
                target.__init__(target.model, self.device(), CPU)

    def add(self, name: str, kind: str, value: Any, stays: bool, network: str = "") -> None:
        if name.startswith(OF_RANKS):
            self.count = max(self.count, int(name.removeprefix(OF_RANKS)) + 1)
        self.objects[name] = Held(value, kind, stays, network, {})
        self.names[id(value)] = name

    def make(self, kind: str, made: Encoded) -> Any:
        """Makes an object without its slots."""
        if make := {tags.LIST: list, tags.SET: set, tags.CELL: types.CellType}.get(kind):
            return make()
        if kind == tags.DICT:
            name, factory = made
            return DICTS[name](*[] if factory is None else [self.decode(factory)])
        if kind == tags.FUNCTION:
            return self.make_function(*made)
        if kind == tags.TENSOR:
            return torch.nn.Parameter(torch.empty(0), requires_grad=False) if made else torch.empty(0)
        if kind == tags.NAMESPACE:
            return self.decode(made)
        if kind == tags.PATCHER:
            from comfy.model_patcher import ModelPatcher

            return ModelPatcher.__new__(ModelPatcher)
        if kind == tags.OBJECT:
            cls: Any = self.decode(made)
            found = cls.__new__(cls)
            if issubclass(cls, torch.nn.Module):
                torch.nn.Module.__init__(found)
            return found
        raise ValueError(f"{kind!r:.100} is not a kind of object")

    def fill_tensor(self, target: torch.Tensor, value: Encoded) -> None:
        """Gives a tensor its values. It stays the same object. A network's weight is in its file's pages until ComfyUI
        moves it."""
        if isinstance(value, dict):
            file, name = value[tags.PAGE]
            value = self.read(file)[name]
            if not target.numel():
                target.data = value
                return
        if target.shape == value.shape and target.dtype == value.dtype and target.device == self.device():
            target.copy_(value)
        else:
            target.data = value.to(self.device(), copy=True)

    def make_function(self, named: Encoded, mark: str, name: str, cells: list[Encoded]) -> types.FunctionType:
        """Makes a function without its defaults. Raises ValueError if its file has no such function here."""
        module = self.files.load(named)
        if mark not in codes_of(module):
            raise ValueError(f"{module.__file__} has no such function for Python {sys.version.split()[0]}")
        found = codes_of(module)[mark]
        closure = tuple(self.decode(cell) for cell in cells)
        function = types.FunctionType(found, vars(module), found.co_name, None, closure)
        function.__qualname__ = name
        return function

    def decode(self, encoded: Encoded) -> Any:
        """Raises ValueError and KeyError for anything that `Encoder.encode` does not produce."""
        if isinstance(encoded, (list, tuple)):
            return [self.decode(item) for item in encoded]
        if not isinstance(encoded, dict):
            return encoded
        ((kind, value),) = encoded.items()
        if kind in VALUES:
            return VALUES[kind][-1](self.decode(value))
        if kind not in self.decoders:
            raise ValueError(f"{kind!r:.100} is not a kind of encoded value")
        return self.decoders[kind](self, value)

    def decode_class_method(self, value: list[str]) -> Any:
        path, name = value
        part = self.model.get_submodule(path)
        return types.MethodType(getattr(type(part), name), part)

    decoders: Mapping[str, Callable[[Any, Any], Any]] = {
        tags.REF: lambda self, value: self.objects[value].value,
        tags.NAMED_TUPLE: lambda self, value: self.decode(value[0])._make(self.decode(value[1])),
        tags.PART: lambda self, value: functools.reduce(getattr, filter(None, value.split(".")), self.model),
        tags.CLASS_METHOD: decode_class_method,
        tags.CLASS: lambda self, value: self.files.find_class(*value),
        tags.EMPTY_CLASS: lambda self, value: empty_class(value[0], tuple(self.decode(value[1]))),
        tags.NAMED: lambda _self, value: find_installed(value),
        tags.MODULE: lambda self, value: self.files.load(value),
        tags.METHOD: lambda self, value: types.MethodType(*self.decode(value)),
        tags.DEVICE: lambda self, value: CPU if value == CPU.type else self.device(),
        tags.MEMBER: lambda self, value: self.decode(value[0])[value[1]],
    }

    def state(self) -> tuple[State, dict[str, torch.Tensor]]:
        """Returns what functions changed of their objects: by name and key, whether the slot is there, and its value;
        and new tensors, by name. What they keep in containers and objects that ComfyUI's process has not seen stays
        here."""
        found: State = {}
        tensors: dict[str, torch.Tensor] = {}
        for name, (target, kind, stays, _, known) in list(self.objects.items()):
            if stays or kind == tags.TENSOR:
                continue
            now = {key_of(key): value for key, value in slots_of(target, kind).items() if type(key) in PLAIN}
            changed: dict[str, list[Any]] = {}
            for key, value in now.items():
                if kind == tags.NAMESPACE and key not in known:  # another variable
                    continue
                try:
                    encoded = self.encode(value, tensors)
                except UnsendableError:
                    continue
                if key not in known or key_of(known[key]) != key_of(encoded):
                    changed[key] = [True, encoded]
                    self.release(known.get(key), encoded)
                    known[key] = encoded
            for key in [key for key in known if key not in now]:
                changed[key] = [False, None]
                self.release(known.pop(key), None)
            if changed:
                found[name] = changed
        return found, tensors

    def encode(self, value: Any, tensors: dict[str, torch.Tensor]) -> Encoded:
        """Encodes a value for ComfyUI's process. Raises UnsendableError."""
        if type(value) in PLAIN:
            return value
        if type(value) is tuple:
            return {tags.TUPLE: [self.encode(each, tensors) for each in value]}
        if id(value) in self.names:
            return {tags.REF: self.names[id(value)]}
        if type(value) is not torch.Tensor:
            raise UnsendableError(f"A {type(value).__name__} stays in the ranks.")
        name = f"{OF_RANKS}{self.count}"
        self.add(name, tags.TENSOR, value, False)
        tensors[name] = value
        return {tags.REF: name}

    def release(self, before: Encoded, now: Encoded) -> None:
        """Forgets the tensors that were made here and that a slot has no more."""
        for name in replaced_tensors(before, now) & self.objects.keys():  # two slots may hold one tensor
            self.names.pop(id(self.objects.pop(name).value))


@functools.cache
def empty_class(name: str, bases: tuple[type, ...]) -> type:
    return type(name, bases, {})
