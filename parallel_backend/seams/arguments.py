"""Names the arguments of a call, whether a model passes them by position or by name."""

from __future__ import annotations

import inspect
from typing import Any


class Arguments:
    """The arguments of one call by name, whether they are passed by position or by name. Those of `*args` are named by
    their position."""

    def __init__(self, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> None:
        self.bound = signature.bind(*args, **kwargs)
        kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
        self.rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        self.extra = kinds.get(inspect.Parameter.VAR_KEYWORD)
        self.defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
        own = dict(self.bound.arguments)
        rest, extra = own.pop(self.rest or "", ()), own.pop(self.extra or "", {})
        self.values: dict[str, Any] = {**own, **{str(place): value for place, value in enumerate(rest)}, **extra}
        self.count = len(rest)

    def is_given(self, name: str) -> bool:
        """Whether an argument differs from its default."""
        value = self.values.get(name)
        return value is not None and value is not self.defaults.get(name)

    def passed(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the positional and the keyword arguments of the call."""
        values = dict(self.values)
        if self.rest:
            self.bound.arguments[self.rest] = tuple(values.pop(str(place)) for place in range(self.count))
        for name in self.bound.arguments.keys() & values.keys():
            self.bound.arguments[name] = values.pop(name)
        if self.extra:
            self.bound.arguments[self.extra] = values
        return self.bound.args, self.bound.kwargs
