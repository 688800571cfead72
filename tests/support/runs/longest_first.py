"""Which file a process runs next: the longest of those that need nothing but what it has started."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).resolve().parents[2]
# What takes long to start and serves many files, by its fixture.
SHARED = {
    "host": "ComfyUI",
    "browser": "a browser",
    "group_of_two": "a worker group",
    "ranks": "forked ranks",
    "labelled_ranks": "forked ranks without inference mode",
}
UNKNOWN_S = 15.0  # of a file that no run has been kept of

Needs = Mapping[str, frozenset[str]]  # by a test file's path in tests/


@functools.cache
def needs_of(file: str, tests: Path = TESTS) -> frozenset[str]:
    """What of SHARED a test file's tests need, by the names of their fixtures. file: its path in tests/."""
    path = tests / file
    folders = [folder for folder in reversed(path.parents) if folder.is_relative_to(tests)]
    fixtures: dict[str, list[str]] = {}
    for source in (*(folder / "conftest.py" for folder in folders), path):
        fixtures |= fixtures_in(source) if source.is_file() else {}
    waiting, found = list(asked_for(path)), set()
    while waiting:
        name = waiting.pop()
        if name in fixtures and name not in found:
            found.add(name)
            waiting += fixtures[name]
    return frozenset(SHARED[name] for name in found & set(SHARED))


def fixtures_in(source: Path) -> dict[str, list[str]]:
    """The fixtures that a file defines, and the names of those that each takes."""
    return {
        node.name: [argument.arg for argument in node.args.args]
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).startswith("pytest.fixture") for decorator in node.decorator_list)
    }


def asked_for(path: Path) -> Iterator[str]:
    """The fixtures that the tests of a file take, and those that `usefixtures` names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            given = {name for decorator in node.decorator_list for name in names_in(decorator, "parametrize")}
            yield from {argument.arg for argument in node.args.args} - given
        yield from names_in(node, "usefixtures")


def names_in(node: ast.AST, mark: str) -> Iterator[str]:
    """The texts that a mark is called with."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{mark}":
        texts = [each.value for part in node.args[:1] for each in ast.walk(part) if isinstance(each, ast.Constant)]
        yield from (name for text in texts if isinstance(text, str) for name in text.replace(",", " ").split())


def choose(
    waiting: Iterable[str], seconds: Mapping[str, float], needs: Needs, own: Collection[str], others: Collection[str]
) -> str:
    """The file for a process that has started `own`, while others have started `others`.

    It keeps to what it has started. A process that has started nothing takes first what needs something that nobody
    has. What needs nothing comes before what needs a second start.
    """

    def order(file: str) -> tuple[bool, bool, float]:
        needed = needs.get(file, frozenset())
        missing = needed - {*own}
        is_next = bool(needed) and (not missing if own else not missing & {*others})
        return not is_next, bool(missing), -seconds.get(file, UNKNOWN_S)

    return min(waiting, key=order)


class LongestFirst(LoadFileScheduling):
    """Shares out whole files. A process keeps to what it has started, as starting takes longer than most tests."""

    def __init__(self, config: Any, log: Any, seconds: Mapping[str, float]) -> None:
        super().__init__(config, log)
        self._seconds = seconds

    def _assign_work_unit(self, node: WorkerController) -> None:
        started = {
            each: {need for file in files for need in needs_of(file)} for each, files in self.assigned_work.items()
        }
        own = started.pop(node, set())
        others = {need for held in started.values() for need in held}
        needs = {file: needs_of(file) for file in self.workqueue}
        self.workqueue.move_to_end(choose(self.workqueue, self._seconds, needs, own, others), last=False)
        super()._assign_work_unit(node)
