"""Where the product asks whether a device is a GPU, and which of these places were told that it is.

A question is found in the syntax tree: what is compared with the name of a kind of device, or a call of a function of
the product's own that answers yes or no for a device (`ANSWERS`). In a program that is to, each question
notes its answers.
"""

from __future__ import annotations

import ast
import gc
import importlib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from demo.host import REPOSITORY

ROOMS = ("parallel_backend", "worker")
ANSWERS = REPOSITORY / "parallel_backend" / "device.py"  # its functions that return a bool
KINDS = {"cuda": True, "xpu": True, "cpu": False, "CPU": False, "CPU.type": False}  # as written: whether it is a GPU's
NOTE = "_note_of_device"


def sources() -> Iterator[tuple[str, Path, ast.Module]]:
    for room in ROOMS:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            relative = path.relative_to(REPOSITORY).with_suffix("")
            yield ".".join(relative.parts), path, ast.parse(path.read_text())


def answering() -> set[str]:
    """The names of the functions of ANSWERS."""
    tree = ast.parse(ANSWERS.read_text() if ANSWERS.exists() else "")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.returns]
    return {node.name for node in functions if ast.unparse(node.returns) == "bool"}


class Questions(ast.NodeTransformer):
    """Wraps each question of a module into a call of NOTE with its place and what it is of a GPU."""

    def __init__(self, module: str, answers: set[str]) -> None:
        self.inside, self.answers = [module], answers
        self.places: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        is_room = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if is_room:
            self.inside.append(node.name)
        node = self.generic_visit(node)
        if is_room:
            self.inside.pop()
        expected = self.of_a_gpu(node)
        if expected is None:
            return node
        place = ".".join(self.inside)
        before = sum(each.partition(" ")[0] == place for each in self.places)
        self.places.append(f"{place} {before + 1}" if before else place)
        given = [node, ast.Constant(self.places[-1]), ast.Constant(expected)]
        return ast.copy_location(ast.Call(ast.Name(NOTE, ast.Load()), given, []), node)

    def of_a_gpu(self, node: ast.AST) -> bool | None:
        """What the expression is for a GPU; None for one that does not ask."""
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[-1] in self.answers:
            return True
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return None
        for side in (node.left, *node.comparators):
            written = side.value if isinstance(side, ast.Constant) else ast.unparse(side)
            if written in KINDS:
                return KINDS[written] == isinstance(node.ops[0], ast.Eq)
        return None


def questions() -> list[str]:
    """The places of all, each by its module and function, with a number if it is not the function's first."""
    answers, found = answering(), []
    for module, _, tree in sources():
        asked = Questions(module, answers)
        asked.visit(tree)
        found += asked.places
    return found


def watch() -> set[str]:
    """The places that are told that a device is a GPU from here on."""
    told: set[str] = set()
    answers, codes = answering(), {}

    def note(answer: Any, place: str, expected: bool) -> Any:
        if bool(answer) == expected:
            told.add(place)
        return answer

    for name, path, tree in sources():
        asked = Questions(name, answers)
        noting = ast.fix_missing_locations(asked.visit(tree))
        if asked.places:
            vars(importlib.import_module(name))[NOTE] = note
            codes |= {key_of(code): code for code in codes_in(compile(noting, str(path), "exec"))}
    exchange(codes)
    return told


def exchange(codes: Mapping[tuple[str, str, int], types.CodeType]) -> None:
    """Gives the functions of this process the codes made of the same lines."""
    gc.unfreeze()  # what was imported before the fork
    for function in gc.get_objects():
        if type(function) is types.FunctionType and (code := codes.get(key_of(function.__code__))):
            function.__code__ = code
    gc.freeze()


def key_of(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_in(constant)
