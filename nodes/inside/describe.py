"""Describes to the ranks what nodes run or change inside of the model: functions, objects, and the module itself."""

from __future__ import annotations

import dis
import inspect
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch

from ...parallel_backend.compat import hooks_with_kwargs
from ...worker.comfyui import call_keys as keys
from ...worker.comfyui.source import HostSource
from ...worker.inside.changes import HOOKS, OBJECT_PATCH
from ...worker.inside.code_files import CodeFiles, codes_in, file_of, is_installed
from ...worker.inside.encoder import Encoder, Scope
from ...worker.inside.object_graph import Encoded
from ...worker.wire.tensors import UnsendableError
from ...worker.wire.tree import PLAIN, pack
from .attention_kernels import find_kernel
from .facts import Facts, find_facts
from .module_guard import TORCH, WEIGHTS, Watched
from .networks import NEEDED, share_weights
from .places import BlockPlaces

# Names in code that draws random numbers. The ranks' are others than ComfyUI's.
RANDOM = frozenset(
    "bernoulli bernoulli_ dropout exponential_ manual_seed multinomial normal normal_ rand rand_like randint "
    "randint_like randn randn_like random random_ randperm shuffle uniform uniform_".split()
)
# Instructions and names in code that keeps something from call to call. It may also write to a tensor of its own call.
WRITES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR", "DELETE_GLOBAL")
MUTATES = frozenset("add append clear extend insert pop popitem remove setattr delattr setdefault update".split())
HELD = (list, dict, set, tuple, torch.Tensor, uuid.UUID)
# Options that have done their work in ComfyUI's process by now, or are of no use elsewhere.
KEPT_HERE = ("wrappers", "callbacks", "uuids", "prefetch_dynamic_vbars")
# Options that code outside of the model's own classes reads, and that may be more than data. Options that neither
# reads are for the nodes' own wrappers, which run here.
READ_BY_CLASSES = (keys.OVERRIDE, "model_patch_data", "x_ref_attn_map")
# Options that ComfyUI makes anew for each call.
MADE_FOR_A_CALL = ("cond_or_uncond", "sigmas", "sample_sigmas")
# Options that a class writes its own results into, for its next call.
WRITTEN_BY_CLASSES = {"ar_state": "sampling frame by frame (autoregressive)"}
SHOWN = 3  # the most changes of a module that are named


class Inside:
    """Describes what nodes put into a model. Its encoder has the graph of their functions and objects."""

    def __init__(
        self, module: torch.nn.Module, source: HostSource, parts: Mapping[int, str], is_one_machine: Callable[[], bool]
    ) -> None:
        """parts: of the module as it was loaded, with the stand-in's methods, by id. is_one_machine: whether all ranks
        are on this machine."""
        self.files, self.places = CodeFiles(source.comfyui, source.packs), BlockPlaces(module)
        share = lambda network: share_weights(network) if is_one_machine() else {}  # noqa: E731
        self.encoder = Encoder(self.files, parts, NEEDED, share)
        self.facts: list[Facts] = []  # of what runs inside of the model in a call
        self.reasons: list[str] = []  # what of the call cannot be described, in words

    def describe_call(
        self,
        options: Mapping[str, Any],
        changes: Iterable[Watched],
        patches: Mapping[str, Any],
        notes: Callable[[], Mapping[torch.nn.Module, Iterable[str]]],
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns a call's options in the form that goes to the ranks, with the changes of the module, and why the
        ranks cannot run the call; empty if they can.

        patches: objects that a patcher put in, by path. notes: returns attributes that nodes keep on parts of the
        model.
        """
        self.facts, self.reasons = [], []
        self.encoder.begin()
        its = lambda name: lambda error: f"a change of its {name} ({error})"  # noqa: E731
        described = [self.attempt(its(path), self.describe_object_patch, path, each) for path, each in patches.items()]
        described += [self.attempt(its(each.name), self.describe_change, each) for each in changes]
        del self.reasons[SHOWN:]
        encoded = self.describe_options(options)
        if self.has_unknown:
            self.attempt(lambda error: f"what a node keeps on its parts ({error})", self.add_notes, notes())
        # If a network inside of the model shares its tokens, it takes a rank's own, so nothing else gets all of them.
        if any(facts.by_network and facts.splits_tokens for facts in self.facts):
            self.facts = [facts._replace(between=False) for facts in self.facts]
        needs_all_tokens = any(facts.between and not facts.splits_tokens for facts in self.facts)
        encoded |= {keys.MODEL_CHANGES: described} if described else {}
        encoded |= {keys.ALL_TOKENS: True} if needs_all_tokens else {}
        encoded |= {keys.FACTS: self.facts} if self.facts else {}
        return encoded, self.reasons

    def attempt(self, say: Callable[[UnsendableError], str], describe: Callable[..., Encoded], *given: Any) -> Encoded:
        """Returns a description. If there is none, returns None, and keeps the reason. say: puts it into words."""
        try:
            with self.encoder.look(Scope()):
                return describe(*given)
        except UnsendableError as error:
            self.reasons.append(say(error))
            return None

    @property
    def has_unknown(self) -> bool:
        """Whether a function runs inside that nobody has read, or one of a pack."""
        return any(facts.reads_pack or not (facts.splits_tokens or facts.splits_rows) for facts in self.facts)

    def describe_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options in the form that goes to the ranks."""
        self.reasons += list_written(options)

        def describe(value: Any, place: str, between: bool, is_data: bool = False, owner: str = "") -> Any:
            owner, where = owner or find_owner(value), f"the model patch {place!r}"
            say = lambda error: f"the model patch {place!r} of {owner} ({error})"  # noqa: E731
            return self.attempt(say, self.describe, value, where, owner, between, is_data)

        patches, replaced = (self.places.options.get(part, ()) for part in (keys.PATCHES, keys.REPLACED))
        functions = {
            keys.PATCHES: {
                name: [describe(each, name, name in patches) for each in own]
                for name, own in options.get(keys.PATCHES, {}).items()
            },
            keys.REPLACED: {
                name: [[list(key), describe(each, name, name in replaced)] for key, each in own.items()]
                for name, own in options.get(keys.REPLACED, {}).items()
            },
            keys.OTHER_OPTIONS: {},
        }
        found, others = {}, functions[keys.OTHER_OPTIONS]
        for name, value in options.items():
            if name in (*KEPT_HERE, keys.PATCHES, keys.REPLACED, *WRITTEN_BY_CLASSES):
                continue
            may_keep = self.has_unknown and isinstance(value, (dict, list)) and name not in MADE_FOR_A_CALL
            if is_data(name, options) and not may_keep:
                found[name] = value
            elif name == keys.OVERRIDE and (kernel := find_kernel(value, self.files)):
                found[keys.KERNEL] = kernel
            elif name in READ_BY_CLASSES:
                others[name] = describe(value, name, False)
            elif self.places.reads_option(name):  # nobody knows what for
                others[name] = describe(value, name, False, owner="the model's class")
            elif self.has_unknown:
                # Only functions read it that were asked until now.
                others[name] = describe(value, name, all(facts.between for facts in self.facts), True)
        return {**found, keys.NODE_FUNCTIONS: functions} if any(functions.values()) else found

    def describe(self, value: Any, place: str, owner: str, between: bool, is_data: bool = False) -> Encoded:
        """Describes a value that runs inside. place, owner: in words. between: whether it runs between the blocks.
        is_data: whether it matters only if there is code in it. Raises UnsendableError."""
        known = find_facts(value, self.files)
        with self.encoder.look(Scope(stays=known is not None)) as scope:
            encoded = self.encoder.encode(value)
            if is_data and not (scope.functions or scope.classes):
                return encoded
            scope.stays = False  # of what follows
            codes = self.follow_code() if known is None or known.reads_pack else []
        facts = known or Facts(owner, is_stateless=not any(map(keeps_state, codes)))
        self.facts.append(facts._replace(place=place, between=between))
        return encoded

    def describe_object_patch(self, path: str, value: Any) -> Encoded:
        """Describes a value that a patcher puts into the model. A plain one is a setting, which is right for any part
        of the tokens. Raises UnsendableError."""
        if type(value) in PLAIN:
            return [OBJECT_PATCH, path, value]
        return [OBJECT_PATCH, path, self.describe(value, path, path, self.places.has_patch(path))]

    def describe_change(self, change: Watched) -> Encoded:
        """Describes a change of the module, see `changes.py` of the ranks. Raises UnsendableError."""
        kind, key, name = change.kind, change.key, change.name
        value, present = change.now.get(key), key in change.now
        if change.owner in TORCH:
            raise UnsendableError("It is torch's, which the ranks' own code calls, too.")
        owner = self.encoder.encode(change.owner)
        if kind == WEIGHTS:
            raise UnsendableError("It is a weight.")
        between = self.places.has_change(change)
        if kind not in HOOKS:
            return [kind, owner, key, present, self.describe(value, name, name, between)]
        if not present:
            raise UnsendableError("It is a hook that was removed.")
        with_kwargs = key in hooks_with_kwargs(change.owner)[HOOKS.index(kind)]
        return [kind, owner, with_kwargs, self.describe(value, f"a hook of {name}", name, between)]

    def add_notes(self, notes: Mapping[torch.nn.Module, Iterable[str]]) -> None:
        """Takes along attributes that nodes set on parts of the model, for code of theirs that runs there. Raises
        UnsendableError."""
        for part, names in notes.items():
            if id(part) in self.encoder.parts:
                held = vars(part)
                self.encoder.add_variables(part, {name: held[name] for name in names if name in held}, are_all=True)

    def follow_code(self) -> list[types.CodeType]:
        """Returns the code of the functions that were named, and of what they call in node packs and in ComfyUI's own
        nodes. Variables that it reads go along. Raises UnsendableError for code that draws random numbers."""
        scope, followed = self.encoder.scope, set[types.FunctionType]()
        classes: set[type] = set()
        methods: list[tuple[str, types.FunctionType, bool]] = []
        names: set[str] = {"forward"}
        found: list[types.CodeType] = []
        known = -1  # functions and classes before the last round
        while known < (known := len(scope.functions) + len(followed) + len(scope.classes)):
            new = scope.classes.keys() - classes
            classes |= new
            methods += [each for cls in new for each in list_methods(cls)]
            named = [each for name, each, is_called in methods if is_called or name in names]
            for function in [each for each in {*scope.functions, *named} - followed if self.is_of_node(each)]:
                followed.add(function)
                own = list(codes_in(function.__code__))
                found += own
                in_code = {name for code in own for name in code.co_names}
                if drawn := in_code & RANDOM:
                    raise UnsendableError(f"{function.__qualname__} draws random numbers ({min(drawn)}).")
                names |= in_code
                self.add_variables(function, in_code)
            for cls in classes:
                self.add_class_variables(cls, names)
        return found

    def add_variables(self, function: types.FunctionType, names: set[str]) -> None:
        """Takes along the variables that its code names, of a function's module and of modules that this one names."""
        variables = function.__globals__
        own = sys.modules.get(str(variables.get("__name__")))
        if own is None or vars(own) is not variables:
            raise UnsendableError(f"{function.__qualname__} has no module.")
        named = [variables[name] for name in names & variables.keys()]
        modules = [each for each in named if isinstance(each, types.ModuleType) and self.is_of_node(each)]
        for module in (own, *modules):
            values: dict[str, Any] = {}
            for name in names & vars(module).keys():
                value = vars(module)[name]
                if isinstance(value, types.FunctionType):
                    self.encoder.scope.functions[inspect.unwrap(value)] = None
                elif isinstance(value, type):
                    self.encoder.scope.classes[value] = None
                elif type(value) in (*PLAIN, *HELD) and not name.startswith("__") or self.is_of_node(type(value)):
                    values[name] = value
            if values:
                self.encoder.add_variables(module, values)

    def add_class_variables(self, cls: type, names: set[str]) -> None:
        """Takes along those variables of a node's class that code names."""
        own = {name: value for name, value in vars(cls).items() if name in names and not name.startswith("__")}
        values = {name: value for name, value in own.items() if type(value) in (*PLAIN, *HELD)}
        if values and self.is_of_node(cls):
            self.encoder.add_variables(cls, values)

    def is_of_node(self, value: Any) -> bool:
        """Whether code belongs to a node: one of ComfyUI's own, or a node pack's."""
        try:
            return not self.files.relative_path(file_of(value)).startswith("0/comfy/")
        except UnsendableError:
            return False


def list_methods(cls: type) -> Iterator[tuple[str, types.FunctionType, bool]]:
    """Yields the methods of a class by name, and whether they are called without their names in the code: by Python, or
    by ComfyUI's code, one of whose own they replace."""
    called = {name for each in cls.__mro__ if each.__module__.startswith("comfy.") for name in vars(each)}
    for name, value in ((n, v) for each in cls.__mro__ if not is_installed(each) for n, v in vars(each).items()):
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, types.FunctionType):
            is_called = name not in ("__init__", "__new__") if name.startswith("__") else name in called
            yield name, inspect.unwrap(function), is_called


@cache
def keeps_state(code: types.CodeType) -> bool:
    """Whether code may keep something from call to call."""
    names = code.co_names
    if MUTATES & {*names} or any(name.endswith("_") and not name.startswith("_") for name in names):  # as torch's do
        return True
    done = ((each.opname, each.argval) for each in dis.get_instructions(code))
    return any(op in WRITES or op in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars for op, name in done)


def list_written(options: Mapping[str, Any]) -> list[str]:
    """Returns, in words, what the model's class keeps from call to call in these options."""
    return [words for name, words in WRITTEN_BY_CLASSES.items() if name in options]


def find_owner(function: Any) -> str:
    """Returns the node or class that a function belongs to."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return type(owner).__name__
    return getattr(function, "__qualname__", type(function).__name__).partition(".")[0]


def is_data(name: str, options: Mapping[str, Any]) -> bool:
    try:
        pack(options.get(name), name, {})
    except UnsendableError:
        return False
    return True
