"""Names the arguments of a call, whether a model passes them by position or by name."""

from __future__ import annotations

import inspect
from typing import Any

BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Parameters:
    """What a signature says, read once: torch calls a block's hooks in every forward.

    places: the parameters that may be passed by position. rest, extra: the names of `*args` and `**kwargs`, if any.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature
        parameters = signature.parameters.values()
        kinds = {parameter.kind: parameter.name for parameter in parameters}
        self.places = tuple(parameter.name for parameter in parameters if parameter.kind in BY_POSITION)
        self.rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        self.extra = kinds.get(inspect.Parameter.VAR_KEYWORD)
        self.defaults = {parameter.name: parameter.default for parameter in parameters}

    def fits(self, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether the function takes these arguments, apart from those that are missing."""
        by_place = self.places[: len(args)]
        return (
            (self.rest is not None or len(args) <= len(self.places))
            and kwargs.keys().isdisjoint(by_place)
            and (self.extra is not None or kwargs.keys() <= self.defaults.keys())
        )


class Arguments:
    """The arguments of one call by name, whether they are passed by position or by name. Those of `*args` are named by
    their position. Raises TypeError for arguments that the function does not take."""

    def __init__(self, parameters: Parameters, args: tuple, kwargs: dict[str, Any]) -> None:
        if not parameters.fits(args, kwargs):
            parameters.signature.bind(*args, **kwargs)  # says what is wrong
        self.parameters = parameters
        rest = range(len(args) - len(parameters.places))
        self.by_place = (*parameters.places[: len(args)], *map(str, rest))
        self.by_name = tuple(kwargs)
        self.values: dict[str, Any] = {**dict(zip(self.by_place, args, strict=True)), **kwargs}

    def is_given(self, name: str) -> bool:
        """Whether an argument differs from its default."""
        value = self.values.get(name)
        return value is not None and value is not self.parameters.defaults.get(name)

    def passed(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the positional and the keyword arguments of the call. A value that was added is passed if the
        function takes any."""
        names = self.by_name
        if self.parameters.extra:
            names = [name for name in self.values if name not in self.by_place]
        return tuple(self.values[name] for name in self.by_place), {name: self.values[name] for name in names}
