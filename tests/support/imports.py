"""Reads a tree of sources: who imports what, when, and which private names are used. For the architecture's test."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

Tree = Mapping[str, str]  # path in the repository to source
FOLDERS = ("nodes", "worker", "parallel_backend", "web", "demo", "tests")
FILES = ("__init__.py", "dev.py")
PRODUCT = ("nodes", "worker", "parallel_backend")
NAMEDTUPLE = ("_asdict", "_fields", "_make", "_replace")  # documented, and underscored for the fields' sake
KINDS = re.compile(r"(?<![\w-])(cuda|xpu|mps)(?![\w-])")  # of accelerators
OF_KINDS = ("torch.cuda", "torch.xpu", "torch.mps")
BY_NAME = ("getattr", "hasattr", "setattr", "delattr")


@dataclass(frozen=True)
class Import:
    """One import in a file of the product.

    module: of that file. target: the module of ours, or the full name of what comes from elsewhere. when: "import",
    "call" in a function, "typing" under TYPE_CHECKING.
    """

    path: str
    line: int
    module: str
    target: str
    when: str = "import"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.target}"


def read_tree(root: Path) -> dict[str, str]:
    """The Python and JavaScript of the repository."""
    paths = [root / name for name in FILES]
    paths += [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in (".py", ".mjs")]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def modules_of(tree: Tree) -> dict[str, str]:
    """The product's modules: dotted name to path. The pack itself has the empty name."""
    paths = [path for path in tree if path == "__init__.py" or path.endswith(".py") and path.split("/")[0] in PRODUCT]
    return {path.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", "."): path for path in paths}


def is_in(module: str, package: str) -> bool:
    """Whether a dotted name is that package or lies in it."""
    return f"{module}.".startswith(f"{package}.")


def imports_of(tree: Tree) -> list[Import]:
    """Every import of the product, one for each name."""
    modules = modules_of(tree)

    def known(found: Import) -> Import:
        """Of the module of ours that the imported name is, or lies in; else of the name."""
        name = found.target
        while name not in modules and "." in name:
            name = name.rpartition(".")[0]
        return replace(found, target=name) if name in modules and name != found.target else found

    return [known(found) for module, path in modules.items() for found in _imports(module, path, tree[path])]


@functools.cache  # the mutations change one file of many
def _imports(module: str, path: str, source: str) -> tuple[Import, ...]:
    """With the full names that are imported as targets."""
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]

    def absolute(name: str, level: int) -> str:
        above = package.split(".") if package else []
        kept = above[: len(above) - level + 1] if level else []
        return ".".join([*kept, *([name] if name else [])])

    def walk(node: ast.AST, when: str) -> Iterator[Import]:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = absolute(node.module or "", node.level)
            names = [f"{start}.{alias.name}".strip(".") for alias in node.names]
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__") and _text(node, 0):
            name = _text(node, 0)
            names = [absolute(name.lstrip("."), len(name) - len(name.lstrip(".")))]
        for name in names:
            yield Import(path, node.lineno, module, name, when)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "import":
            when = "call"
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (found for child in node.body for found in walk(child, "typing"))
            yield from (found for child in node.orelse for found in walk(child, when))
            return
        yield from (found for child in ast.iter_child_nodes(node) for found in walk(child, when))

    return tuple(walk(ast.parse(source), "import"))


@functools.cache
def private_uses(source: str) -> tuple[tuple[int, str], ...]:
    """Uses of others' private names, as line and name: imported, reached as an attribute, or asked for by name.

    A file's own are no others': what is an attribute of self is, where the file itself defines it. The standard
    library's are left alone, of which `os._exit` is a documented one.
    """
    parsed, found = ast.parse(source), []
    own = {node.name for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.id for node in ast.walk(parsed) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {
        node.attr for node in ast.walk(parsed) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for name in (f"{start}.{alias.name}".strip(".") for alias in node.names):
                if any(map(_is_private, name.split("."))):
                    found.append((node.lineno, name))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            holder = ast.unparse(node.value)
            is_own = holder in ("self", "cls") and node.attr in own
            if not is_own and holder not in sys.stdlib_module_names:
                found.append((node.lineno, f"{holder}.{node.attr}"))
        elif isinstance(node, ast.Call) and _called(node) in BY_NAME and _is_private(_text(node, 1)):
            found.append((node.lineno, f"{ast.unparse(node.args[0])}.{_text(node, 1)}"))
    return tuple(found)


@functools.cache
def device_uses(source: str) -> tuple[tuple[int, str], ...]:
    """Where a kind of accelerator is named, as line and name: torch's module for it, or the kind in a text that is no
    docstring."""
    parsed, found = ast.parse(source), []
    said = {id(node.value) for node in ast.walk(parsed) if isinstance(node, ast.Expr)}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            found += [(node.lineno, repr(node.value))] if KINDS.search(node.value) else []
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in OF_KINDS:
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = (f"{start}{alias.name}" for alias in node.names)
            found += [(node.lineno, name) for name in names if any(is_in(name, kind) for kind in OF_KINDS)]
    return tuple(found)


@functools.cache
def long_functions(source: str, limit: int) -> tuple[tuple[int, str, int], ...]:
    """The functions of more lines than that: line, name, how many."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.lineno, node.name, node.end_lineno - node.lineno + 1) for node in functions]
    return tuple(entry for entry in lengths if entry[2] > limit)


def _is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.endswith("__") and name not in NAMEDTUPLE


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(node: ast.Call, index: int) -> str:
    argument = node.args[index] if len(node.args) > index else None
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""
