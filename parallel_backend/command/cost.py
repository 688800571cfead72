"""Predicts what a plan costs for a pipeline's call, without the transformer's weights.

The pipeline itself runs, for one step. A stand-in counts what its transformer would compute, and returns zeros.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..compat import tree_map_only
from ..costs.forward import META, ForwardCost, Work, count_forward
from ..costs.machine import Machine
from ..costs.roofline import Prediction, predict
from ..errors import RequestError
from ..models.checks import check_module
from ..plan import ParallelPlan
from ..weights.folder import transformer_source
from ..weights.loading import build_transformer
from ..weights.sizes import weight_sizes_of
from .drawing import Order, draw, load_pipeline


class CountedTransformer(torch.nn.Module):
    """Stands in for a transformer on the meta device. It counts the cost of its first call, and returns zeros.

    device: where the pipeline's other parts compute. rows: of each call.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        super().__init__()
        self.model, self.device = model, device
        self.rows: list[int] = []
        self.cost: ForwardCost | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def to(self, *args: Any, **kwargs: Any) -> CountedTransformer:
        """Returns itself: the model stays on the meta device."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        latents = args[0] if args else next(iter(kwargs.values()))
        self.rows.append(len(latents))
        args, kwargs = (tree_map_only(torch.Tensor, lambda tensor: tensor.to(META), given) for given in (args, kwargs))
        run = functools.partial(self.model, *args, **kwargs)
        if self.cost is None:
            self.cost = count_forward(self.model, run, len(latents))
        with torch.no_grad():
            return tree_map_only(torch.Tensor, lambda made: torch.zeros_like(made, device=self.device), run())


def predict_plans(
    folder: str | Path, plans: list[ParallelPlan], order: Order, device: torch.device, dtype: str, machine: Machine
) -> list[Prediction]:
    """Returns the prediction of a step under each plan. Runs no collectives.

    device: runs the pipeline's other parts. dtype: fp32, bf16 or fp16. Raises PlanError for a plan that the model does
    not allow, and RequestError if the model's code looks at values, which do not exist here.
    """
    source = transformer_source(folder, dtype)
    model = build_transformer(source)
    for plan in plans:
        check_module(plan, model)
    sizes = weight_sizes_of(model)
    counted = CountedTransformer(torch.nn.Module.to(model, META), device)
    pipeline: Any = load_pipeline(folder, model.dtype, True, transformer=model)
    pipeline.transformer = counted
    pipeline.to(device)
    first = replace(order, prompts=[order.prompts[0]] * order.batch, seeds=order.seeds[:1])
    try:
        draw(pipeline, replace(first, options={**order.options, "num_inference_steps": 1}), "latent")
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise RequestError(
            f"The cost of {source.model_class} cannot be counted: {error}", "Leave out --dry-run, and time it."
        ) from error
    work = Work(sum(counted.rows), forward=counted.cost, calls=len(counted.rows))
    return [predict(work, plan, machine, sizes) for plan in plans]
