"""The engine's loop gives what the pipeline's own loop gives, for every class: a timestep in another scale, or a
prediction with another sign, is an error that names the class and the field."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.models import Adapter, adapter_for, model_classes
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.denoiser import Denoiser
from tests.support.cases.families import FAMILIES
from tests.support.cases.pipeline_loops import LOOPS, Loop
from tests.support.cases.references import relative_error

TOLERANCE = 1e-5
TIMESTEPS = ("timestep", "timesteps", "t")


class Calls:
    """What a model is given at each call. scheduler: a copy of a pipeline's, as it is at the first."""

    def __init__(self, model: torch.nn.Module, pipeline: Any = None) -> None:
        self.timesteps: list[float] = []
        self.scheduler: Any = None
        signature = inspect.signature(model.forward)

        def note(_model: torch.nn.Module, args: tuple, kwargs: dict) -> None:
            given = signature.bind(*args, **kwargs).arguments
            self.timesteps.append(float(next(given[name] for name in TIMESTEPS if name in given).flatten()[-1]))
            if pipeline and not self.scheduler:
                self.scheduler = copy.deepcopy(pipeline.scheduler)

        model.register_forward_pre_hook(note, with_kwargs=True)


def differences(loop: Loop, adapter: Adapter) -> list[str]:
    """What the engine's loop does in another way than the pipeline's, in words."""
    pipeline, (noise, conditions) = loop.build(), loop.inputs()
    own = Calls(pipeline.transformer, pipeline)
    expected = loop.run(pipeline, noise, conditions)
    plan, one = ParallelPlan(), Axis(None, 1, 0)
    mesh = Mesh(plan, torch.device("cpu"), dict.fromkeys((*plan.degrees(), "batch", "sequence"), one), None)
    with patch.dict("parallel_backend.models.adapter._ADAPTERS", {adapter.model_class: adapter}):
        transformer = DiffusersModel(FAMILIES[loop.family].build(), mesh)
        ours = Calls(transformer.model)
        first = noise * getattr(own.scheduler, "init_noise_sigma", 1.0)
        found = Denoiser(transformer).sample(first, own.scheduler, conditions)
    assert found is not None
    said = []
    if not torch.allclose(torch.tensor(own.timesteps), torch.tensor(ours.timesteps)):
        said.append(f"`timestep_scale` makes timesteps of {ours.timesteps}, and the pipeline's are {own.timesteps}")
    error = relative_error(found, expected) if found.shape == expected.shape else None
    if error is None or not error <= TOLERANCE:
        said.append(f"`inputs` or `output` make other latents than the pipeline, of an error of {error}")
    return [f"{adapter.model_class}: {each}" for each in said]


def test_every_class_has_its_pipelines_loop() -> None:
    assert sorted({FAMILIES[loop.family].model_class for loop in LOOPS}) == model_classes()


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.family)
def test_the_engines_loop_is_the_pipelines(loop: Loop) -> None:
    assert differences(loop, adapter_for(FAMILIES[loop.family].model_class)) == []


SCALED, LATENTS = "`timestep_scale` makes timesteps of", "`inputs` or `output` make other latents than the pipeline"


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("flux-dev", {"timestep_scale": 1.0}, SCALED),
        ("auraflow", {"timestep_scale": 1.0}, SCALED),
        ("sd3.5", {"timestep_scale": 1e-3}, SCALED),
        ("wan-t2v", {"timestep_scale": 1e-3}, SCALED),
        ("lumina2", {"output": lambda _config, sample, _latents: sample}, LATENTS),
        ("auraflow", {"output": lambda _config, sample, _latents: -sample}, LATENTS),
    ],
)
def test_another_scale_or_prediction_is_named(family: str, fields: dict[str, Any], said: str) -> None:
    (loop,) = (each for each in LOOPS if each.family == family)
    adapter = adapter_for(FAMILIES[family].model_class)
    found = differences(loop, replace(adapter, **fields))
    assert any(each.startswith(f"{adapter.model_class}: {said}") for each in found), found
