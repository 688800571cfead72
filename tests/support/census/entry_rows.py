"""What node packs put in the place of the method that a call of the model begins with, as stock and in the ranks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.controlnets import looped
from tests.support.census.pack_rows import MOMENTS, Does, of_pack
from tests.support.census.rows import Row, as_stock, equal, habit, refused

# By habit, whether the function goes on to the method that it replaces. If it does, it runs around the call, which is
# shared. If it does not, it runs in the ranks.
GO_ON = {
    "the model's forward": True,
    "the model's _forward": True,
    "the forward of the model's class": True,
    "a forward of the pack's own": False,
    "a _forward of the pack's own": False,
    "the model's forward as an object patch": True,
    "a hook on the model": True,
}
MODELS = ("flux", "wan", "sd3", "unet")
PLANS = ({"ulysses": 2}, {"cfg": 2}, {})
# Each habit, each model and each moment. The others are slow.
GATE = {
    ("the model's forward", "flux", "call"),
    ("the model's _forward", "wan", "begin"),
    ("the model's _forward", "flux", "inside"),
    ("the forward of the model's class", "unet", "callback"),
    ("a forward of the pack's own", "sd3", "begin"),
    ("a _forward of the pack's own", "unet", "call"),
    ("the model's forward as an object patch", "flux", "begin"),
    ("a hook on the model", "wan", "callback"),
}


def entry_rows() -> Iterator[tuple[str, Row]]:
    """Each habit on each model at each moment. The plans take turns."""
    for name, model, moment in itertools.product(GO_ON, MODELS, MOMENTS):
        if model == "sd3" and ("_forward" in name or moment == "inside"):  # its class has neither
            continue
        plan = PLANS[(list(GO_ON).index(name) + MODELS.index(model) + MOMENTS.index(moment)) % len(PLANS)]
        is_late = moment == "inside" and "object patch" not in name  # the call has begun by then
        goes_on = GO_ON[name] and (model, name) != ("sd3", "the forward of the model's class")
        as_asked = next((f"{axis}={degree}" for axis, degree in plan.items()), "cfg=2")
        between = "one rank" if model == "unet" else "ulysses=2"
        row = replace(
            equal(model), plan=plan, ignored=is_late, shared=as_asked if goes_on or is_late else between,
            slow=(name, model, moment) not in GATE,
        )  # fmt: skip
        yield f"{name}, {moment}, {model}, {next(iter(plan), 'auto')}", habit(row, of_pack(name, moment))


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
    **dict(entry_rows()),
    f"{WHOLE}, call": habit(replace(equal(), shared="ulysses=2"), with_wrapper(WHOLE, "call")),
    f"{WHOLE} with its own forward": habit(
        replace(equal(), plan={}, shared="ulysses=2"), with_wrapper(f"{WHOLE} with its own forward", "begin")
    ),
    f"{WHOLE} around its forward": habit(as_stock(), with_wrapper(f"{WHOLE} around its forward", "begin")),
    **{
        f"{what} of tomorrow under the Parallel Sampler": replace(
            habit(refused(f"cannot honour {said}"), looped_with(what)), ours=True
        )
        for what, said in {
            "guidance": "a change of ComfyUI's cfg_function",
            "an option": "the option 'sampler_next_function'",
            "a place": "the wrapper 'next'",
        }.items()
    },
    "the model's forward under the Parallel Sampler": replace(
        habit(refused("cannot honour a change of its forward"), looped_with_another_forward), ours=True
    ),
}
