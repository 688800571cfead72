"""Runs the calls that a pipeline makes of its transformer on all ranks, by any plan.

A call is a step of a sampling. Each rank runs its rows of the batch, its stage and its tokens, patch by patch. All
ranks get the prediction, so that the pipeline's own loop goes on with its own scheduler.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from ..compat import CALL
from ..diffusers_model import DiffusersModel
from ..groups.calls import share_out
from ..seams.forward import Forward
from .ahead import CallsAhead
from .arguments import ModelArguments, ModelCall
from .results import Results


class PipelineTransformer:
    """Replaces the call of a pipeline's transformer until the hooks of the model are removed.

    timesteps: of the running sampling. Each sampling sets new ones.
    """

    def __init__(self, transformer: DiffusersModel, pipeline: Any) -> None:
        self.transformer = transformer
        self.pipeline = pipeline
        plan = transformer.mesh.plan
        identifies = plan.cfg > 1 or transformer.pipeline.keeps
        self.arguments = ModelArguments(transformer.model, transformer.known, plan, identifies)
        self.results = Results(transformer.mesh)
        self.ahead = CallsAhead(plan.cfg)
        self.timesteps: Any = None
        self.is_inside = False  # whether this object calls the model
        self.is_told = False  # whether it was said that the calls do not run side by side
        transformer.pipeline.rises = None
        self.plain = getattr(transformer.model, CALL)
        transformer.hooks.replace(transformer.model, CALL, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the prediction for all rows, on every rank, in the form that the caller asked for. Raises
        RequestError, on every rank alike."""
        if self.is_inside:
            return self.plain(*args, **kwargs)
        self.notice_sampling()
        call = self.arguments.read(args, kwargs)
        sample = self.ahead.take(call)
        if sample is None:
            calls = self.ahead.with_followers(call)
            sample, *others = self.run(calls)
            self.ahead.keep(calls[1:], others)
            self.tell_why(call)
        whole: Any = sample if torch.is_tensor(call.latents) else list(sample)
        return (whole,) if call.constant.get("return_dict") is False else Transformer2DModelOutput(sample=whole)

    @property
    def steps(self) -> int:
        """How many calls a sampling has, or a part of them."""
        return 1 if self.timesteps is None else len(self.timesteps)

    @property
    def scheduler(self) -> Any:
        """The pipeline's, which may be replaced between two calls."""
        return getattr(self.pipeline, "scheduler", None)

    def notice_sampling(self) -> None:
        """Begins anew if the pipeline has set timesteps since the last call."""
        timesteps = getattr(self.scheduler, "timesteps", None)
        if timesteps is not self.timesteps:
            self.forget()
            self.timesteps = timesteps

    def forget(self) -> None:
        """Drops what is kept for the sampling."""
        self.timesteps = None
        self.ahead.forget()
        self.arguments.forget()
        self.transformer.forget()

    def run(self, calls: list[ModelCall]) -> list[torch.Tensor]:
        """Runs calls side by side. Returns their predictions on every rank."""
        transformer, axis = self.transformer, self.transformer.mesh["batch"]
        parts = share_out([call.size for call in calls], axis)
        own = [part for part in parts if part.group == axis.index]
        idle = max(Counter(part.group for part in parts).values()) - len(own)

        def run_part(index: int, forward: Forward) -> torch.Tensor | None:
            output = transformer.run((), self.arguments.cut(calls[own[index].call], own[index].rows), forward)
            return None if output is None else rows_of(output)

        transformer.pipeline.done = getattr(self.scheduler, "step_index", None) or 0
        known = [call.for_step() for call in calls] if transformer.pipeline.keeps else []
        turns = transformer.pipeline.begin(known, [part.call for part in own], lambda call: None)
        self.is_inside = True
        try:
            with transformer.compiling(self.steps):
                outputs = transformer.run_step(turns, run_part, idle)
        finally:
            self.is_inside = False
        return self.results.join(outputs, parts, calls)

    def tell_why(self, call: ModelCall) -> None:
        """Says once why guidance's branches do not run side by side, if there are ranks without a row."""
        if self.ahead.why and not self.is_told and call.size < self.transformer.mesh["batch"].degree:
            self.is_told = True
            logging.warning(
                "cfg=%d cannot run calls of %s side by side, so that some ranks wait: %s.",
                self.transformer.mesh.plan.cfg,
                type(self.pipeline).__name__,
                self.ahead.why,
            )


def rows_of(output: Any) -> torch.Tensor:
    """Returns the rows of a prediction, of which some classes return a list."""
    return output[0] if torch.is_tensor(output[0]) else torch.stack(list(output[0]))
