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

import comfy.model_base
import torch

from ...parallel_backend.compat import hooks_with_kwargs
from ...worker.inside.changes import HOOKS, OBJECT_PATCH
from ...worker.inside.code_files import CodeFiles, codes_in, file_of, is_installed
from ...worker.inside.encoder import Encoder
from ...worker.inside.object_graph import Encoded
from ...worker.wire.tensors import UnsendableError
from ...worker.wire.tree import PLAIN
from .facts import Facts, find_facts
from .module_guard import TORCH, WEIGHTS, Change
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
NOT_SENT = (comfy.model_base.BaseModel,)


class Inside:
    """The graph of what nodes put into the model."""

    def __init__(
        self, parts: Mapping[int, str], files: CodeFiles, places: BlockPlaces, is_one_machine: Callable[[], bool]
    ) -> None:
        """parts: of the module as it was loaded, with the stand-in's methods, by id. places: of its blocks.
        is_one_machine: whether all ranks are on this machine."""
        self.files, self.places = files, places
        share = lambda network: share_weights(network) if is_one_machine() else {}  # noqa: E731
        self.encoder = Encoder(files, parts, NOT_SENT, NEEDED, share)
        # Where something runs inside of the model, in words, and how it shares.
        self.asked: list[tuple[str, Facts]] = []
        self.reasons: list[str] = []  # what of the call cannot be described, in words

    def begin(self) -> None:
        """Begins the description of a call."""
        self.asked, self.reasons = [], []
        self.encoder.begin()

    def attempt(self, say: Callable[[UnsendableError], str], describe: Callable[..., Encoded], *given: Any) -> Encoded:
        """Returns a description. If there is none, returns None, and keeps the reason. say: puts it into words."""
        try:
            return describe(*given)
        except UnsendableError as error:
            self.reasons.append(say(error))
            return None

    @property
    def has_unknown(self) -> bool:
        """Whether a function runs inside that nobody has read, or one of a pack."""
        return any(facts.reads_pack or not (facts.splits_tokens or facts.splits_rows) for _, facts in self.asked)

    @property
    def needs_all_tokens(self) -> bool:
        """Whether something between the blocks needs all tokens."""
        return any(facts.between and not facts.splits_tokens for _, facts in self.asked)

    def keep_rank_tokens(self) -> None:
        """Called after everything is described. If a network inside of the model shares its tokens, nothing between the
        blocks gets all of them: the network takes a rank's own."""
        if any(facts.by_network and facts.splits_tokens for _, facts in self.asked):
            self.asked = [(place, facts._replace(between=False)) for place, facts in self.asked]

    def describe(self, value: Any, place: str, owner: str, between: bool, is_data: bool = False) -> Encoded:
        """Describes a value that runs inside. place, owner: in words. between: whether it runs between the blocks.
        is_data: whether it matters only if there is code in it. Raises UnsendableError."""
        known = find_facts(value, self.files)
        encoder = self.encoder
        encoder.functions, encoder.classes, encoder.stays = [], {}, known is not None
        encoded = encoder.encode(value)
        encoder.stays = False  # of what follows
        if is_data and not (encoder.functions or encoder.classes):
            return encoded
        codes = self.follow_code() if known is None or known.reads_pack else []
        facts = known or Facts(owner, is_stateless=not any(map(keeps_state, codes)))
        self.asked.append((place, facts._replace(between=between)))
        return encoded

    def describe_object_patch(self, path: str, value: Any) -> Encoded:
        """Describes a value that a patcher puts into the model. A plain one is a setting, which is right for any part
        of the tokens. Raises UnsendableError."""
        if type(value) in PLAIN:
            return [OBJECT_PATCH, path, value]
        return [OBJECT_PATCH, path, self.describe(value, path, path, self.places.has_patch(path))]

    def describe_change(self, change: Change) -> Encoded:
        """Describes a change of the module, see `changes.py` of the ranks. Raises UnsendableError."""
        watched, key = change.watched, change.key
        value, present = watched.now.get(key), key in watched.now
        if watched.owner in TORCH:
            raise UnsendableError("It is torch's, which the ranks' own code calls, too.")
        place = self.encoder.encode(watched.owner)
        if watched.kind == WEIGHTS:
            raise UnsendableError("It is a weight.")
        between = self.places.has_change(watched)
        if watched.kind not in HOOKS:
            return [watched.kind, place, key, present, self.describe(value, change.name, change.name, between)]
        if not present:
            raise UnsendableError("It is a hook that was removed.")
        with_kwargs = key in hooks_with_kwargs(watched.owner)[HOOKS.index(watched.kind)]
        hook = self.describe(value, f"a hook of {change.name}", change.name, between)
        return [watched.kind, place, with_kwargs, hook]

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
        encoder = self.encoder
        followed: set[types.FunctionType] = set()
        classes: set[type] = set()
        methods: list[tuple[str, types.FunctionType, bool]] = []
        names: set[str] = {"forward"}
        found: list[types.CodeType] = []
        known = -1  # functions and classes before the last round
        while known < (known := len({*encoder.functions}) + len(followed) + len(encoder.classes)):
            new = encoder.classes.keys() - classes
            classes |= new
            methods += [each for cls in new for each in list_methods(cls)]
            named = [each for name, each, is_called in methods if is_called or name in names]
            for function in [each for each in {*encoder.functions, *named} - followed if self.is_of_node(each)]:
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
                    self.encoder.functions.append(inspect.unwrap(value))
                elif isinstance(value, type):
                    self.encoder.classes[value] = None
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
