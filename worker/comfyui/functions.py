"""Functions and objects of ComfyUI's own nodes as data: where their code is, and what they have closed over or hold.

ComfyUI's process describes them; a rank, which has the same ComfyUI, makes them of its own code. None of it travels.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..wire.tensors import UnsendableError
from ..wire.tree import PLAIN

ROOMS = ("comfy", "comfy_extras")  # folders of ComfyUI that have such code


LOCALS = "<locals>"
LIST, TUPLE, PAIRS, FUNCTION, OBJECT = "list", "tuple", "pairs", "function", "object"


class Known(NamedTuple):
    """node: of ComfyUI that a function or object is of. tokens, rows: whether it is right where it sees a part of the
    tokens, or of the batch's rows, alone."""

    node: str
    tokens: bool
    rows: bool


def of(node: str, place: str, name: str, *, tokens: bool = False, rows: bool = True) -> tuple[str, Known]:
    return f"comfy_extras.{place}:{name.replace('NODE', f'{node}.execute.{LOCALS}')}", Known(node, tokens, rows)


# What is run in the ranks. Left out is what draws random numbers, tells something back, or has weights.
KNOWN = dict(
    [
        of("SkipLayerGuidanceDiT", "nodes_slg", "NODE.skip", tokens=True),
        of("SkipLayerGuidanceDiTSimple", "nodes_slg", "NODE.skip", tokens=True),
        of("NAGuidance", "nodes_nag", "NODE.nag_attention_output_patch", tokens=True, rows=False),
        of("FluxKVCache", "nodes_flux", "KV_Attn_Input"),
        of("FluxKVCache", "nodes_flux", "NODE.model_input_patch"),
        of("PerturbedAttentionGuidance", "nodes_pag", "NODE.perturbed_attention"),
        of("FreeU", "nodes_freelunch", "NODE.output_block_patch"),
        of("FreeU_V2", "nodes_freelunch", "NODE.output_block_patch"),
        of("PatchModelAddDownscale", "nodes_model_downscale", "NODE.input_block_patch"),
        of("PatchModelAddDownscale", "nodes_model_downscale", "NODE.output_block_patch"),
    ]
)


def home_of(value: Any) -> str:
    """The module and name of a function, or of an object's class, in ComfyUI, as "module:name"; empty for another's."""
    import comfy.model_base

    target = value if isinstance(value, (types.FunctionType, type)) else type(value)
    try:
        path = Path(inspect.getfile(target)).resolve()
    except (TypeError, OSError):  # built in, or of no file
        return ""
    root = Path(comfy.model_base.__file__).resolve().parents[1]
    if not path.is_relative_to(root):
        return ""
    parts = path.relative_to(root).with_suffix("").parts
    return f"{'.'.join(parts)}:{target.__qualname__}" if parts[0] in ROOMS else ""


def describe(value: Any, name_object: Callable[[Any], str]) -> Any:
    """What `FunctionDecoder.decode` makes the value of: lists, dicts with text as keys, numbers, text, tensors.

    name_object: names an object, the same one alike each time. Raises UnsendableError.
    """

    def down(item: Any) -> Any:
        return describe(item, name_object)

    if type(value) in PLAIN or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)):
        return {TUPLE if isinstance(value, tuple) else LIST: [down(item) for item in value]}
    if isinstance(value, dict):
        return {PAIRS: [[down(key), down(item)] for key, item in value.items()]}
    home = home_of(value)
    if home not in KNOWN:
        raise UnsendableError(f"A {type(value).__name__} cannot be sent to the ranks.")
    if isinstance(value, types.FunctionType):
        free = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return {
            FUNCTION: {
                "home": home,
                "free": {name: down(cell.cell_contents) for name, cell in free},
                "defaults": down(value.__defaults__),
                "keywords": down(value.__kwdefaults__),
            }
        }
    return {OBJECT: {"home": home, "name": name_object(value), "state": down(vars(value))}}


class FunctionDecoder:
    """`describe`'s inverse, in a rank. An object stays the same one, with what it holds by then, while `run` does."""

    def __init__(self, comfyui: str) -> None:
        self.comfyui = comfyui
        self.run = ""
        self.objects: dict[str, Any] = {}

    def start_run(self, run: str) -> None:
        """Forgets the objects of another run."""
        if run != self.run:
            self.run = run
            self.objects.clear()

    def decode(self, described: Any) -> Any:
        """Raises ValueError for what `describe` does not give."""
        if not isinstance(described, dict):
            return described
        ((kind, value),) = described.items()
        if kind == LIST:
            return [self.decode(item) for item in value]
        if kind == TUPLE:
            return tuple(self.decode(item) for item in value)
        if kind == PAIRS:
            return {self.decode(key): self.decode(item) for key, item in value}
        if kind == FUNCTION:
            return self.decode_function(**value)
        if kind == OBJECT:
            return self.decode_object(**value)
        raise ValueError(f"{kind!r:.100} is no kind of value")

    def decode_function(self, home: str, free: dict[str, Any], defaults: Any, keywords: Any) -> types.FunctionType:
        module, code = self.find_code(home)
        if set(code.co_freevars) != set(free):
            raise ValueError(f"{home} is another function in the ranks' ComfyUI")
        cells = tuple(types.CellType(self.decode(free[name])) for name in code.co_freevars)
        made = types.FunctionType(code, vars(module), code.co_name, self.decode(defaults), cells)
        made.__kwdefaults__ = self.decode(keywords)
        return made

    def decode_object(self, home: str, name: str, state: Any) -> Any:
        if name not in self.objects:
            module, path = self.find_module(home)
            found: Any = getattr(module, path)
            made = self.objects[name] = object.__new__(found)
            vars(made).update(self.decode(state))
        return self.objects[name]

    def find_code(self, home: str) -> tuple[types.ModuleType, types.CodeType]:
        """The module of a function, and its code, which may be inside of another function's."""
        module, path = self.find_module(home)
        outer, *inner = path.split(f".{LOCALS}.")
        found: Any = module
        for part in outer.split("."):
            found = inspect.getattr_static(found, part)
        code = inspect.unwrap(getattr(found, "__func__", found)).__code__
        for part in inner:
            code = next(each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == part)
        return module, code

    def find_module(self, home: str) -> tuple[types.ModuleType, str]:
        """The module of what is known, and its name there."""
        if home not in KNOWN:
            raise ValueError(f"{home!r:.100} is nothing of ComfyUI's that is run here")
        module, _, path = home.partition(":")
        with first_on_path(self.comfyui):
            return importlib.import_module(module), path


@contextmanager
def first_on_path(folder: str) -> Iterator[None]:
    """Some of ComfyUI's nodes import its module `nodes`, and in a rank the pack has one of that name."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
