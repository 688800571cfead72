"""Describes functions and objects in ComfyUI's process, see `object_graph.py`."""

from __future__ import annotations

import enum
import functools
import itertools
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch

from ..engine import compat
from ..wire.tensors import UnsendableError
from ..wire.tree import PLAIN
from . import tags
from .code_files import CodeFiles, file_of, find_installed, inside_of_wrapper, is_harmless, is_installed, mark_of
from .object_graph import (
    DICTS,
    TAGS,
    VALUES,
    Encoded,
    Entry,
    State,
    key_of,
    refs_in,
    replaced_tensors,
    set_slot,
    slots_of,
)
from .snapshots import Network, Version, comparable, kept

NONE: Mapping[type, Any] = {}
BUILT_IN = (list, dict, set, tuple, str, int, float)  # a class of a pack's that is one of these
CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
# What a class has whose body is empty, such as ComfyUI's model_sampling.
OF_EMPTY_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
OF_EMPTY_CLASS |= {"__firstlineno__", "__static_attributes__"}  # from Python 3.13 on


class Needed(NamedTuple):
    """What the ranks need of an object. cls: its class there; None for the patcher of a network, which they make.
    attributes: in the order in which they are described."""

    cls: type | None
    attributes: Mapping[str, Any]


def only_slot(encoded: Encoded) -> dict[str, tuple[Encoded, Encoded]]:
    """Returns the slots of an object that has only one."""
    return {key_of(tags.ONLY_SLOT): (tags.ONLY_SLOT, encoded)}


def installed_name(value: Any) -> str | None:
    """Returns the name of a function, class or module of an installed package, if it only computes."""
    name = f"{value.__name__}:" if isinstance(value, types.ModuleType) else f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, types.BuiltinFunctionType):
        name = f"{(value.__module__ or '').replace('._C._nn', '.nn.functional')}:{value.__name__}"
    try:
        return name if find_installed(name) is value else None
    except (ValueError, AttributeError, ImportError):
        return None


class Encoder:
    """The graph in ComfyUI's process.

    parts: by id, the paths of the model's parts, and of functions in place of its methods. not_sent: classes whose
    objects stay in ComfyUI's process. needed: for classes of which the ranks need only some attributes, what tells
    which. share_weights: puts the weights of a network into a file that the ranks can map; returns each tensor's file
    and its name there, by id.
    """

    def __init__(
        self,
        files: CodeFiles,
        parts: Mapping[int, str],
        not_sent: Sequence[type] = (),
        needed: Mapping[type, Callable[[Any], Needed]] = NONE,
        share_weights: Callable[[torch.nn.Module], Mapping[int, tuple[str, str]]] = lambda _network: {},
    ) -> None:
        self.files, self.parts, self.not_sent, self.needed = files, parts, not_sent, needed
        self.share_weights = share_weights
        self.numbers = itertools.count()
        self.objects: dict[str, Any] = {}  # kept, so that no new object gets the id of one
        self.names: dict[int, str] = {}
        self.entries: dict[str, Entry] = {}
        self.seen: set[str] = set()  # those that are as they are now
        self.networks: dict[str, Network] = {}  # by the name of the patcher
        self.network = ""  # the name of the patcher whose network is looked at now
        self.asked: set[str] = set()  # networks of this sampling
        self.kept: list[str] = []  # networks that the ranks have from the sampling before
        self.is_sent = False  # whether this sampling was
        self.pages: dict[int, tuple[str, str]] = {}  # of tensors: the file that has them, and their name there
        self.sent: dict[str, tuple[Entry, dict[str, str | Version]]] = {}  # with the slots that the ranks have
        self.name_file = functools.cache(files.name)
        self.stays = False  # whether what the ranks change of objects that are found now stays there
        # Functions and classes that the last values name.
        self.functions: list[types.FunctionType] = []
        self.classes: dict[type, None] = {}  # in order

    def begin_sampling(self) -> None:
        """Begins a sampling. Forgets all objects but for networks of the last sampling that are as they were."""
        self.keep({name for name in self.networks.keys() & self.sent.keys() if self.stands_alone(name)})
        self.seen, self.asked, self.name_file = set(), set(), functools.cache(self.files.name)
        self.is_sent = False

    def expect(self, networks: Iterable[torch.nn.Module]) -> None:
        """Says which networks this sampling uses, though maybe not in its first call."""
        names = (self.names.get(id(each)) for each in networks)
        self.asked |= {self.entries[name].network for name in names if name in self.entries}

    def stands_alone(self, network: str) -> bool:
        """Whether a network is as it was, has all of its tensors in a file, and refers to no object outside of it."""
        own = {name: each for name, each in self.entries.items() if each.network == network}
        tensors = {id(self.objects[name]) for name, each in own.items() if each.kind == tags.TENSOR}
        refs = (refs_in([each.made, *each.slots.values()]) for each in own.values())
        if not self.networks[network].is_same() or not all(each <= own.keys() for each in refs):
            return False
        try:
            pages = self.share_weights(self.objects[network].model)  # which compares the numbers
        except UnsendableError:
            return False
        return all(each in pages and pages[each] == self.pages.get(each) for each in tensors)

    def keep(self, networks: Set[str]) -> None:
        """Forgets all objects that are no part of these networks. "" stands for those of no network."""
        self.networks = {name: each for name, each in self.networks.items() if name in networks}
        self.entries = {name: each for name, each in self.entries.items() if each.network in networks}
        self.sent = {name: each for name, each in self.sent.items() if name in self.entries}
        self.objects = {name: self.objects[name] for name in self.entries}
        self.names = {id(value): name for name, value in self.objects.items()}
        self.pages = {key: page for key, page in self.pages.items() if key in self.names}

    def begin(self) -> None:
        """Looks at all objects again, but for networks that are as they were."""
        same = {name for name, each in self.networks.items() if each.is_same()}
        self.seen = {name for name, each in self.entries.items() if each.network in same}

    def forget_sent(self) -> None:
        """Called when the ranks have forgotten all objects. `changes` returns all of them again."""
        self.sent = {}

    def changes(self) -> Encoded:
        """Returns what changed since the last time, for `Decoder.apply`. Empty if nothing did."""
        if not self.is_sent:
            self.keep({"", *self.asked})
            self.kept, self.is_sent = [name for name in self.networks if name in self.sent], True
        found = []
        for name, entry in self.entries.items():
            then, before = self.sent.get(name, (None, {}))
            if entry is then:  # it was not looked at again
                continue
            slots = [list(slot) for key, slot in entry.slots.items() if before.get(key) != comparable(slot[1])]
            if entry.kind == tags.TENSOR:
                slots = [[key, each.tensor if isinstance(each, Version) else each] for key, each in slots]
            gone = [json.loads(key) for key in before.keys() - entry.slots.keys()]
            new = {} if then else {tags.NEW: [entry.kind, entry.made, entry.stays, entry.network]}
            if new or slots or gone:
                found.append({tags.REF: name, tags.SLOTS: slots, tags.GONE: gone, **new})
                before = kept(entry.slots)
            self.sent[name] = entry, before
        return found

    def absorb(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes over what functions in the ranks changed. state: of `Decoder.state`, with the tensors that it names."""
        for name, tensor in tensors.items():
            self.objects[name] = tensor
            self.names[id(tensor)] = name
            entry = Entry(tags.TENSOR, False, only_slot(Version(tensor, compat.version_of(tensor))))
            self.entries[name], self.sent[name] = entry, (entry, kept(entry.slots))
        for name, slots in state.items():
            entry, (_, sent) = self.entries[name], self.sent[name]
            for key, (present, value) in slots.items():
                set_slot(self.objects[name], entry.kind, json.loads(key), self.restore(value), present)
                sent.pop(key, None)
                _, before = entry.slots.pop(key, (None, None))
                for gone in replaced_tensors(before, value) & self.objects.keys():  # the ranks have forgotten them
                    self.names.pop(id(self.objects.pop(gone)), None)
                    del self.entries[gone], self.sent[gone]
                if present:
                    entry.slots[key], sent[key] = (json.loads(key), value), key_of(value)

    def restore(self, encoded: Encoded) -> Any:
        """Returns a value that a rank encoded."""
        if not isinstance(encoded, dict):
            return encoded
        return self.objects[encoded[tags.REF]] if tags.REF in encoded else tuple(map(self.restore, encoded[tags.TUPLE]))

    def encode(self, value: Any) -> Encoded:
        """Raises UnsendableError for what the ranks cannot have."""
        if type(value) in PLAIN:
            return value
        if id(value) in self.parts:
            return {tags.PART: self.parts[id(value)]}
        if tag := TAGS.get(type(value)):
            parts = VALUES[tag][1](value)
            return {tag: self.encode_all(parts) if isinstance(parts, list) else parts}
        if isinstance(value, CODE) and (name := installed_name(value)):
            return {tags.NAMED: name}
        if encode := self.inline.get(type(value)):
            return encode(self, value)
        if isinstance(value, enum.Enum):
            return {tags.MEMBER: [self.encode(type(value)), value.name]}
        if isinstance(value, type):
            return self.encode_class(value)
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return {tags.NAMED_TUPLE: [self.encode(type(value)), self.encode_all(value)]}
        if isinstance(value, types.FunctionType) and (inner := inside_of_wrapper(value)):
            return self.encode(inner)
        return self.refer(value)

    def encode_or_forget(self, value: Any) -> Encoded:
        """Encodes a value. If a part of it cannot be sent, forgets all of it, and raises UnsendableError."""
        before = set(self.entries)
        try:
            return self.encode(value)
        except UnsendableError:
            for name in self.entries.keys() - before:
                del self.entries[name]
            self.seen &= self.entries.keys()
            raise

    def encode_all(self, values: Iterable[Any]) -> list[Encoded]:
        return [self.encode(each) for each in values]

    def encode_method(self, value: types.MethodType) -> Encoded:
        path, name = self.parts.get(id(value.__self__)), value.__func__.__name__
        if path is not None and getattr(type(value.__self__), name, None) is value.__func__:
            return {tags.CLASS_METHOD: [path, name]}
        return {tags.METHOD: [self.encode(value.__func__), self.encode(value.__self__)]}

    def encode_class(self, value: type) -> Encoded:
        if is_installed(value):
            raise UnsendableError(f"The class {value.__qualname__} is of an installed package.")
        if "<" in value.__qualname__ and vars(value).keys() <= OF_EMPTY_CLASS:
            return {tags.EMPTY_CLASS: [value.__name__, self.encode_all(value.__bases__)]}
        if "<" in value.__qualname__:
            raise UnsendableError(f"The class {value.__qualname__} is inside of a function.")
        self.classes[value] = None
        return {tags.CLASS: [self.name_file(file_of(value)), value.__qualname__]}

    inline: Mapping[type, Callable[[Any, Any], Encoded]] = {
        torch.device: lambda _self, value: {tags.DEVICE: value.type},
        types.MethodType: encode_method,
        types.ModuleType: lambda self, value: {tags.MODULE: self.name_file(file_of(value))},
    }

    def name(self, value: Any) -> str:
        """Returns the name of an object, always the same for the same object."""
        if id(value) not in self.names:
            name = self.names[id(value)] = str(next(self.numbers))
            self.objects[name] = value
        return self.names[id(value)]

    def refer(self, value: Any) -> Encoded:
        """Names an object that can change, and encodes it once."""
        name = self.name(value)
        if name not in self.seen:
            self.seen.add(name)  # first, because an object may hold itself
            entry = self.enter(value)
            self.entries[name] = entry._replace(stays=self.stays or entry.stays, network=entry.network or self.network)
        if name in self.entries and (owner := self.entries[name].network):
            self.asked.add(owner)
        if network := self.networks.get(name):
            self.functions += network.functions
            self.classes |= network.classes
        return {tags.REF: name}

    def add_variables(self, owner: Any, values: Mapping[str, Any], are_all: bool = False) -> None:
        """Makes variables of a class, of a Python module or of a part of the model those of ComfyUI's process. are_all:
        whether others that were named before are gone."""
        name = self.name(owner)
        before = self.entries[name].slots if name in self.entries and not are_all else {}
        self.entries[name] = Entry(tags.NAMESPACE, self.encode(owner), {**before, **self.slots(values)})

    def enter(self, value: Any) -> Entry:
        if isinstance(value, torch.Tensor):
            return self.enter_tensor(value)
        if isinstance(value, types.FunctionType):
            return self.enter_function(value)
        if kind := {list: tags.LIST, set: tags.SET, types.CellType: tags.CELL}.get(type(value)):
            return Entry(kind, None, self.slots(slots_of(value, kind)))
        if type(value) in DICTS.values():
            factory = getattr(value, "default_factory", None)
            if factory is not None and not (isinstance(factory, type) and is_harmless(factory)):
                raise UnsendableError("A defaultdict whose values a function makes cannot be sent to the ranks.")
            return Entry(tags.DICT, [type(value).__name__, self.encode(factory)], self.slots(value))
        if find := next((find for cls, find in self.needed.items() if isinstance(value, cls)), None):
            return self.enter_needed(value, find(value))
        kind = type(value)
        is_torchs = kind.__module__.startswith("torch.") and not isinstance(value, torch.nn.Module)
        has_slots = not hasattr(value, "__dict__") or any(vars(each).get("__slots__") for each in kind.__mro__)
        if isinstance(value, (*BUILT_IN, *self.not_sent)) or has_slots or is_torchs:
            raise UnsendableError(f"A {kind.__name__} cannot be sent to the ranks.")
        return Entry(tags.OBJECT, self.encode(kind), self.slots(slots_of(value, tags.OBJECT)))

    def enter_needed(self, value: Any, needed: Needed) -> Entry:
        """Nobody in ComfyUI's process reads what the ranks change of it."""
        before = self.stays, self.network, self.functions, self.classes
        self.stays = True
        try:
            if needed.cls is not None:
                return Entry(tags.OBJECT, self.encode(needed.cls), self.slots(needed.attributes), True)
            self.pages |= self.share_weights(value.model)
            self.network, self.functions, self.classes = self.name(value), [], {}
            slots = self.slots(needed.attributes)
            self.networks[self.network] = Network(value.model, self.functions, self.classes)
            return Entry(tags.PATCHER, None, slots, True, self.network)
        finally:
            self.stays, self.network, self.functions, self.classes = before

    def enter_tensor(self, value: torch.Tensor) -> Entry:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UnsendableError("A weight of the model cannot be sent to the ranks, which have it.")
        if value.is_meta or value.layout != torch.strided:
            raise UnsendableError("A tensor without numbers cannot be sent to the ranks.")
        page = self.pages.get(id(value))
        numbers = {tags.PAGE: list(page)} if page else Version(value, compat.version_of(value))
        return Entry(tags.TENSOR, type(value) is torch.nn.Parameter, only_slot(numbers))

    def enter_function(self, value: types.FunctionType) -> Entry:
        self.functions.append(value)
        code = value.__code__
        if value.__globals__.get("__file__") and file_of(value) != value.__globals__["__file__"]:
            raise UnsendableError(f"The code of {value.__qualname__} was made elsewhere.")
        named, cells = self.name_file(code.co_filename), self.encode_all(value.__closure__ or ())
        made = [named, mark_of(code), value.__qualname__, cells]
        return Entry(tags.FUNCTION, made, self.slots(slots_of(value, tags.FUNCTION)))

    def slots(self, values: Mapping[Any, Any]) -> dict[str, tuple[Encoded, Encoded]]:
        found = {}
        for key, value in values.items():
            name = self.encode(key)
            found[key_of(name)] = (name, self.encode(value))
        return found
