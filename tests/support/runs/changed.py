"""Which tests a change touches: `dev.py test --changed`. Read from what files import, name and share as fixtures.

A test file is touched where it, or anything that it reaches, has changed. It reaches what it imports; a module or
program that it names in a string, as one that starts it does; what the fixtures of its conftests use; and, where a
string names a file that is no module, or the folder of one, that file.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

from demo.host import REPOSITORY

PACKAGES = ("nodes", "worker", "parallel_backend", "demo", "tests")
RANK_PROGRAMS = "tests.support.ranks"
# A started ComfyUI loads the pack, whose page has what lies in these folders.
PACK, PACK_FIXTURES = "__init__.py", ("comfyui", "older_comfyui")
PACK_FOLDERS = ("web/", "locales/")


def changed_files(root: Path, since: str) -> set[str]:
    """The files that differ from where this branch left `since`; what is not committed, or not in git yet, included."""

    def git(*arguments: str) -> list[str]:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()

    base = git("merge-base", since, "HEAD")[0]
    return {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}


def python_files(root: Path) -> dict[str, str]:
    """The repository's Python, by path."""
    paths = [*root.glob("*.py"), *(path for package in PACKAGES for path in (root / package).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


class Reach:
    """What each file of a tree of sources reaches."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._modules = {
            path.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", "."): path for path in sources
        }
        self._next: dict[str, set[str]] = {}

    def touched(self, changed: Collection[str]) -> set[str]:
        """The test files that these changes touch."""
        tests = [path for path in self._sources if PurePosixPath(path).name.startswith("test_")]
        return {path for path in tests if self.is_touched(path, changed)}

    def is_touched(self, test: str, changed: Collection[str]) -> bool:
        folders = map(str, PurePosixPath(test).parents)
        conftests = [path for folder in folders if (path := f"{folder}/conftest.py") in self._sources]
        reached = self._reached({test, *self._used_by_fixtures(test, conftests)}) | set(conftests)
        if reached & set(changed):
            return True
        words = {word for path in reached if path.startswith("tests/") for word in _words(self._sources[path])}
        for path in set(changed) - set(self._sources):
            names = {path, PurePosixPath(path).name, *PurePosixPath(path).parts[:-1]}
            if names & words or (PACK in reached and path.startswith(PACK_FOLDERS)):
                return True
        return False

    def _reached(self, starts: Iterable[str]) -> set[str]:
        reached: set[str] = set()
        waiting = list(starts)
        while waiting:
            path = waiting.pop()
            if path not in reached:
                reached.add(path)
                waiting += self._reached_directly(path)
        return reached

    def _reached_directly(self, path: str) -> set[str]:
        if path not in self._next:
            source = self._sources[path]
            imported = (file for name in _imports(path, source) for file in self._files_of(name))
            named = (file for word in _words(source) for file in self._files_named(word))
            self._next[path] = {*imported, *named}
        return self._next[path]

    def _files_of(self, name: str) -> Iterator[str]:
        """The module that a dotted name is or lies in, and the packages that hold it, whose code runs first."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            if path := self._modules.get(".".join(parts[:end])):
                yield path

    def _files_named(self, word: str) -> Iterator[str]:
        for module in (word if "." in word else "", f"{RANK_PROGRAMS}.{word}"):
            if path := self._modules.get(module) if module else None:
                yield path
        if word.endswith(".py") and word in self._sources:
            yield word

    def _used_by_fixtures(self, test: str, conftests: Iterable[str]) -> set[str]:
        """The files that the conftests' fixtures use which a test file names."""
        definitions: dict[str, tuple[str, ast.stmt]] = {}
        for conftest in reversed(list(conftests)):
            for node in _parse(self._sources[conftest]).body:
                for name in _bound(node):
                    definitions[name] = (conftest, node)
        waiting, seen, found = list(_names(_parse(self._sources[test]))), set(), set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in definitions:
                continue
            seen.add(name)
            conftest, node = definitions[name]
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported = _imports(conftest, ast.unparse(_only(node, name)))
                found |= {file for dotted in imported for file in self._files_of(dotted)}
            waiting += _names(node)
        return found | ({PACK} if seen & set(PACK_FIXTURES) else set())


@functools.cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


@functools.cache
def _imports(path: str, source: str) -> tuple[str, ...]:
    """The dotted names that a file imports."""
    package, names = path.split("/")[:-1], []
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{start}.{alias.name}".strip(".") for alias in node.names]
    return tuple(names)


@functools.cache
def _words(source: str) -> frozenset[str]:
    """The texts in a file that may name a file, a folder or a module: single words that are no docstring."""
    parsed = _parse(source)
    docstrings = {id(node.value) for node in ast.walk(parsed) if isinstance(node, ast.Expr)}
    found = (node.value for node in ast.walk(parsed) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return frozenset(text for text in found if isinstance(text, str) and len(text.split()) == 1)


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]


def _names(node: ast.AST) -> set[str]:
    """Every name that is used, arguments' and texts' included: those are how fixtures are asked for."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    names |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    return names | {
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def _only(node: ast.Import | ast.ImportFrom, name: str) -> ast.Import | ast.ImportFrom:
    """The import of one name of several."""
    aliases = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] == name]
    if isinstance(node, ast.Import):
        return ast.Import(aliases)
    return ast.ImportFrom(node.module, aliases, node.level)


def select(config: pytest.Config, items: list[pytest.Item], since: str) -> str:
    """Leaves in `items` what the change touches; returns what is to be said of the others. Raises pytest.UsageError."""
    try:
        found = changed_files(REPOSITORY, since)
    except subprocess.CalledProcessError as error:
        raise pytest.UsageError(f"--changed {since}: {error.stderr.strip()}") from error
    touched = {REPOSITORY / path for path in Reach(python_files(REPOSITORY)).touched(found)}
    others = [item for item in items if item.path not in touched]
    items[:] = [item for item in items if item.path in touched]
    config.hook.pytest_deselected(items=others)
    return f"{len(others)} tests left out: the {len(found)} files changed since {since} do not touch them"
