"""The methods that a call of the model begins with, where nodes have replaced them.

Such a function either holds the method that it replaces, and goes on to it. Then it runs here, and the call that it
makes goes to the ranks. Or it takes the method's place. Then it would run the model's parts here, so the whole call
goes to the ranks, and the function runs there. Likewise if a node gives the whole model a class of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ...parallel_backend.compat import hooks_of
from ...worker.comfyui.entry import leaves_by, runs_wrappers
from ...worker.inside.changes import HOOKS
from ...worker.wire.operations import FORWARD, INNER
from .module_guard import Watched
from .references import CELL, contents


class ReplacedMethod(NamedTuple):
    """A function in place of a method. function: None if the module's class has it. goes_on: whether it holds that
    method."""

    name: str
    function: Any
    goes_on: bool


class ReplacedMethods:
    """Finds the functions that nodes put in place of `forward` and `_forward`.

    sent: the one that runs in the ranks in the current call. signatures: of the methods by which calls leave."""

    def __init__(self, module: torch.nn.Module, stand_ins: Mapping[str, Any], runs_here: Callable[[], bool]) -> None:
        """stand_ins: the methods of the module that become requests. runs_here: whether they are not there now."""
        self.module, self.stand_ins, self.runs_here = module, stand_ins, runs_here
        self.own_class, self.own_forward = type(module), type(module).forward
        names = (FORWARD, leaves_by(type(module)))
        self.signatures = {name: inspect.signature(getattr(type(module), name).__get__(module)) for name in names}
        self.sent: ReplacedMethod | None = None

    @property
    def method(self) -> str:
        """The method by which the running call leaves: one that a node has replaced, if that is sent to the ranks."""
        return self.sent.name if self.sent else [*self.signatures][-1]

    @property
    def signature(self) -> inspect.Signature:
        return self.signatures[self.method]

    def name_arguments(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the running call by name."""
        values = dict(self.signature.bind(*args, **kwargs).arguments)
        rest = next((p.name for p in self.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
        return {**values.pop(rest, {}), **values}

    def find(self) -> list[ReplacedMethod]:
        """Returns them in the order in which a call would run them, but for the one that is sent."""
        if self.runs_here():
            return []
        own, found = vars(self.module), []
        forward, before = own.get(FORWARD, type(self.module).forward), self.stand_ins.get(FORWARD, self.own_forward)
        if function_of(forward) is not function_of(before):
            found.append(ReplacedMethod(FORWARD, own.get(FORWARD), holds(forward, before)))
        inner, before = own.get(INNER), self.stand_ins.get(INNER)
        if inner is not before:
            found.append(ReplacedMethod(INNER, inner, holds(inner, before)))
        return [each for each in found if self.sent is None or each.name != self.sent.name]

    def explain_class(self) -> list[str]:
        """Returns why the ranks cannot run the model as another class, which a node has given to it; empty if they
        can. In the ranks, no wrapper of a node would run within the class's `forward`."""
        cls: Any = type(self.module)
        if cls is self.own_class:
            return []
        if not issubclass(cls, self.own_class):
            return [f"the model's class {cls.__name__} (it is not derived from the model's own)"]
        if cls.forward is self.own_forward:
            return []
        code = getattr(inspect.unwrap(cls.forward), "__code__", None)
        if code is None or {FORWARD, INNER} & {*code.co_names}:
            return [f"the model's class {cls.__name__} (its forward goes on to another)"]
        if INNER not in self.stand_ins and runs_wrappers(self.own_class):
            return [f"the model's class {cls.__name__} (its forward takes the place of one that runs nodes' wrappers)"]
        return []

    def run_here(self) -> bool:
        """Whether functions of nodes run here around each call of the module."""
        return any(map(len, hooks_of(self.module))) or any(each.goes_on for each in self.find())

    def choose(self, changes: list[Watched], patches: Mapping[str, Any]) -> tuple[list[Watched], dict[str, Any]]:
        """Returns which changes of the module, and which objects that a patcher put in, go to the ranks."""
        here, sent = {each.name for each in self.find()}, self.sent
        chosen = {path: value for path, value in patches.items() if path not in here}
        if sent and sent.function is not None:
            chosen[sent.name] = sent.function
        return [each for each in changes if not self.acts_here(each, here)], chosen

    def acts_here(self, change: Watched, here: Collection[str]) -> bool:
        """Whether a change has its effect here, so that the ranks may not make it, too."""
        owner, key = change.owner, change.key
        if owner is self.module:
            return change.kind in HOOKS or key in here or self.sent is not None and key == self.sent.name
        return key == FORWARD and key in here and FORWARD not in self.stand_ins and owner in type(self.module).__mro__

    @contextmanager
    def redirect(self, send: Callable[..., Any]) -> Iterator[None]:
        """While entered, a call goes to the ranks where it would begin with a function in a method's place."""
        replaced = next((each for each in self.find() if not each.goes_on), None)
        if replaced is None or self.sent:
            yield
            return
        vars(self.module)[replaced.name], self.sent = send, replaced
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> str:
        """Puts the function back that was sent, if any. Returns the name of its method."""
        replaced, self.sent = self.sent, None
        if replaced is None:
            return ""
        if replaced.function is None:
            vars(self.module).pop(replaced.name, None)
        else:
            vars(self.module)[replaced.name] = replaced.function
        return replaced.name


def function_of(value: Any) -> Any:
    return getattr(value, "__func__", value)


def holds(value: Any, method: Any) -> bool:
    """Whether a function holds a method, also in an object or a function that it holds."""
    wanted = {id(method), id(function_of(method))}
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in wanted:
            return True
        is_call = callable(each) and not isinstance(each, (type, torch.nn.Module))
        if id(each) not in seen and (is_call or isinstance(each, (CELL, list, tuple))):
            seen.add(id(each))
            waiting += contents(each)
    return False
