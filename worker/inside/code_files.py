"""Names code of ComfyUI and of node packs by its file, and finds it there again.

ComfyUI's process names it. A rank loads it from the same file, which must be equal. No code is sent.
"""

from __future__ import annotations

import ast
import collections
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ..wire.tensors import UnsendableError

CODE_FOLDERS = ("comfy", "comfy_extras", "comfy_api")  # the folders of ComfyUI with such code
# Installed packages. Of their code, only what computes is known by its name: see `is_harmless`.
INSTALLED = ("torch", "builtins", "types", "collections", "functools", "math", "einops", "numpy")
MODULES = ("torch", "torch.nn", "torch.nn.functional", "math", "einops", "numpy")
FUNCTIONS_OF = ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "math", "einops.einops")
CLASSES = (
    *(object, bool, int, float, str, list, dict, set, tuple, types.SimpleNamespace, collections.OrderedDict),
    *(torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device),
)
TORCH = os.path.dirname(str(torch.__file__))
INIT = "__init__.py"
SERVER = "server"  # ComfyUI's module
OWN = [str(Path(__file__).resolve().parents[2] / name) for name in ("nodes", "worker", "parallel_backend")]
PACKAGE = "paralleldit_pack_"  # before the name of a node pack's package in a rank


class CodeFiles:
    """The folders with such code, and the modules in them.

    A file is named by the number of its folder and the path in it: 0 is ComfyUI's, the others hold node packs.
    """

    def __init__(self, comfyui: str, packs: Sequence[str] = ()) -> None:
        self.roots = [os.path.abspath(root) for root in (comfyui, *packs)]
        self.real = [os.path.realpath(root) for root in self.roots]

    def relative_path(self, file: str) -> str:
        """Returns the number of the folder that a file is in, and its path there. Raises UnsendableError for a file in
        none of the folders, and for our own."""
        if any(os.path.realpath(file).startswith(own + os.sep) for own in OWN):
            raise UnsendableError(f"{file} is of this pack.")
        for path, roots in ((os.path.abspath(file), self.roots), (os.path.realpath(file), self.real)):
            for number, root in reversed(list(enumerate(roots))):
                if path.startswith(root + os.sep):
                    own = path[len(root) + 1 :]
                    if number or own.split(os.sep)[0] in CODE_FOLDERS:
                        return f"{number}/{own.replace(os.sep, '/')}"
        raise UnsendableError(f"{file} is neither of ComfyUI nor in a folder of custom nodes.")

    def name(self, file: str) -> dict[str, Any]:
        """Returns the name of a file with the hash of what is in it. Raises UnsendableError."""
        relative = self.relative_path(file)
        if relative.count("/") == 2 and relative.endswith(f"/{INIT}") and relative[0] != "0":
            raise UnsendableError(f"{file} is a node pack's {INIT}, which the ranks do not run.")
        return {"file": relative, "hash": self.hash_with_package(relative, hash_of_loaded)}

    def hash_with_package(self, relative: str, hash_file: Callable[[str], str]) -> str:
        """Returns the hash of a file, with that of the node pack's own package, whose constants modules may import."""
        number, name, *rest = relative.split("/")
        package = os.path.join(self.roots[int(number)], name, INIT)
        files = [self.path_of(relative), *([package] if number != "0" and rest and os.path.isfile(package) else [])]
        return " ".join(map(hash_file, files))

    def path_of(self, relative: str) -> str:
        """Raises ValueError for what is in none of the folders."""
        number, _, own = relative.partition("/")
        root = self.roots[int(number)]
        path = os.path.normpath(os.path.join(root, own))
        if not path.startswith(root + os.sep) or not path.endswith(".py"):
            raise ValueError(f"{relative!r:.100} is no file of ComfyUI's or of a node pack")
        return path

    def load(self, named: dict[str, Any]) -> types.ModuleType:
        """Returns the module of a file. Raises ValueError if the file is another than ComfyUI's process has."""
        relative = named["file"]
        path = self.path_of(relative)
        if self.hash_with_package(relative, hash_of) != named["hash"]:
            raise ValueError(f"{path} is another file here")
        number, *parts = relative.removesuffix(".py").split("/")
        if comfyui := sys.modules.get(CODE_FOLDERS[0]):
            vars(comfyui).setdefault("__getattr__", import_comfyuis)
        sys.path.insert(0, self.roots[0])  # some of ComfyUI's nodes import `nodes`: not this package's
        try:
            if number == "0":
                module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            else:
                module = load_of_pack(self.roots[int(number)], parts)
        finally:
            sys.path.remove(self.roots[0])
        if os.path.realpath(str(module.__file__)) != os.path.realpath(path):
            raise ValueError(f"{path} is hidden by {module.__file__}")
        return module

    def find_class(self, named: dict[str, Any], path: str) -> type:
        """Returns a class that a file defines. Raises ValueError for anything else."""
        module = self.load(named)
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
            if not isinstance(found, type) or found.__module__ != module.__name__:
                raise ValueError(f"{module.__file__} defines no class {path!r:.100}")
        return found


def import_comfyuis(name: str) -> types.ModuleType:
    """Imports a module that code names as an attribute of ComfyUI's package. ComfyUI's process has imported all of
    them, so code need not import it."""
    try:
        return importlib.import_module(f"{CODE_FOLDERS[0]}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"{CODE_FOLDERS[0]} has no module {name!r}.") from error


def constant_of(file: str, name: str) -> Any:
    """Returns a constant of a node pack's own package, which is not run. Raises AttributeError for any other name, such
    as one that is assigned again: only running the package would say which value counts."""
    tree = ast.parse(Path(file).read_bytes() if os.path.isfile(file) else b"")
    times = sum(each in (name, "*") for node in ast.walk(tree) for each in names_bound(node))
    found = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    if times != 1 or len(found) != 1 or not isinstance(found[0], ast.Constant):
        raise AttributeError(f"The ranks know no value of {name!r} in {file}, which they do not run.")
    return found[0].value


def names_bound(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node of a module's code gives a value to."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (each.asname or each.name.partition(".")[0] for each in node.names)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name


def find_package_folders(paths: Sequence[str]) -> set[str]:
    """Returns the folders with Python's own and installed packages. paths: where Python looks for modules, which may
    have further ones, such as a user's own packages."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return found | {path for path in paths if path and any(Path(path).glob("*.dist-info"))}


def load_of_pack(root: str, parts: Sequence[str]) -> types.ModuleType:
    """Imports a module of a node pack. The pack's own package is there by name and path, with its constants. It is not
    run."""
    package = PACKAGE + hashlib.sha256(root.encode()).hexdigest()[:8]
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [root]
    if len(parts) > 1:
        pack = f"{package}.{parts[0]}"
        if pack not in sys.modules:
            sys.modules[pack] = types.ModuleType(pack)
            sys.modules[pack].__path__ = [folder := os.path.join(root, parts[0])]
            vars(sys.modules[pack])["__getattr__"] = partial(constant_of, os.path.join(folder, INIT))
    name = ".".join([package, *parts]).removesuffix(".__init__")
    try:
        return importlib.import_module(name)
    except AttributeError as error:
        if error.name != "instance" or getattr(error.obj, "__module__", None) != SERVER:
            raise
        server: Any = error.obj
        server.instance = NoServer()
    return importlib.import_module(name)


class NoServer:
    """Stands for ComfyUI's server, which modules of node packs give their routes to. A rank has none."""

    def __getattr__(self, _name: str) -> NoServer:
        return self

    def __call__(self, *args: Any, **_options: Any) -> Any:
        """Returns the function that it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) else self


def hash_of(file: str) -> str:
    return _hash(file, os.stat(file).st_mtime_ns)


def hash_of_loaded(file: str) -> str:
    """Returns the hash of a file whose code runs in this process. Raises UnsendableError if it changed after that."""
    import psutil

    try:
        if os.stat(file).st_mtime > psutil.Process().create_time():
            raise UnsendableError(f"{file} has changed since ComfyUI started.")
        return hash_of(file)
    except OSError as error:
        raise UnsendableError(f"{file} cannot be read: {error}.") from error


@cache
def _hash(file: str, _changed: int) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def file_of(value: Any) -> str:
    """Returns the file of a function's, class's or module's code. Raises UnsendableError if it has none."""
    code = getattr(value, "__code__", None)
    if isinstance(code, types.CodeType):
        return code.co_filename
    try:
        return inspect.getfile(value)
    except (TypeError, OSError) as error:
        raise UnsendableError(f"{value!r:.80} has no file.") from error


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Returns a code object and all that are nested in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes_in(each)


def mark_of(code: types.CodeType) -> str:
    """Returns what tells a code object from all others of its file."""
    words = [code.co_name, code.co_firstlineno, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars]
    words += [each for each in code.co_consts if isinstance(each, (int, float, str, bytes, type(None)))]
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


@cache
def codes_of(module: types.ModuleType) -> dict[str, types.CodeType]:
    """Returns every code object in a module's file, by its mark."""
    loader: Any = module.__spec__ and module.__spec__.loader
    return {mark_of(each): each for each in codes_in(loader.get_code(module.__name__))}


def inside_of_wrapper(function: types.FunctionType) -> Any:
    """Returns the function in a wrapper of torch's that changes nothing in a rank, where nothing keeps gradients and
    functions of nodes are not compiled: `no_grad`, `inference_mode`, `torch.compiler.disable`. None for any other."""
    inner, file = getattr(function, "__wrapped__", None), function.__code__.co_filename
    if inner is None or not file.startswith(TORCH):
        return None
    if file.startswith(os.path.join(TORCH, "_dynamo")):
        return inner
    factory = inspect.getclosurevars(function).nonlocals.get("ctx_factory")
    return inner if isinstance(getattr(factory, "__self__", None), (torch.no_grad, torch.inference_mode)) else None


def is_installed(value: Any) -> bool:
    """Whether a function, class or module is known by its name in an installed package."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    return name.partition(".")[0] in INSTALLED


def find_installed(name: str) -> Any:
    """Returns the value of a name like "torch.nn.functional:silu"; a module without a name behind the colon. Raises
    ValueError for what might do more than compute."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] in INSTALLED:
        found: Any = importlib.import_module(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
        if is_harmless(found):
            return found
    raise ValueError(f"{name!r:.100} is not of the installed code that nodes' functions may hold")


def is_harmless(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ in MODULES
    if isinstance(value, type):
        return value in CLASSES or issubclass(value, torch.nn.Module) and is_installed(value)
    is_function = isinstance(value, (types.FunctionType, types.BuiltinFunctionType))
    is_operation = isinstance(value, types.BuiltinFunctionType) or value.__module__ != "torch"
    return is_function and is_operation and value.__module__ in FUNCTIONS_OF and value is not torch.from_file
