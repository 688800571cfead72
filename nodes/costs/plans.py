"""Predicts the plans of one of ComfyUI's models, and keeps what their steps have taken here."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import comfy.model_base
import torch

from ...parallel_backend.costs.auto import list_model_plans
from ...parallel_backend.costs.choose import (
    Room,
    Tried,
    choose_prediction,
    list_patches,
    order_plans,
    predict_fitted,
)
from ...parallel_backend.costs.forward import ForwardCost, Work
from ...parallel_backend.costs.roofline import Prediction
from ...parallel_backend.plan import ParallelPlan
from ...parallel_backend.weights.loading import DTYPES
from ...parallel_backend.weights.sizes import WeightSizes
from ..workers.group import device_count
from ..workers.room import room_for_weights, room_with_enough_ram
from .forward import count_call_forward, count_latents_forward, packed_shape
from .machine import file_of, machine_of

Steps = dict[str, tuple[float, float]]  # see `ModelCosts.steps`
ONE_DEVICE = ParallelPlan()


@functools.cache
def recall_counted(_name: str, _total: int, _dtype: str) -> tuple[dict[Any, ForwardCost | None], dict[Any, Work]]:
    """Returns what was counted of models with this class, bytes and dtype, and the work of their last calls, which the
    editor reads; both by size. Their costs on all nodes add to it."""
    return {}, {}


class ModelCosts:
    """model: ComfyUI's, as it was loaded, with its diffusion model on the meta device.
    torch_dtype, dtype: the compute dtype, and its name."""

    def __init__(self, model: comfy.model_base.BaseModel, sizes: WeightSizes) -> None:
        self.module: torch.nn.Module = model.diffusion_model
        self.estimate = model.memory_required  # bytes that one device needs beside the weights
        self.sizes = sizes
        self.torch_dtype: torch.dtype = model.get_dtype_inference()
        self.dtype = next((name for name, one in DTYPES.items() if one == self.torch_dtype), "bf16")
        self.forwards, self.seen = recall_counted(type(self.module).__name__, sizes.total, self.dtype)

    @property
    def is_measured(self) -> bool:
        """Whether predictions are based on this machine's measurements."""
        return machine_of(self.dtype).is_measured

    def count_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ForwardCost | None:
        """Returns the cost of one row of a call. Each size is counted once."""
        key = list_shapes([args, {name: value for name, value in kwargs.items() if name != "transformer_options"}])
        if key not in self.forwards:
            latents = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            rows, numbers = len(latents[0]), sum(each[0].numel() for each in latents)
            peak = self.estimate([1, *latents[0].shape[1:]] if len(latents) == 1 else [1, 1, numbers])
            self.forwards[key] = count_call_forward(self.module, args, kwargs, rows, peak)
        return self.forwards[key]

    def count_latents(self, shape: Sequence[int]) -> ForwardCost | None:
        """Returns the cost of one image's latents before sampling, with a text of usual length."""
        key = ("latents", *shape)
        if key not in self.forwards:
            own = [1, *shape[1:]]
            peak = self.estimate(packed_shape(self.module, own))
            self.forwards[key] = count_latents_forward(self.module, own, self.torch_dtype, peak)
        return self.forwards[key]

    def remember(self, work: Work) -> None:
        """Remembers the work of a call, so that the editor counts the same for this size from now on."""
        if work.forward and work.forward.size:
            self.seen[self.key(work), work.has_branches] = work

    def recall(self, work: Work) -> Work:
        """Returns the editor's work as calls of this size had it: with their text, which the editor does not know, and
        in as many calls."""
        known = work.forward and self.seen.get((self.key(work), work.has_branches))
        return replace(work, forward=known.forward, calls=known.calls) if known else work

    def order_plans(self, work: Work) -> tuple[list[Prediction], Tried | None]:
        """Returns the predictions of all exact plans that may run this work, the chosen one first, and which of how
        many plans that one is, while plans are tried. One device alone is one of them. Empty and None if the work's
        cost is unknown."""
        if work.forward is None:
            return [], None
        plans = list_model_plans(device_count(), self.module, work)
        if work.parts > 1 and ONE_DEVICE not in plans:
            plans.append(ONE_DEVICE)
        found = order_plans(plans, work, machine_of(self.dtype), self.sizes, room_for_weights)
        steps = self.steps(work)
        chosen, tried = choose_prediction(found, {words: fastest for words, (_, fastest) in steps.items()})
        known = [take_last(each, steps) for each in found]
        return sorted(known, key=lambda each: (each.plan != chosen.plan, not each.fits, each.seconds)), tried

    def choose_patches(self, work: Work, plan: ParallelPlan) -> ParallelPlan:
        """Returns the plan with the number of patches that is predicted to be the fastest, if it leaves the number
        open. The number changes the image, which has to be the same again. So neither what steps took counts here, nor
        the RAM that is free now."""
        if not plan.leaves_patches or work.forward is None:
            return plan
        return min(list_patches(plan), key=lambda each: self.forecast(work, each, room_with_enough_ram).seconds)

    # These take work whose cost is known.

    def predict(self, work: Work, plan: ParallelPlan) -> Prediction:
        """Returns the prediction of any plan; of one that has run, with the seconds that a step last took."""
        return take_last(self.forecast(work, plan), self.steps(work))

    def forecast(self, work: Work, plan: ParallelPlan, room: Room = room_for_weights) -> Prediction:
        """Returns the prediction of any plan, whether it has run or not."""
        return predict_fitted(work, plan, machine_of(self.dtype), self.sizes, room)

    def steps(self, work: Work) -> Steps:
        """Returns what a step of each plan that has run took, by its words: in the last sampling, and in the fastest.
        The fastest decides which plan stays, so noise does not make plans alternate. Calls of one size differ in their
        text and reference images, so the seconds are scaled by FLOPs."""
        stored, flops = file_of(self.dtype).steps.get(self.key(work), {}), work.cost.flops
        try:
            return {
                words: (float(last) * flops / counted, float(fastest) * flops / counted)
                for words, (last, fastest, counted) in stored.items()
            }
        except (TypeError, ValueError, AttributeError, ZeroDivisionError):  # the file may hold anything
            return {}

    def learn(self, work: Work, plan: ParallelPlan, seconds: float) -> None:
        """Keeps what a step of a plan took."""
        steps, words = self.steps(work), self.forecast(work, plan).words
        _, fastest = steps.get(words, (seconds, seconds))
        steps[words] = seconds, min(seconds, fastest)
        file_of(self.dtype).note(self.key(work), {each: [*took, work.cost.flops] for each, took in steps.items()})

    def key(self, work: Work) -> str:
        """Returns the key of this model and size."""
        size = "×".join(map(str, work.cost.size)) or f"{work.cost.flops:.4g} FLOPs"
        return f"{type(self.module).__name__} of {self.sizes.total} bytes, {work.parts} × {size}{work.chosen}"


def take_last(predicted: Prediction, steps: Steps) -> Prediction:
    """Returns the prediction with what a step last took, if its plan has run."""
    return predicted.replace_seconds(steps[predicted.words][0]) if predicted.words in steps else predicted


def list_shapes(value: Any) -> Any:
    """Returns shapes and scalars as a key that tells sizes apart."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, str(value.dtype))
    if isinstance(value, (list, tuple)):
        return tuple(map(list_shapes, value))
    if isinstance(value, Mapping):
        return tuple((name, list_shapes(each)) for name, each in value.items())
    return value if isinstance(value, (int, float, str, bool)) else None
