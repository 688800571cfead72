"""What depends on the conditions alone is computed once a request, and again for other conditions."""

import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import FAMILIES


def test_text_is_projected_once_for_all_steps_and_anew_for_another_text():
    family = FAMILIES["pixart-alpha"]
    latents, timestep, text = family.inputs(2, 16, 16)
    other = {**text, "encoder_hidden_states": text["encoder_hidden_states"].flip(1)}
    plan = ParallelPlan()
    names = (*plan.degrees(), "batch", "sequence")
    mesh = Mesh(plan, torch.device("cpu"), dict.fromkeys(names, Axis(None, 1, 0)), None)
    transformer = DiffusersModel(family.build(), mesh)
    calls = []
    for name in ("caption_projection.linear_1", "transformer_blocks.0.attn2.to_k"):
        transformer.model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    plain = family.build()
    for step, conditions in enumerate([text, text, other, other, text]):
        with torch.inference_mode():
            wanted = family.reference(plain, latents, timestep + step, conditions)
        assert torch.equal(transformer(latents, timestep + step, conditions), wanted)
    assert calls.count("caption_projection.linear_1") == 2  # of five forwards
