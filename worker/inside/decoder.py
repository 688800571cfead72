"""Makes functions and objects in a rank, see `object_graph.py`."""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load_file

from ..wire.tensors import UnsendableError
from ..wire.tree import PLAIN
from . import object_graph as graph
from .code_files import CodeFiles, codes_of, find_installed
from .object_graph import DICTS, OF_RANKS, Encoded, Entry, Graph, key_of, slots_of

CPU = torch.device("cpu")  # each rank has it; of others it has its own


class Decoder(Graph):
    """The graph in a rank. An object keeps its identity, and what it learned, for as long as a sampling lasts. Networks
    stay for the next sampling if it uses them."""

    def __init__(self, files: CodeFiles, model: torch.nn.Module, device: Callable[[], torch.device]) -> None:
        """model: whose parts are named by path. device: of this rank."""
        super().__init__()
        self.files, self.model, self.device = files, model, device
        self.read = functools.cache(load_file)  # files with networks' weights
        self.sampling = ""
        self.count = 0  # of tensors that were made here, or by the ranks before an earlier load

    def begin_sampling(self, sampling: str, networks: Collection[str] = ()) -> None:
        """Forgets the objects of the sampling before, but for these networks."""
        self.sampling = sampling
        self.keep(networks)
        self.read.cache_clear()

    @property
    def networks(self) -> list[Any]:
        """ComfyUI's patchers of the networks that run inside of the model or beside it."""
        found = [each.value for each in self.entries.values() if each.kind == graph.PATCHER]
        if not found:
            return []
        from comfy.sd import VAE

        of_vaes = [each.value.patcher for each in self.entries.values() if isinstance(each.value, VAE)]
        return [each for each in found if each not in of_vaes]

    def apply(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what `Encoder.changes` returned. Raises ValueError for what is not here as described."""
        new = [(each[graph.REF], *each[graph.NEW]) for each in changes if graph.NEW in each]
        for name, kind, made, *held in sorted(new, key=lambda each: each[1] == graph.FUNCTION):  # which needs its cells
            self.add(name, Entry(self.make(kind, made), kind, made, {}, *held, known={}))
        for each in changes:
            entry = self.entries[each[graph.REF]]
            if entry.kind == graph.TENSOR:
                for _, value in each[graph.SLOTS]:
                    self.fill_tensor(entry.value, value)
            else:
                self.set_slots(each)
        for name, kind, *_ in new:
            target = self.entries[name].value
            if kind == graph.PATCHER:  # its network has its weights now
                target.__init__(target.model, self.device(), CPU)

    def add(self, name: str, entry: Entry) -> None:
        super().add(name, entry)
        if name.startswith(OF_RANKS):
            self.count = max(self.count, int(name.removeprefix(OF_RANKS)) + 1)

    def make(self, kind: str, made: Encoded) -> Any:
        """Makes an object without its slots."""
        if make := {graph.LIST: list, graph.SET: set, graph.CELL: types.CellType}.get(kind):
            return make()
        if kind == graph.DICT:
            name, factory = made
            return DICTS[name](*[] if factory is None else [self.decode(factory)])
        if kind == graph.FUNCTION:
            return self.make_function(*made)
        if kind == graph.TENSOR:
            return torch.nn.Parameter(torch.empty(0), requires_grad=False) if made else torch.empty(0)
        if kind == graph.NAMESPACE:
            return self.decode(made)
        if kind == graph.PATCHER:
            from comfy.model_patcher import ModelPatcher

            return ModelPatcher.__new__(ModelPatcher)
        if kind == graph.OBJECT:
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
            file, name = value[graph.PAGE]
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

    def decode_class_method(self, value: list[str]) -> Any:
        path, name = value
        part = self.model.get_submodule(path)
        return types.MethodType(getattr(type(part), name), part)

    decoders: Mapping[str, Callable[[Any, Any], Any]] = {
        **Graph.decoders,
        graph.NAMED_TUPLE: lambda self, value: self.decode(value[0])._make(self.decode(value[1])),
        graph.PART: lambda self, value: functools.reduce(getattr, filter(None, value.split(".")), self.model),
        graph.CLASS_METHOD: decode_class_method,
        graph.CLASS: lambda self, value: self.files.find_class(*value),
        graph.EMPTY_CLASS: lambda self, value: empty_class(value[0], tuple(self.decode(value[1]))),
        graph.NAMED: lambda _self, value: find_installed(value),
        graph.MODULE: lambda self, value: self.files.load(value),
        graph.METHOD: lambda self, value: types.MethodType(*self.decode(value)),
        graph.DEVICE: lambda self, value: CPU if value == CPU.type else self.device(),
        graph.MEMBER: lambda self, value: self.decode(value[0])[value[1]],
    }

    def changes(self) -> list[dict[str, Encoded]]:
        """Returns what functions changed of their objects, and new tensors, for `Encoder.apply`. What they keep in
        containers and objects that ComfyUI's process has not seen stays here."""
        found: list[dict[str, Encoded]] = []
        for name, entry in list(self.entries.items()):
            if entry.stays or entry.kind == graph.TENSOR:
                continue
            before, entry.slots = entry.known or {}, {}
            for key, value in slots_of(entry.value, entry.kind).items():
                if type(key) not in PLAIN or entry.kind == graph.NAMESPACE and key_of(key) not in before:
                    continue  # of a namespace, another variable
                try:
                    entry.slots[key_of(key)] = key, self.encode(value, found)
                except UnsendableError:
                    if key_of(key) in before:
                        entry.slots[key_of(key)] = key, json.loads(before[key_of(key)])
            for change in self.compare(name):
                found.append(change)
                self.release(before, change)
        return found

    def encode(self, value: Any, found: list[dict[str, Encoded]]) -> Encoded:
        """Encodes a value for ComfyUI's process. found: gets a new tensor. Raises UnsendableError."""
        if type(value) in PLAIN:
            return value
        if type(value) is tuple:
            return {graph.TUPLE: [self.encode(each, found) for each in value]}
        if id(value) in self.names:
            return {graph.REF: self.names[id(value)]}
        if type(value) is not torch.Tensor:
            raise UnsendableError(f"A {type(value).__name__} stays in the ranks.")
        name = f"{OF_RANKS}{self.count}"
        self.add(name, Entry(value, graph.TENSOR, False, known={}))
        new = {graph.NEW: [graph.TENSOR, False, False, ""], graph.SLOTS: [[graph.ONLY_SLOT, value]], graph.GONE: []}
        found.append({graph.REF: name, **new})
        return {graph.REF: name}


@functools.cache
def empty_class(name: str, bases: tuple[type, ...]) -> type:
    return type(name, bases, {})
