"""Describes how a model is sampled, in diffusers' terms."""

from __future__ import annotations

from typing import Any, NamedTuple

from comfy.model_base import ModelType

# The predictions of ComfyUI's models with the same Euler step in ComfyUI and diffusers.
PREDICTIONS = {
    ModelType.FLOW: "flow_prediction",
    ModelType.FLUX: "flow_prediction",
    ModelType.EPS: "epsilon",
    ModelType.V_PREDICTION: "v_prediction",
}


class Schedule(NamedTuple):
    """config: scheduler_config.json of the model's folder; empty without one. default, linear_sigmas: of the model, see
    the engine's `build_scheduler` and `Stepper.prepare`."""

    config: dict[str, Any]
    default: dict[str, Any]
    linear_sigmas: bool
