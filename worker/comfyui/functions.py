"""Encodes functions and objects of ComfyUI's own nodes as data: where their code is, and the values that they hold.

ComfyUI's process encodes them. A rank has the same ComfyUI, and builds them from its own code. No code is sent.
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

ROOMS = ("comfy", "comfy_extras")  # the folders of ComfyUI with such code


LOCALS = "<locals>"
LIST, TUPLE, PAIRS, FUNCTION, OBJECT = "list", "tuple", "pairs", "function", "object"


class Known(NamedTuple):
    """A function or object that the ranks can run.

    node: ComfyUI's node that it belongs to. tokens, rows: whether it computes the right result from a part of the
    tokens, or of the batch's rows.
    """

    node: str
    tokens: bool
    rows: bool


def of(node: str, place: str, name: str, *, tokens: bool = False, rows: bool = True) -> tuple[str, Known]:
    return f"comfy_extras.{place}:{name.replace('NODE', f'{node}.execute.{LOCALS}')}", Known(node, tokens, rows)


# What the ranks run. Functions that draw random numbers, return something to their node, or have weights are left out.
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
    """Returns where ComfyUI defines a function or an object's class, as "module:name"; empty for anything else."""
    import comfy.model_base

    target = value if isinstance(value, (types.FunctionType, type)) else type(value)
    try:
        path = Path(inspect.getfile(target)).resolve()
    except (TypeError, OSError):  # built in, or without a file
        return ""
    root = Path(comfy.model_base.__file__).resolve().parents[1]
    if not path.is_relative_to(root):
        return ""
    parts = path.relative_to(root).with_suffix("").parts
    return f"{'.'.join(parts)}:{target.__qualname__}" if parts[0] in ROOMS else ""


def encode_value(value: Any, name_object: Callable[[Any], str]) -> Any:
    """Encodes a value as lists, dicts with text as keys, numbers, text and tensors.

    name_object: returns the name of an object, always the same for the same object. Raises UnsendableError.
    """

    def down(item: Any) -> Any:
        return encode_value(item, name_object)

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
    """Decodes in a rank what `encode_value` encoded. During a run, an object keeps its identity and its state."""

    def __init__(self, comfyui: str) -> None:
        self.comfyui = comfyui
        self.run = ""
        self.objects: dict[str, Any] = {}

    def start_run(self, run: str) -> None:
        """Forgets the objects of another run."""
        if run != self.run:
            self.run = run
            self.objects.clear()

    def decode(self, encoded: Any) -> Any:
        """Raises ValueError for anything that `encode_value` does not produce."""
        if not isinstance(encoded, dict):
            return encoded
        ((kind, value),) = encoded.items()
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
        raise ValueError(f"{kind!r:.100} is not a kind of encoded value")

    def decode_function(self, home: str, free: dict[str, Any], defaults: Any, keywords: Any) -> types.FunctionType:
        module, code = self.find_code(home)
        if set(code.co_freevars) != set(free):
            raise ValueError(f"{home} is a different function in the ranks' ComfyUI")
        cells = tuple(types.CellType(self.decode(free[name])) for name in code.co_freevars)
        function = types.FunctionType(code, vars(module), code.co_name, self.decode(defaults), cells)
        function.__kwdefaults__ = self.decode(keywords)
        return function

    def decode_object(self, home: str, name: str, state: Any) -> Any:
        if name not in self.objects:
            module, path = self.find_module(home)
            cls: Any = getattr(module, path)
            instance = self.objects[name] = object.__new__(cls)
            vars(instance).update(self.decode(state))
        return self.objects[name]

    def find_code(self, home: str) -> tuple[types.ModuleType, types.CodeType]:
        """Returns a function's module and its code, which may be nested in another function's code."""
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
        """Returns the module of a known function or class, and its name there."""
        if home not in KNOWN:
            raise ValueError(f"{home!r:.100} is not a function of ComfyUI that the ranks run")
        module, _, path = home.partition(":")
        with first_on_path(self.comfyui):
            return importlib.import_module(module), path


@contextmanager
def first_on_path(folder: str) -> Iterator[None]:
    """Puts a folder first on the path: some of ComfyUI's nodes import `nodes`, and a rank would find the pack's."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
