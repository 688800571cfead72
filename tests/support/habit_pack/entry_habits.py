"""The ways in which node packs replace the method that a call of the model begins with."""

from unittest.mock import patch

from . import inside
from .habits import Habit


def put_instead(model):
    own = inside.own_forward.__get__(model.module, type(model.module))
    model.enter(patch.object(model.module, "forward", own))


def put_inner_instead(model):
    own = inside.own_inner_forward.__get__(model.module, type(model.module))
    model.enter(patch.object(model.module, "_forward", own))


def patch_forward(patcher):
    path = "diffusion_model.forward"
    patcher.add_object_patch(path, inside.louder(patcher.get_model_object(path)))


def derive(cls):
    def change(model):
        before, model.module.__class__ = type(model.module), cls
        model.undo.callback(setattr, model.module, "__class__", before)

    return Habit(change)


ENTRY_HABITS = {
    "a class of the whole model": derive(inside.LouderWhole),
    "a class of the whole model with its own forward": derive(inside.OwnWhole),
    "a class of the whole model around its forward": derive(inside.AroundWhole),
    "the model's forward": Habit(lambda m: m.enter(patch.object(m.module, "forward", inside.louder(m.module.forward)))),
    "the model's _forward": Habit(
        lambda m: m.enter(patch.object(m.module, "_forward", inside.louder(m.module._forward)))
    ),
    "the forward of the model's class": Habit(
        lambda m: m.enter(patch.object(type(m.module), "forward", inside.louder_method(type(m.module).forward)))
    ),
    "a forward of the pack's own": Habit(put_instead),
    "a _forward of the pack's own": Habit(put_inner_instead),
    "the model's forward as an object patch": Habit(patch=patch_forward),
    "a hook on the model": Habit(lambda m: m.enter(m.module.register_forward_hook(inside.hook_after))),
}
