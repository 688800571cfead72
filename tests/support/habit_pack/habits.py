"""The ways in which node packs change a model: each puts something inside, and takes it back."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch

from . import inside
from . import scale as scales
from .patches import Chunked

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

    def wrap(self, part, make, name="forward"):
        """make: of a method of the part's, what takes its place."""
        self.enter(patch.object(part, name, make(getattr(part, name))))

    def derive(self, part, cls):
        before, part.__class__ = type(part), cls
        self.undo.callback(setattr, part, "__class__", before)

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
    model.wrap(model.block, lambda _forward: made[model.block])


def chunk_feed_forward(model):
    model.wrap(getattr(model.block, "ffn", None) or model.block.feed_forward, lambda forward: Chunked(forward, 3))


def patch_feed_forward(patcher):
    path = "diffusion_model.blocks.0.ffn.forward"
    patcher.add_object_patch(path, Chunked(patcher.get_model_object(path), 3))


def cache_first_block(model):
    if model.blocks not in made:
        made[model.blocks] = inside.FirstBlockCache(list(model.blocks))
    cached = torch.nn.ModuleList([made[model.blocks]])
    model.enter(patch.dict(model.module._modules, {model.name: cached}))


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


def put_instead(own, name="forward"):
    """own: a method of the pack's own."""
    return Habit(lambda model: model.wrap(model.module, lambda _method: own.__get__(model.module), name))


def patch_forward(patcher):
    path = "diffusion_model.forward"
    patcher.add_object_patch(path, inside.louder(patcher.get_model_object(path)))


HABITS = {
    "a block's forward": Habit(lambda m: m.wrap(m.block, inside.louder)),
    "the forward of a block's class": Habit(lambda m: m.wrap(type(m.block), inside.louder_method)),
    "a hook": Habit(lambda m: m.set_hook(inside.hook_after)),
    "a hook before": Habit(lambda m: m.set_hook_before(inside.hook_before)),
    "a derived class": Habit(lambda m: m.derive(m.block, inside.LouderFlux)),
    "fewer blocks": Habit(shorten),
    "a block with weights": Habit(replace_block),
    "a block's forward as an object patch": Habit(patch=patch_block),
    "attention for everybody": Habit(replace_attention),
    "a cache": Habit(lambda m: replace_forward(m, inside.Cache)),
    "a first-block cache": Habit(cache_first_block),
    "a counting closure": Habit(lambda m: replace_forward(m, inside.counting)),
    "a count on a class": Habit(lambda m: m.wrap(m.block, partial(inside.by_class, inside.Tally))),
    "a class that draws random numbers": Habit(lambda m: m.wrap(m.block, partial(inside.by_class, inside.Noise))),
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
    "a feed-forward in chunks": Habit(chunk_feed_forward),
    "a feed-forward in chunks as an object patch": Habit(patch=patch_feed_forward),
    # In place of the method that a call of the model begins with.
    "a class of the whole model": Habit(lambda m: m.derive(m.module, inside.LouderWhole)),
    "a class of the whole model with its own forward": Habit(lambda m: m.derive(m.module, inside.OwnWhole)),
    "a class of the whole model around its forward": Habit(lambda m: m.derive(m.module, inside.AroundWhole)),
    "the model's forward": Habit(lambda m: m.wrap(m.module, inside.louder)),
    "the model's _forward": Habit(lambda m: m.wrap(m.module, inside.louder, "_forward")),
    "the forward of the model's class": Habit(lambda m: m.wrap(type(m.module), inside.louder_method)),
    "a forward of the pack's own": put_instead(inside.own_forward),
    "a _forward of the pack's own": put_instead(inside.own_inner_forward, "_forward"),
    "the model's forward as an object patch": Habit(patch=patch_forward),
    "a hook on the model": Habit(lambda m: m.enter(m.module.register_forward_hook(inside.hook_after))),
}


@contextmanager
def changed(module, habit):
    with ExitStack() as undo:
        habit.change(Model(module, undo))
        yield


def set_strength(strength):
    scales.STRENGTH = strength
