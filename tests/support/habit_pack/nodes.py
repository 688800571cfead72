"""The pack's node: one habit, at one moment."""

from contextlib import ExitStack

from comfy.patcher_extension import CallbacksMP, WrappersMP

from . import scale as scales
from .habits import HABITS, changed, set_strength
from .networks import NetworkLoader

MOMENTS = ("begin", "call", "inside", "callback")
WRAPPED = {"begin": WrappersMP.SAMPLER_SAMPLE, "inside": WrappersMP.DIFFUSION_MODEL}


class ModelHabit:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "habit": (list(HABITS),), "moment": (MOMENTS,)}}

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "tests"

    def patch(self, model, habit, moment):
        set_strength(1.2)
        patched, asked = model.clone(), HABITS[habit]
        asked.patch(patched)
        module = model.model.diffusion_model

        def around(executor, *args, **kwargs):
            with changed(module, asked):
                return executor(*args, **kwargs)

        def call(apply_model, given):
            return around(apply_model, given["input"], given["timestep"], **given["c"])

        if moment in WRAPPED:
            patched.add_wrapper_with_key(WRAPPED[moment], "habit", around)
        elif moment == "call":
            patched.set_model_unet_function_wrapper(call)
        else:
            undo = ExitStack()
            begin = lambda _patcher: undo.enter_context(changed(module, asked))  # noqa: E731
            patched.add_callback_with_key(CallbacksMP.ON_PRE_RUN, "habit", begin)
            patched.add_callback_with_key(CallbacksMP.ON_CLEANUP, "habit", lambda _patcher: undo.close())
        return (patched,)


def count_calls():
    """How often a function inside ran, as a node might show it."""
    return scales.CALLS["count"]


NODE_CLASS_MAPPINGS = {"ModelHabit": ModelHabit, "NetworkLoader": NetworkLoader}
