"""Sends all calls that ComfyUI makes of a model within a step as one request, so that the ranks run them at the same
time.

ComfyUI makes several calls if the texts of cond and uncond differ in length, or for the windows of a long video.

ComfyUI's own code runs twice: first to record its calls, then to receive the results. If a node's code takes part, the
code runs only once, as usual, and the calls are sent one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import comfy.model_base
import comfy.model_patcher
import comfy.samplers
import torch
from comfy.context_windows import IndexListContextHandler
from comfy.patcher_extension import CallbacksMP, WrappersMP

from ...worker.comfyui.call_keys import CONTROL
from ...worker.host.call_batcher import CallBatcher, CallRecorded
from ..inside.controls import computes_here
from .remote_module import remote_module

KEY = "ParallelDiT"  # of our own wrappers
# The places where nodes' code runs once a sampling. At all others, of a newer ComfyUI, too, it runs in each step.
AROUND_SAMPLING = (WrappersMP.OUTER_SAMPLE, WrappersMP.PREPARE_SAMPLING, WrappersMP.SAMPLER_SAMPLE)
AROUND_CALLS = (*AROUND_SAMPLING, WrappersMP.PREDICT_NOISE)  # it runs once, however often the calls are made
CALLBACKS = (CallbacksMP.ON_PREPARE_STATE, CallbacksMP.ON_APPLY_HOOKS)
REPLACEMENTS = ("model_function_wrapper", "multigpu_clones")


def send_call(
    executor: Any,
    x: torch.Tensor,
    t: torch.Tensor,
    c_concat: torch.Tensor | None = None,
    c_crossattn: torch.Tensor | None = None,
    control: Any = None,
    transformer_options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Wraps ComfyUI's call of a model. Returns zeros while calls are only recorded."""
    remote, options = remote_module(executor.class_obj), transformer_options or {}
    if remote:
        remote.check_options(options)
    try:
        with remote.replaced_methods.redirect(remote.send) if remote else nullcontext():
            return executor(x, t, c_concat, c_crossattn, control, options, **kwargs)
    except CallRecorded:
        return torch.zeros_like(x)


def batch_conditions(batcher: CallBatcher, executor: Any, *args: Any) -> list[torch.Tensor]:
    """Wraps ComfyUI's function that computes all conditions of a step."""
    model, conds, _, _, options = args
    return batcher.run(lambda: executor(*args)) if is_repeatable(model, conds, options) else executor(*args)


def batch_windows(batcher: CallBatcher, given: dict[str, Any]) -> list[torch.Tensor]:
    """Does for guiders that work window by window what `batch_conditions` does for others."""
    model, conds, options = given["model"], given["conds"], given["model_options"]

    def step() -> list[torch.Tensor]:
        return comfy.samplers.calc_cond_batch(model, conds, given["input"], given["sigma"], options)

    handler = options.get("context_handler")
    own = type(handler) is IndexListContextHandler and not any(handler.callbacks.values())
    return batcher.run(step) if own and is_repeatable(model, conds, options) else step()


def batches_calls(function: Any) -> bool:
    """Whether the guider's function is `batch_windows`."""
    return isinstance(function, functools.partial) and function.func is batch_windows


def is_repeatable(
    model: comfy.model_base.BaseModel, conds: Iterable[list[dict[str, Any]] | None], options: dict[str, Any]
) -> bool:
    """Whether ComfyUI's code for the conditions can run twice: no node's code runs in it, and no ControlNet computes
    here, which would take time twice."""
    wrappers = options.get("transformer_options", {}).get("wrappers", {})
    patcher = model.current_patcher
    if any(list_wrappers(wrappers, AROUND_CALLS)) or any(options.get(name) for name in REPLACEMENTS):
        return False
    if (remote := remote_module(model)) and remote.replaced_methods.run_here():
        return False
    if any(patcher.get_all_callbacks(kind) for kind in CALLBACKS):
        return False
    return not any(one.get("hooks") or computes_here(one.get(CONTROL)) for cond in conds for one in cond or ())


def list_wrappers(wrappers: Mapping[str, Mapping[Any, Any]], but: Collection[str]) -> Iterator[Any]:
    """Yields the keys of nodes' wrappers at all places but these."""
    for kind, by_key in wrappers.items():
        yield from (key for key, functions in by_key.items() if kind not in but and functions and key != KEY)


def add_call_batching(patcher: comfy.model_patcher.ModelPatcher, batcher: CallBatcher) -> None:
    """Makes this MODEL's steps send their calls together, if that can be faster."""
    patcher.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, send_call)
    patcher.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, KEY, functools.partial(batch_conditions, batcher))
    patcher.set_model_sampler_calc_cond_batch_function(functools.partial(batch_windows, batcher))
