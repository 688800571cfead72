"""The ways in which node packs change a model: each puts something inside, and takes it back."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch

from . import inside
from . import scale as scales

made = WeakKeyDictionary()
BLOCKS = ("double_blocks", "joint_blocks", "transformer_blocks", "blocks", "layers", "input_blocks")


class Model:
    """A diffusion model while a habit changes it."""

    def __init__(self, module, undo):
        self.module = getattr(module, "diffusion_model", module)
        self.undo = undo
        self.name = next(name for name in BLOCKS if isinstance(getattr(self.module, name, None), torch.nn.ModuleList))
        self.blocks = getattr(self.module, self.name)
        self.block = self.blocks[1 if self.name == "input_blocks" else 0]
        if self.name == "input_blocks":
            self.block = self.block[0]

    def enter(self, context):
        self.undo.enter_context(context)

    def set_hook(self, hook):
        self.undo.callback(self.block.register_forward_hook(hook).remove)

    def set_hook_before(self, hook):
        self.undo.callback(self.block.register_forward_pre_hook(hook, with_kwargs=True).remove)


@dataclass
class Habit:
    """change: of a Model. patch: of a patcher."""

    change: Callable = lambda model: None
    patch: Callable = lambda patcher: None


def shorten(model):
    kept = torch.nn.ModuleList(list(model.blocks)[:1])
    model.enter(patch.dict(model.module._modules, {model.name: kept}))


def replace_block(model):
    adapter = inside.Adapter(model.block, 16)
    model.enter(patch.dict(model.blocks._modules, {"0": adapter}))


def replace_attention(model):
    for name in {type(part).__module__ for part in model.module.modules()} | {"comfy.ldm.flux.math"}:
        for function in ("optimized_attention", "optimized_attention_masked"):
            if hasattr(sys.modules.get(name), function):
                model.enter(patch.object(sys.modules[name], function, inside.attention_with_mean))


def replace_forward(model, make):
    """make: what takes the place of the block's forward, once for each block."""
    if model.block not in made:
        made[model.block] = make(model.block.forward)
    model.enter(patch.object(model.block, "forward", made[model.block]))


def cache_first_block(model):
    if model.blocks not in made:
        made[model.blocks] = inside.FirstBlockCache(list(model.blocks))
    cached = torch.nn.ModuleList([made[model.blocks]])
    model.enter(patch.dict(model.module._modules, {model.name: cached}))


def derive_block(model):
    before, model.block.__class__ = type(model.block), inside.LouderFlux
    model.undo.callback(setattr, model.block, "__class__", before)


def set_numbers(model):
    model.block.habit_factor, model.block._habit_more = 1.5, 0.25
    model.undo.callback(delattr, model.block, "habit_factor")
    model.undo.callback(delattr, model.block, "_habit_more")
    model.set_hook(inside.counting_from_outside)


def patch_block(patcher):
    inner = patcher.model.diffusion_model
    name = Model(inner, ExitStack()).name
    path = {"input_blocks": "input_blocks.1.0"}.get(name, f"{name}.0")
    function = inside.louder(patcher.get_model_object(f"diffusion_model.{path}.forward"))
    patcher.add_object_patch(f"diffusion_model.{path}.forward", function)


HABITS = {
    "a block's forward": Habit(lambda m: m.enter(patch.object(m.block, "forward", inside.louder(m.block.forward)))),
    "the forward of a block's class": Habit(
        lambda m: m.enter(patch.object(type(m.block), "forward", inside.louder_method(type(m.block).forward)))
    ),
    "a hook": Habit(lambda m: m.set_hook(inside.hook_after)),
    "a hook before": Habit(lambda m: m.set_hook_before(inside.hook_before)),
    "a derived class": Habit(derive_block),
    "fewer blocks": Habit(shorten),
    "a block with weights": Habit(replace_block),
    "a block's forward as an object patch": Habit(patch=patch_block),
    "attention for everybody": Habit(replace_attention),
    "a cache": Habit(lambda m: replace_forward(m, inside.Cache)),
    "a first-block cache": Habit(cache_first_block),
    "a counting closure": Habit(lambda m: replace_forward(m, inside.counting)),
    "a count on a class": Habit(
        lambda m: m.enter(patch.object(m.block, "forward", inside.by_class(inside.Tally, m.block.forward)))
    ),
    "a class that draws random numbers": Habit(
        lambda m: m.enter(patch.object(m.block, "forward", inside.by_class(inside.Noise, m.block.forward)))
    ),
    "a count on the module": Habit(lambda m: m.set_hook(inside.counting_on_the_module)),
    "numbers on the module": Habit(set_numbers),
    "an attention override": Habit(
        patch=lambda p: p.model_options["transformer_options"].update(
            optimized_attention_override=inside.attention_override
        )
    ),
    "attention's output": Habit(patch=lambda p: p.set_model_attn1_output_patch(inside.Region(0.5).output)),
    "a replaced block": Habit(
        patch=lambda p: p.set_model_patch_replace(inside.Region(0.5).block, "dit", "double_block", 0)
    ),
    "rows that mix": Habit(patch=lambda p: p.set_model_attn1_output_patch(inside.mixing_rows)),
    "complex numbers": Habit(lambda m: m.set_hook(inside.Turned())),
}


@contextmanager
def changed(module, habit):
    with ExitStack() as undo:
        habit.change(Model(module, undo))
        yield


def set_strength(strength):
    scales.STRENGTH = strength
