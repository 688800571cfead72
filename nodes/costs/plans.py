"""Predicts the plans of one of ComfyUI's models, and corrects the predictions by the steps that it has run here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...parallel_backend.compat import lacks_coroutines
from ...parallel_backend.costs.auto import Work, list_model_plans
from ...parallel_backend.costs.choose import TURNS, Weights, list_patches, predict_fitted, rank_plans
from ...parallel_backend.costs.correct import Choice, Correction, choose_prediction
from ...parallel_backend.costs.forward import ForwardCost
from ...parallel_backend.costs.predict import Prediction
from ...parallel_backend.device import CPU
from ...parallel_backend.plan import OFF, ParallelPlan
from ...parallel_backend.weights.loading import DTYPES
from ...parallel_backend.weights.sizes import WeightSizes
from ..workers.group import device_count, device_type
from ..workers.room import room_for_weights, room_with_enough_ram
from .forward import count_call_forward, count_latents_forward, packed_shape
from .machine import file_of, machine_of

Estimate = Callable[[Sequence[int]], float]
SAME_AS = "same as"  # under the key of a size: the key of its last call
ONE_DEVICE = ParallelPlan()


@functools.cache
def list_seen(_name: str, _total: int, _dtype: str) -> dict[Any, Work]:
    """Returns the work of the last calls of a model with this class, bytes and dtype, by size. Its costs on other nodes
    add to it, and the editor reads it."""
    return {}


class ModelCosts:
    """module: on the meta device, as it was loaded.
    dtype: the compute dtype.
    estimate: ComfyUI's estimate of the bytes that one device needs beside the weights, for latents of a shape.
    forwards: what was counted of equal models, by size."""

    def __init__(
        self,
        module: torch.nn.Module,
        sizes: WeightSizes,
        dtype: torch.dtype,
        estimate: Estimate,
        forwards: dict[Any, ForwardCost | None],
    ) -> None:
        self.module = module
        self.sizes = sizes
        self.weights = Weights(sizes, room_for_weights)  # the memory for them is what the ranks are expected to find
        self.torch_dtype = dtype
        self.estimate = estimate
        self.dtype = next((name for name, one in DTYPES.items() if one == dtype), "bf16")
        self.forwards = forwards
        self.same_as: dict[str, str] = {}  # by the key of the editor's work: that of calls of this size
        self.seen = list_seen(type(module).__name__, sizes.total, self.dtype)

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
        if work.forward and work.forward.image_tokens:
            self.seen[size_of(work), work.has_branches] = work

    def recall(self, work: Work) -> Work:
        """Returns the editor's work as calls of this size had it: with their text, which the editor does not know, and
        in as many calls. Of calls before ComfyUI started, only the times of steps are known."""
        known = self.seen.get((size_of(work), work.has_branches))
        if known:
            return replace(work, forward=known.forward, calls=known.calls)
        if same := file_of(self.dtype).steps.get(self.size_key(work)):
            self.same_as[self.key(work)] = str(same.get(SAME_AS))
        return work

    def rank_plans(self, work: Work) -> tuple[list[Prediction], Choice | None]:
        """Returns the corrected predictions of all exact plans that may run this work, and the choice among them, which
        is the first. One device alone is one of them. Empty and None if the work's cost is unknown."""
        if work.forward is None:
            return [], None
        plans = list_model_plans(device_count(), self.module, work, list_turns())
        if work.parts > 1 and ONE_DEVICE not in plans:
            plans.append(ONE_DEVICE)
        found = self.predict_all(work, plans)
        choice = choose_prediction(found, self.correction(work))
        return sorted(found, key=lambda each: each is not choice.prediction), choice

    def choose_patches(self, work: Work, plan: ParallelPlan) -> ParallelPlan:
        """Returns the plan with the number of patches that is predicted to be the fastest, if it leaves the number
        open. The number changes the image, which has to be the same again. So neither steps correct this choice, nor
        does the RAM count that is free now."""
        if plan.patches or plan.pipefusion == 1 or work.forward is None:
            return plan
        weights = Weights(self.sizes, room_with_enough_ram)
        found = [self.predict_uncorrected(work, each, weights) for each in list_patches(plan)]
        patches = min(found, key=lambda each: each.average(work.steps)).plan.patches
        return replace(plan, patches=patches)

    def predict_all(self, work: Work, plans: Sequence[ParallelPlan]) -> list[Prediction]:
        assert work.forward
        return rank_plans(
            plans,
            work.forward,
            work.parts,
            machine_of(self.dtype),
            weights=self.weights,
            corrected=self.correction(work).correct,
            calls=work.calls,
            loops=work.loops,
        )

    # These take work whose cost is known.

    def predict(self, work: Work, plan: ParallelPlan) -> Prediction:
        """Returns the corrected prediction of any plan."""
        return self.correction(work).correct(self.predict_uncorrected(work, plan))

    def has_run(self, work: Work, plan: ParallelPlan) -> bool:
        """Whether a prediction of this plan is what a step of it took here."""
        return self.predict_uncorrected(work, plan).words in self.correction(work).plans

    def predict_uncorrected(self, work: Work, plan: ParallelPlan, weights: Weights | None = None) -> Prediction:
        """weights: in place of the model's own."""
        assert work.forward
        machine, weights = machine_of(self.dtype), weights or self.weights
        return predict_fitted(work.forward, work.parts, plan, machine, weights, work.calls, work.loops)

    def correction(self, work: Work) -> Correction:
        key = self.key(work)
        stored = file_of(self.dtype).steps.get(self.same_as.get(key, key))
        try:
            return Correction.from_json(stored) if stored else Correction()
        except (KeyError, TypeError, ValueError, AttributeError):
            return Correction()

    def learn(self, work: Work, plan: ParallelPlan, seconds: float, communication: float) -> None:
        """Records what a step took."""
        predicted = self.predict_uncorrected(work, plan)
        corrected = self.correction(work).add_step(replace(predicted, plan=plan), seconds, communication)
        file_of(self.dtype).note(self.key(work), corrected.to_json())
        if size_of(work):
            file_of(self.dtype).note(self.size_key(work), {SAME_AS: self.key(work)})

    def key(self, work: Work) -> str:
        """Returns the key of this model and size."""
        assert work.forward
        return f"{self.name}, {work.parts} × {work.forward.flops:.4g} FLOPs"

    def size_key(self, work: Work) -> str:
        """Returns the key of this model and latents of this size, under which is the key of the last call of them."""
        return f"{self.name}, {size_of(work)}"

    @property
    def name(self) -> str:
        return f"{type(self.module).__name__} of {self.sizes.total} bytes"


def list_turns() -> Sequence[int]:
    """Returns the numbers of pieces that are worth a try. Ranks on a CPU compute with the cores that they send with."""
    return () if device_type() == CPU or lacks_coroutines() else TURNS


def size_of(work: Work) -> str:
    """Returns the size of what is sampled, in words; empty if unknown."""
    known = work.forward
    if known is None or not known.image_tokens:
        return ""
    return f"{work.parts} × {known.image_tokens} tokens in {known.frames} frames"


def can_predict(work: Work, plan: ParallelPlan) -> bool:
    """Whether this work can be predicted under a plan: whether its cost is known, and under sparse attention its
    frames."""
    return work.forward is not None and (plan.sparse == OFF or work.forward.frames > 0)


def list_shapes(value: Any) -> Any:
    """Returns shapes and scalars as a key that tells sizes apart."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, str(value.dtype))
    if isinstance(value, (list, tuple)):
        return tuple(map(list_shapes, value))
    if isinstance(value, Mapping):
        return tuple((name, list_shapes(each)) for name, each in value.items())
    return value if isinstance(value, (int, float, str, bool)) else None
