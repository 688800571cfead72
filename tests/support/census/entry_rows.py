"""What node packs put in the place of the method that a call of the model begins with, as stock and in the ranks."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.controlnets import looped
from tests.support.census.pack_rows import Does, of_pack
from tests.support.census.rows import Row, as_stock, equal, habit, refused

# By habit: the moment, the model, the plan (none is auto) and the plan that runs. A function that goes on to the method
# that it replaces runs around the call, which is shared as asked. Others run in the ranks, between the blocks.
ENTRIES: dict[str, tuple[str, str, dict[str, int], str]] = {
    "the model's forward": ("call", "flux", {"cfg": 2}, "cfg=2"),
    "the model's _forward": ("begin", "wan", {}, "cfg=2"),
    "the forward of the model's class": ("callback", "unet", {}, "cfg=2"),
    "a forward of the pack's own": ("begin", "sd3-dual", {}, "ulysses=2"),
    "a _forward of the pack's own": ("call", "unet", {}, "one rank"),
    "the model's forward as an object patch": ("begin", "flux", {}, "cfg=2"),
    "a hook on the model": ("callback", "wan", {"cfg": 2}, "cfg=2"),
}


def looped_with_another_forward(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A function around the calls of the model, which the Parallel Sampler does not make one by one."""
    module = model.model.diffusion_model
    forward = module.forward
    with patch.object(module, "forward", lambda *args, **kwargs: 1.1 * forward(*args, **kwargs)):
        return looped()(census, row, model)


def looped_with(function: str) -> Does:
    """Something that runs in each step, and that no ComfyUI of today has, under the Parallel Sampler."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        model = model.clone()
        if function == "an option":
            model.model_options["sampler_next_function"] = lambda args: args
        elif function == "a place":
            model.add_wrapper_with_key("around_a_branch", "next", lambda run, *args, **given: run(*args, **given))
        samplers = sys.modules["comfy.samplers"]
        usual = samplers.cfg_function
        other = (lambda *args, **given: 1.1 * usual(*args, **given)) if function == "guidance" else usual
        with patch.object(samplers, "cfg_function", other):
            return looped()(census, row, model)

    return does


def with_wrapper(name: str, moment: str) -> Does:
    """A habit, and a wrapper of another node."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        model = model.clone()
        model.add_wrapper_with_key("diffusion_model", "rows", lambda run, *args, **given: 1.2 * run(*args, **given))
        return of_pack(name, moment)(census, row, model)

    return does


WHOLE = "a class of the whole model"
ENTRY_ROWS: dict[str, Row] = {
    **{
        name: habit(equal(model), of_pack(name, moment), plan=plan, shared=shared)
        for name, (moment, model, plan, shared) in ENTRIES.items()
    },
    # The call has begun by then.
    "the model's _forward, inside": habit(
        equal(), of_pack("the model's _forward", "inside"), ignored=True, shared="ulysses=2"
    ),
    f"{WHOLE}, call": habit(equal(), with_wrapper(WHOLE, "call"), shared="ulysses=2"),
    f"{WHOLE} with its own forward": habit(
        equal(), with_wrapper(f"{WHOLE} with its own forward", "begin"), plan={}, shared="ulysses=2"
    ),
    f"{WHOLE} around its forward": habit(as_stock(), with_wrapper(f"{WHOLE} around its forward", "begin")),
    **{
        f"{what} of tomorrow under the Parallel Sampler": habit(
            refused(f"cannot honour {said}"), looped_with(what), ours=True
        )
        for what, said in {
            "guidance": "a change of ComfyUI's cfg_function",
            "an option": "the option 'sampler_next_function'",
            "a place": "the wrapper 'next'",
        }.items()
    },
    "the model's forward under the Parallel Sampler": habit(
        refused("cannot honour a change of its forward"), looped_with_another_forward, ours=True
    ),
}
