"""Which code runs where the ranks can have all tokens: between a model's blocks, and at places of a UNet. It needs no
facts of its own. And which options the model's own code reads."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import torch

from ...parallel_backend.costs.auto import shareable
from ...parallel_backend.models.checks import modules_at
from ...parallel_backend.models.spec import ModelSpec
from ...worker.comfyui.call_keys import PATCHES, REPLACED
from ...worker.inside.changes import FUNCTIONS, METHODS
from .module_guard import Watched

# By part of ComfyUI's options, the places where its classes run functions before, around or after whole blocks.
BETWEEN = {PATCHES: ("post_input", "noise_refiner", "double_block", "single_block"), REPLACED: ("dit",)}
Places = Mapping[str, Collection[str]]


class BlockPlaces:
    """The blocks of a model whose tokens ranks share, and what its parts are outside of them. A model in bands of rows
    has no blocks, but places where the rows can be gathered for a function."""

    def __init__(self, module: torch.nn.Module) -> None:
        spec = shareable(module)
        self.options = options_of(module, spec) if spec else {}  # where functions run between the blocks
        lists = spec.sharded if spec and not spec.bands else ()
        blocks = {id(block) for each in lists for block in modules_at(module, each.path)}
        self.paths = tuple(f"{path}." for path, part in module.named_modules() if id(part) in blocks)
        self.code = {each.__module__ for part in module.modules() for each in type(part).__mro__}
        inside, outside = set[type](), set[type]()
        for path, part in module.named_modules():
            (inside if self.is_in_block(path) else outside).update(type(part).__mro__)
        self.outside = outside - inside

    def is_in_block(self, path: str) -> bool:
        return f"{path}.".startswith(self.paths)

    def reads_option(self, name: str) -> bool:
        """Whether the code of the model's classes names an option of ComfyUI's. A newer ComfyUI may read others."""
        return any(f'"{name}"' in code or f"'{name}'" in code for code in map(code_of, self.code))

    def has_patch(self, path: str) -> bool:
        """Whether what a patcher puts at a path runs between the blocks. So does what takes the place of a block."""
        return bool(self.paths) and (f"{path}." in self.paths or not self.is_in_block(path))

    def has_change(self, change: Watched) -> bool:
        """Whether code that was put there runs between the blocks."""
        if not self.paths or change.kind == FUNCTIONS:
            return False
        owner: Any = change.owner
        return owner in self.outside if change.kind == METHODS else not change.path.startswith(self.paths)


@cache
def code_of(module: str) -> str:
    """Returns the code of a Python module of ComfyUI's; empty for others."""
    return inspect.getsource(sys.modules[module]) if module.startswith("comfy.") else ""


def options_of(module: torch.nn.Module, spec: ModelSpec) -> Places:
    """Returns the places where functions can have all tokens, by part of the options. Layers over time see pixels as
    rows of the batch."""
    bands = spec.bands
    if bands is None:
        return BETWEEN
    has_time = any(name.rpartition(".")[2] in bands.over_time for name, _ in module.named_modules())
    return {} if has_time else bands.places
