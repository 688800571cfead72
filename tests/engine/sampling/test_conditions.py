"""Conditions that may be absent, and images beside the latents: taken, or refused before a rank computes."""

import pytest
import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.denoiser import passes_of
from tests.support.cases.families import FAMILIES


def transformer(name: str, **plan: int) -> DiffusersModel:
    """A family in one process."""
    chosen = ParallelPlan(**plan)
    names = (*chosen.degrees(), "batch", "sequence")
    mesh = Mesh(chosen, torch.device("cpu"), dict.fromkeys(names, Axis(None, 1, 0)), None)
    return DiffusersModel(FAMILIES[name].build(), mesh)


def test_an_image_to_edit_is_refused_where_patches_of_the_image_run_alone() -> None:
    inputs = FAMILIES["flux-kontext"].inputs(1, 8, 8)
    with pytest.raises(RequestError, match="reference_latents_1 adds tokens"):
        transformer("flux-kontext", patches=2).check(*inputs)


@pytest.mark.parametrize("shape", [(1, 4, 8, 8), (1, 3, 1, 8, 8), (1, 4, 1, 7, 8)])
def test_an_image_to_edit_of_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    latents, timestep, conditions = FAMILIES["qwenimage-edit"].inputs(1, 1, 8, 8)
    with pytest.raises(RequestError, match=r"reference_latents_1 has shape .* takes 4 channels, in patches of 1×2×2"):
        transformer("qwenimage-edit").check(latents, timestep, {**conditions, "reference_latents_1": torch.ones(shape)})


def test_a_mask_of_one_prompt_alone_keeps_the_prompts_apart() -> None:
    text = {"encoder_hidden_states": torch.ones(1, 3, 2)}
    masked = {**text, "encoder_hidden_states_mask": torch.ones(1, 3)}
    for pair in ((masked, text), (text, masked)):
        assert [(each.branches, each.conditions) for each in passes_of(*pair)] == [((0,), pair[0]), ((1,), pair[1])]
