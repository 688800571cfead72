"""Describes functions and objects in ComfyUI's process, see `object_graph.py`."""

from __future__ import annotations

import enum
import functools
import itertools
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engine import compat
from ..wire.tensors import UnsendableError
from ..wire.tree import PLAIN
from . import object_graph as graph
from .changes import are_equal
from .code_files import CodeFiles, file_of, find_installed, inside_of_wrapper, is_harmless, is_installed, mark_of
from .object_graph import DICTS, TAGS, VALUES, Encoded, Entry, Graph, Slots, key_of, only_slot, refs_in, slots_of

# What the ranks need of an object: its class there, or None for the patcher of a network, which they make; and its
# attributes, in the order in which they are described.
Needed = tuple[type | None, Mapping[str, Any]]
BUILT_IN = (list, dict, set, tuple, str, int, float)  # a class of a pack's that is one of these
CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
# What a class has whose body is empty, such as ComfyUI's model_sampling.
OF_EMPTY_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
OF_EMPTY_CLASS |= {"__firstlineno__", "__static_attributes__"}  # from Python 3.13 on


@dataclass(eq=False)
class Scope:
    """Values that are described together. stays, network: of the objects in it, see `Entry`. functions, classes: that
    the values name, in order. named: the objects that got their names in it."""

    stays: bool = False
    network: str = ""
    functions: dict[types.FunctionType, None] = field(default_factory=dict)
    classes: dict[type, None] = field(default_factory=dict)
    named: list[Any] = field(default_factory=list)

    def add(self, scope: Scope) -> None:
        """Adds the functions and classes of another."""
        self.functions |= scope.functions
        self.classes |= scope.classes


class Network(Scope):
    """The scope of a network, which stays as long as the network is as it was when it was described. is_used: whether
    this sampling uses it."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        """name: of its patcher."""
        super().__init__(True, name)
        self.is_used = False
        parts = [vars(part) for part in module.modules()]
        self.now = [each for part in parts for each in (part, *part.values()) if isinstance(each, (dict, list, set))]
        self.before = [each.copy() for each in self.now]
        self.versions = [(tensor, compat.version_of(tensor)) for tensor in (*module.parameters(), *module.buffers())]

    def is_same(self) -> bool:
        is_same = are_equal(self.now, self.before)  # compares identity first
        return is_same and all(compat.version_of(tensor) == was for tensor, was in self.versions)


def installed_name(value: Any) -> str | None:
    """Returns the name of a function, class or module of an installed package, if it only computes."""
    name = f"{value.__name__}:" if isinstance(value, types.ModuleType) else f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, types.BuiltinFunctionType):
        name = f"{(value.__module__ or '').replace('._C._nn', '.nn.functional')}:{value.__name__}"
    try:
        return name if find_installed(name) is value else None
    except (ValueError, AttributeError, ImportError):
        return None


class Encoder(Graph):
    """The graph in ComfyUI's process.

    parts: by id, the paths of the model's parts, and of functions in place of its methods. needed: for classes of which
    the ranks need only some attributes, what tells which; None for those that stay in ComfyUI's process. share_weights:
    puts the weights of a network into a file that the ranks can map; returns each tensor's file and its name there, by
    id.
    """

    def __init__(
        self,
        files: CodeFiles,
        parts: Mapping[int, str],
        needed: Mapping[type, Callable[[Any], Needed] | None],
        share_weights: Callable[[torch.nn.Module], Mapping[int, tuple[str, str]]],
    ) -> None:
        super().__init__()
        self.files, self.parts, self.needed, self.share_weights = files, parts, needed, share_weights
        self.numbers = itertools.count()
        self.scope = Scope()
        self.seen: set[str] = set()  # the objects that are as they are now
        self.networks: dict[str, Network] = {}  # by the name of the patcher
        # Networks that the ranks have from the sampling before; None until this one is sent.
        self.kept: list[str] | None = None
        self.pages: dict[int, tuple[str, str]] = {}  # of tensors: the file that has them, and their name there
        self.name_file = functools.cache(files.name)

    def begin_sampling(self) -> None:
        """Begins a sampling. Forgets all objects but for networks of the last sampling that are as they were."""
        self.keep({name for name in self.networks if self.is_known(name) and self.stands_alone(name)})
        self.seen, self.kept, self.name_file = set(), None, functools.cache(self.files.name)
        for network in self.networks.values():
            network.is_used = False

    def expect(self, networks: Iterable[torch.nn.Module]) -> None:
        """Says which networks this sampling uses, though maybe not in its first call."""
        for network in networks:
            self.use(self.names.get(id(network), ""))

    def use(self, name: str) -> None:
        """Notes that this sampling uses the network of an object, if it is of one."""
        if name in self.entries and (network := self.networks.get(self.entries[name].network)):
            network.is_used = True

    def is_known(self, name: str) -> bool:
        return name in self.entries and self.entries[name].known is not None

    def stands_alone(self, network: str) -> bool:
        """Whether a network is as it was, has all of its tensors in a file, and refers to no object outside of it."""
        own = {name: each for name, each in self.entries.items() if each.network == network}
        tensors = {id(each.value) for each in own.values() if each.kind == graph.TENSOR}
        refs = (refs_in([each.made, *each.slots.values()]) for each in own.values())
        if not self.networks[network].is_same() or not all(each <= own.keys() for each in refs):
            return False
        try:
            pages = self.share_weights(self.entries[network].value.model)  # which compares the numbers
        except UnsendableError:
            return False
        return all(each in pages and pages[each] == self.pages.get(each) for each in tensors)

    def keep(self, networks: Container[str]) -> None:
        super().keep(networks)
        self.networks = {name: each for name, each in self.networks.items() if name in networks}
        self.pages = {key: page for key, page in self.pages.items() if key in self.names}

    def begin(self) -> None:
        """Looks at all objects again, but for networks that are as they were."""
        same = {name for name, each in self.networks.items() if each.is_same()}
        self.seen, self.scope = {name for name, each in self.entries.items() if each.network in same}, Scope()

    @contextmanager
    def look(self, scope: Scope) -> Iterator[Scope]:
        """While entered, values are described in this scope. If one of them cannot be sent, forgets all that got a name
        in it."""
        outer, self.scope = self.scope, scope
        try:
            yield scope
            outer.add(scope)
            outer.named += scope.named
        except UnsendableError:
            for value in scope.named:
                self.entries.pop(self.names.pop(id(value)), None)
            self.seen &= self.entries.keys()
            raise
        finally:
            self.scope = outer

    def forget_sent(self) -> None:
        """Called when the ranks have forgotten all objects. `changes` returns all of them again."""
        for entry in self.entries.values():
            entry.known, entry.is_told = None, False

    def changes(self) -> list[dict[str, Encoded]]:
        """Returns what changed since the last time, for `Decoder.apply`. Empty if nothing did."""
        if self.kept is None:
            self.keep({"", *(name for name, each in self.networks.items() if each.is_used)})
            self.kept = [name for name in self.networks if self.is_known(name)]
        return [change for name, each in self.entries.items() if not each.is_told for change in self.compare(name)]

    def apply(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Takes over what functions in the ranks changed, see `Decoder.changes`."""
        for change in changes:
            name = change[graph.REF]
            if graph.NEW in change:  # a tensor
                ((_, tensor),) = change[graph.SLOTS]
                self.add(name, Entry(tensor, graph.TENSOR, False, only_slot(tensor)))
                self.compare(name)  # the ranks have it
                continue
            before = {**(self.entries[name].known or {})}
            self.set_slots(change)
            self.release(before, change)

    def encode(self, value: Any) -> Encoded:
        """Raises UnsendableError for what the ranks cannot have."""
        if type(value) in PLAIN:
            return value
        if id(value) in self.parts:
            return {graph.PART: self.parts[id(value)]}
        if tag := TAGS.get(type(value)):
            parts = VALUES[tag][1](value)
            return {tag: self.encode_all(parts) if isinstance(parts, list) else parts}
        if isinstance(value, CODE) and (name := installed_name(value)):
            return {graph.NAMED: name}
        if encode := self.inline.get(type(value)):
            return encode(self, value)
        if isinstance(value, enum.Enum):
            return {graph.MEMBER: [self.encode(type(value)), value.name]}
        if isinstance(value, type):
            return self.encode_class(value)
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return {graph.NAMED_TUPLE: [self.encode(type(value)), self.encode_all(value)]}
        if isinstance(value, types.FunctionType) and (inner := inside_of_wrapper(value)):
            return self.encode(inner)
        return self.refer(value)

    def encode_all(self, values: Iterable[Any]) -> list[Encoded]:
        return [self.encode(each) for each in values]

    def encode_method(self, value: types.MethodType) -> Encoded:
        path, name = self.parts.get(id(value.__self__)), value.__func__.__name__
        if path is not None and getattr(type(value.__self__), name, None) is value.__func__:
            return {graph.CLASS_METHOD: [path, name]}
        return {graph.METHOD: [self.encode(value.__func__), self.encode(value.__self__)]}

    def encode_class(self, value: type) -> Encoded:
        if is_installed(value):
            raise UnsendableError(f"The class {value.__qualname__} is of an installed package.")
        if "<" in value.__qualname__ and vars(value).keys() <= OF_EMPTY_CLASS:
            return {graph.EMPTY_CLASS: [value.__name__, self.encode_all(value.__bases__)]}
        if "<" in value.__qualname__:
            raise UnsendableError(f"The class {value.__qualname__} is inside of a function.")
        self.scope.classes[value] = None
        return {graph.CLASS: [self.name_file(file_of(value)), value.__qualname__]}

    inline: Mapping[type, Callable[[Any, Any], Encoded]] = {
        torch.device: lambda _self, value: {graph.DEVICE: value.type},
        types.MethodType: encode_method,
        types.ModuleType: lambda self, value: {graph.MODULE: self.name_file(file_of(value))},
    }

    def name(self, value: Any) -> str:
        """Returns the name of an object, always the same for the same object."""
        if id(value) not in self.names:
            self.names[id(value)] = str(next(self.numbers))
            self.scope.named.append(value)
        return self.names[id(value)]

    def refer(self, value: Any) -> Encoded:
        """Names an object that can change, and encodes it once."""
        name = self.name(value)
        if name not in self.seen:
            self.seen.add(name)  # first, because an object may hold itself
            self.set_entry(name, self.enter(value))
        self.use(name)
        if network := self.networks.get(name):
            self.scope.add(network)
        return {graph.REF: name}

    def set_entry(self, name: str, entry: Entry) -> None:
        """Puts an object that was looked at in place of what it was before. The ranks have the same of it."""
        entry.stays, entry.network = self.scope.stays or entry.stays, entry.network or self.scope.network
        entry.known = self.entries[name].known if name in self.entries else None
        self.entries[name] = entry

    def add_variables(self, owner: Any, values: Mapping[str, Any], are_all: bool = False) -> None:
        """Makes variables of a class, of a Python module or of a part of the model those of ComfyUI's process. are_all:
        whether others that were named before are gone."""
        name = self.name(owner)
        before = self.entries[name].slots if name in self.entries and not are_all else {}
        self.set_entry(name, Entry(owner, graph.NAMESPACE, self.encode(owner), {**before, **self.slots(values)}))

    def enter(self, value: Any) -> Entry:
        if isinstance(value, torch.Tensor):
            return self.enter_tensor(value)
        if isinstance(value, types.FunctionType):
            return self.enter_function(value)
        if kind := {list: graph.LIST, set: graph.SET, types.CellType: graph.CELL}.get(type(value)):
            return Entry(value, kind, None, self.slots(slots_of(value, kind)))
        if type(value) in DICTS.values():
            factory = getattr(value, "default_factory", None)
            if factory is not None and not (isinstance(factory, type) and is_harmless(factory)):
                raise UnsendableError("A defaultdict whose values a function makes cannot be sent to the ranks.")
            return Entry(value, graph.DICT, [type(value).__name__, self.encode(factory)], self.slots(value))
        needed = [find for cls, find in self.needed.items() if isinstance(value, cls)]
        if needed and needed[0]:
            return self.enter_needed(value, *needed[0](value))
        kind = type(value)
        is_torchs = kind.__module__.startswith("torch.") and not isinstance(value, torch.nn.Module)
        has_slots = not hasattr(value, "__dict__") or any(vars(each).get("__slots__") for each in kind.__mro__)
        if needed or isinstance(value, BUILT_IN) or has_slots or is_torchs:
            raise UnsendableError(f"A {kind.__name__} cannot be sent to the ranks.")
        return Entry(value, graph.OBJECT, self.encode(kind), self.slots(slots_of(value, graph.OBJECT)))

    def enter_needed(self, value: Any, cls: type | None, attributes: Mapping[str, Any]) -> Entry:
        """Nobody in ComfyUI's process reads what the ranks change of it."""
        if cls is not None:
            with self.look(Scope(True, self.scope.network)):
                return Entry(value, graph.OBJECT, self.encode(cls), self.slots(attributes), True)
        self.pages |= self.share_weights(value.model)
        name = self.name(value)
        network = Network(name, value.model)
        with self.look(network):
            slots = self.slots(attributes)
        self.networks[name] = network
        return Entry(value, graph.PATCHER, None, slots, True, name)

    def enter_tensor(self, value: torch.Tensor) -> Entry:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UnsendableError("A weight of the model cannot be sent to the ranks, which have it.")
        if value.is_meta or value.layout != torch.strided:
            raise UnsendableError("A tensor without numbers cannot be sent to the ranks.")
        page = self.pages.get(id(value))
        numbers = {graph.PAGE: list(page)} if page else value
        return Entry(value, graph.TENSOR, type(value) is torch.nn.Parameter, only_slot(numbers))

    def enter_function(self, value: types.FunctionType) -> Entry:
        self.scope.functions[value] = None
        code = value.__code__
        if value.__globals__.get("__file__") and file_of(value) != value.__globals__["__file__"]:
            raise UnsendableError(f"The code of {value.__qualname__} was made elsewhere.")
        named, cells = self.name_file(code.co_filename), self.encode_all(value.__closure__ or ())
        made = [named, mark_of(code), value.__qualname__, cells]
        return Entry(value, graph.FUNCTION, made, self.slots(slots_of(value, graph.FUNCTION)))

    def slots(self, values: Mapping[Any, Any]) -> Slots:
        found = [(self.encode(key), self.encode(value)) for key, value in values.items()]
        return {key_of(slot[0]): slot for slot in found}
