"""Moves what nodes have put on a MODEL to another model of the same file.

Nodes' functions and objects refer to the model that they were given: by a closure, a bound method or an attribute. On
the other model they have to refer to that one.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

from ..errors import Refused
from ..inside.references import CELL, FUNCTION, METHOD, PARTIAL, PATCHER, contents

MOST = 200_000  # objects that are looked through


class Moved:
    """Gives values with references to the parts of one model replaced by those to another's.

    What refers to none of the parts stays as it is. What does is copied, so the first model's MODEL is left alone. One
    object has one copy.
    """

    def __init__(self, parts: Mapping[int, Any], patcher: PATCHER, model: Any, root: Any) -> None:
        """parts: of the other model, by the id of the part in whose place each comes. patcher: of the other model.
        model: the first one. root: has all that is moved. Raises Refused for a root that has too much."""
        self.copies = dict(parts)
        self.patcher, self.model = patcher, model
        self.stays = self.find_staying(root)

    def find_staying(self, root: Any) -> dict[int, Any]:
        """Returns the objects below a root that lead to no part, by id."""
        found: dict[int, Any] = {}
        owners: dict[int, list[int]] = {}
        leading, waiting = [], [root]
        while waiting:
            value = waiting.pop()
            if id(value) in found:
                continue
            found[id(value)] = value
            if len(found) > MOST:
                raise Refused("Nodes have put too many objects on the MODEL to look through.")
            for each in contents(value):
                owners.setdefault(id(each), []).append(id(value))
                if isinstance(each, PATCHER) and each.model is self.model:
                    self.copies[id(each)] = self.patcher
                if id(each) in self.copies:
                    leading.append(id(value))
                else:
                    waiting.append(each)
        while leading:
            if found.pop(number := leading.pop(), None) is not None:
                leading += owners.get(number, ())
        return found

    def move(self, value: Any) -> Any:
        """Returns a value that is below the root. Raises Refused for an object that refers to a part and has no
        copies."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        if id(value) in self.stays:
            return value
        found = self.copies[id(value)] = self.begin_copy(value)
        if isinstance(value, (list, set)):
            (found.extend if isinstance(value, list) else found.update)(map(self.move, value))
        elif isinstance(value, dict):
            for key in value:
                found[self.move(key)] = self.move(value[key])
        elif isinstance(value, CELL):
            found.cell_contents = self.move(value.cell_contents)
        elif isinstance(value, FUNCTION):
            found.__dict__.update({name: self.move(each) for name, each in vars(value).items()})
        elif not isinstance(value, (tuple, weakref.ref, METHOD, PARTIAL)):
            vars(found).update({name: self.move(each) for name, each in vars(value).items()})
        return found

    def begin_copy(self, value: Any) -> Any:
        """Returns a copy that is still empty, if the value may hold itself."""
        if isinstance(value, (dict, list, set)):
            found = copy.copy(value)
            found.clear()
            return found
        if isinstance(value, CELL):
            return CELL()
        if isinstance(value, tuple):
            parts = map(self.move, value)
            return tuple(parts) if type(value) is tuple else type(value)(*parts)
        if isinstance(value, weakref.ref):
            return weakref.ref(self.move(value()))
        if isinstance(value, METHOD):
            return METHOD(self.move(value.__func__), self.move(value.__self__))
        if isinstance(value, PARTIAL):
            given = {name: self.move(each) for name, each in value.keywords.items()}
            return type(value)(self.move(value.func), *map(self.move, value.args), **given)
        if isinstance(value, FUNCTION):
            cells = tuple(map(self.move, value.__closure__ or ()))
            defaults = value.__defaults__ and tuple(map(self.move, value.__defaults__))
            found = FUNCTION(value.__code__, value.__globals__, value.__name__, defaults, cells or None)
            found.__kwdefaults__ = value.__kwdefaults__ and {k: self.move(v) for k, v in value.__kwdefaults__.items()}
            found.__qualname__, found.__module__, found.__doc__ = value.__qualname__, value.__module__, value.__doc__
            return found
        try:
            return copy.copy(value)
        except Exception as error:  # a pack's own code makes the copy
            raise Refused(
                f"A {type(value).__name__} that a node has put on the MODEL refers to the model's inside and cannot be "
                f"copied ({type(error).__name__}: {error})."
            ) from error
