"""Names the arguments of a call, whether a model passes them by position or by name."""

from __future__ import annotations

import inspect
from typing import Any

BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Parameters:
    """What a signature says, read once: torch calls a block's hooks in every forward.

    positional: the parameters that may be passed by position. takes_any: whether it has `**kwargs`.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        self.positional = tuple(parameter.name for parameter in parameters if parameter.kind in BY_POSITION)
        self.takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        self.defaults = {parameter.name: parameter.default for parameter in parameters}

    def name(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by name, those by position first. Those of `*args` are named by their
        position. What the function does not take is passed on, so that it raises its own error. Raises TypeError for an
        argument that is given by position and by name, which would be lost here."""
        rest = range(len(args) - len(self.positional))
        by_place = (*self.positional[: len(args)], *map(str, rest))
        if not kwargs.keys().isdisjoint(by_place):
            raise TypeError(f"got multiple values for {', '.join(sorted(kwargs.keys() & {*by_place}))}")
        return {**dict(zip(by_place, args, strict=True)), **kwargs}

    def is_given(self, name: str, value: Any) -> bool:
        """Whether an argument differs from its default."""
        return value is not None and value is not self.defaults.get(name)

    def pass_on(self, values: dict[str, Any], args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Returns the positional and the keyword arguments of the call with these values, from `name`. A value that was
        added is passed if the function takes any."""
        names = [*values]
        by_place, by_name = names[: len(args)], names[len(args) :] if self.takes_any else kwargs
        return tuple(values[name] for name in by_place), {name: values[name] for name in by_name}
