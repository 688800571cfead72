"""A request that a model cannot take is refused before its forward, in words."""

from __future__ import annotations

import pytest
import torch

from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.transformer import ParallelTransformer
from tests.support.cases.families import FAMILIES


def one_rank(family: str) -> ParallelTransformer:
    plan = ParallelPlan()
    names = (*plan.degrees(), "batch", "sequence")
    mesh = Mesh(plan, torch.device("cpu"), dict.fromkeys(names, Axis(None, 1, 0)), None)
    return ParallelTransformer(FAMILIES[family].build(), mesh)


@pytest.mark.parametrize(("family", "most"), [("auraflow", 16), ("z-image", 32), ("lumina2", 32)])
def test_a_latent_beyond_the_models_positions(family: str, most: int) -> None:
    transformer, inputs = one_rank(family), FAMILIES[family].inputs
    transformer.check(*inputs(1, most, most))
    with pytest.raises(RequestError, match=rf"measures 8×{most + 2} \(height×width\).* for {most}×{most} at most"):
        transformer.check(*inputs(1, 8, most + 2))


@pytest.mark.parametrize(("family", "most"), [("z-image", 96), ("lumina2", 31)])
def test_a_text_beyond_the_models_positions(family: str, most: int) -> None:
    transformer, (latents, timestep, _) = one_rank(family), FAMILIES[family].inputs(1, 16, 16)
    text = {"encoder_hidden_states": torch.zeros(1, most, 32)}
    transformer(latents, timestep, text)
    with pytest.raises(RequestError, match=rf"text has {most + 1} tokens, and this model takes {most}\.\n\nShorten"):
        transformer.check(latents, timestep, {"encoder_hidden_states": torch.zeros(1, most + 1, 32)})


def test_a_guidance_scale_for_a_model_without_one() -> None:
    _, _, conditions = FAMILIES["flux2-dev"].inputs(1, 5, 7)
    latents, timestep, _ = FAMILIES["flux2-klein"].inputs(1, 5, 7)
    with pytest.raises(RequestError, match="takes no guidance"):
        one_rank("flux2-klein").check(latents, timestep, conditions)
