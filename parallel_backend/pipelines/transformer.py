"""Runs the calls that a pipeline makes of its transformer on all ranks, by any plan.

A call is a step of a sampling. Each rank runs its rows of the batch, its stage and its tokens, patch by patch. All
ranks get the prediction, so that the pipeline's own loop goes on with its own scheduler.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from ..compat import CALL
from ..diffusers_model import DiffusersModel
from ..groups.calls import NUMBERS, Part, allocate_output, describe_output
from ..hooks import Hooks
from ..seams.forward import Forward
from .ahead import CallsAhead
from .arguments import ModelArguments, ModelCall


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
        self.forms: dict[tuple, list[int]] = {}  # of predictions
        self.ahead = CallsAhead(plan.cfg)
        self.timesteps: Any = None
        self.is_told = False  # whether it was said that the calls do not run side by side
        transformer.pipeline.rises = None
        self.plain = getattr(transformer.model, CALL)
        transformer.hooks.replace(transformer.model, CALL, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the prediction for all rows, on every rank, in the form that the caller asked for. Raises
        RequestError, on every rank alike."""
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
        transformer, mesh = self.transformer, self.transformer.mesh

        def run_part(part: Part, forward: Forward) -> torch.Tensor | None:
            output = transformer.run((), self.arguments.cut(calls[part.call], part.rows), forward)
            if output is None:
                return None
            rows = output[0]  # some classes return a list
            return rows if torch.is_tensor(rows) else torch.stack(list(rows))

        transformer.pipeline.done = getattr(self.scheduler, "step_index", None) or 0
        with Hooks() as hooks, transformer.compiling(1 if self.timesteps is None else len(self.timesteps)):
            hooks.replace(transformer.model, CALL, self.plain)
            outputs, parts = transformer.run_parts([call.for_step() for call in calls], run_part)
        if mesh["batch"].degree * mesh["pipefusion"].degree == 1:  # every rank has all
            return outputs
        return self.spread(transformer.collect(outputs, parts, calls), calls)

    def spread(self, found: list[Any] | None, calls: list[ModelCall]) -> list[torch.Tensor]:
        """Returns on every rank the predictions that rank 0 has found. Ranks learn the form of each kind once."""
        device, spread = self.transformer.mesh.device, []
        for index, call in enumerate(calls):
            kind = call.size, *call.kind
            if kind not in self.forms:
                numbers = torch.tensor(describe_output(found[index]) if found else [0] * NUMBERS, device=device)
                dist.broadcast(numbers, 0)
                self.forms[kind] = numbers.tolist()
            own: Any = found[index].contiguous() if found else allocate_output(self.forms[kind], device)
            dist.broadcast(own, 0)
            spread.append(own)
        return spread

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
