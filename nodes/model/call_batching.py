"""What ComfyUI asks of a model within a step, one call after the other, in one request: the ranks then run the calls at
the same time. So it is with cond and uncond whose texts differ in length, and with the windows of a long video.

ComfyUI's own code runs twice: first its calls are written down, then it gets the results. Where a node has a hand in
that code, it runs once, as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import comfy.model_base
import comfy.model_patcher
import comfy.samplers
import torch
from comfy.context_windows import IndexListContextHandler
from comfy.patcher_extension import CallbacksMP, WrappersMP

from ...worker.host.call_batcher import CallBatcher, CallRecorded

KEY = "ParallelDiT"  # of our own wrappers
# Whatever nodes have run around a call, or in between.
WRAPPERS = (WrappersMP.CALC_COND_BATCH, WrappersMP.APPLY_MODEL, WrappersMP.DIFFUSION_MODEL)
CALLBACKS = (CallbacksMP.ON_PREPARE_STATE, CallbacksMP.ON_APPLY_HOOKS)
REPLACEMENTS = ("model_function_wrapper", "multigpu_clones")


def give_zeros(executor: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Stands around ComfyUI's call of a model with its latents: in place of what is not there yet are zeros."""
    try:
        return executor(x, *args, **kwargs)
    except CallRecorded:
        return torch.zeros_like(x)


def batch_conditions(batcher: CallBatcher, executor: Any, *args: Any) -> list[torch.Tensor]:
    """Stands around what ComfyUI computes of all conditions in a step."""
    model, conds, _, _, options = args
    return batcher.run(lambda: executor(*args)) if is_repeatable(model, conds, options) else executor(*args)


def batch_windows(batcher: CallBatcher, given: dict[str, Any]) -> list[torch.Tensor]:
    """Stands in a guider for that same, window by window, if it is done by windows."""
    model, conds, options = given["model"], given["conds"], given["model_options"]

    def step() -> list[torch.Tensor]:
        return comfy.samplers.calc_cond_batch(model, conds, given["input"], given["sigma"], options)

    handler = options.get("context_handler")
    own = type(handler) is IndexListContextHandler and not any(handler.callbacks.values())
    return batcher.run(step) if own and is_repeatable(model, conds, options) else step()


def batches_calls(function: Any) -> bool:
    """Whether what stands in a guider is `batch_windows`."""
    return isinstance(function, functools.partial) and function.func is batch_windows


def is_repeatable(
    model: comfy.model_base.BaseModel, conds: Iterable[list[dict[str, Any]] | None], options: dict[str, Any]
) -> bool:
    """Whether nothing but ComfyUI's own code is run for the conditions, and no ControlNet, which takes its time."""
    wrappers = options.get("transformer_options", {}).get("wrappers", {})
    theirs = (calls for kind in WRAPPERS for key, calls in wrappers.get(kind, {}).items() if key != KEY)
    patcher = model.current_patcher
    if any(theirs) or any(options.get(name) for name in REPLACEMENTS):
        return False
    if any(patcher.get_all_callbacks(kind) for kind in CALLBACKS):
        return False
    return not any(one.get("hooks") or one.get("control") for cond in conds for one in cond or ())


def add_call_batching(patcher: comfy.model_patcher.ModelPatcher, batcher: CallBatcher) -> None:
    """Has the calls of this MODEL's steps go as one, where that gains something."""
    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, give_zeros)
    patcher.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, KEY, functools.partial(batch_conditions, batcher))
    patcher.set_model_sampler_calc_cond_batch_function(functools.partial(batch_windows, batcher))
