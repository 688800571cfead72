"""A script's LoRA: low-rank additions to the weights of a diffusers model, which come off to the bit."""

from __future__ import annotations

from pathlib import Path

import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.adapters import Addition, add, write_weights
from parallel_backend.weights.loading import ModelSource, build_transformer, load_weights
from parallel_backend.weights.stores import HostStore
from tests.support.cases.families import FAMILIES

DIT = FAMILIES["dit"]
LAYER = "transformer_blocks.0.attn1.to_q.weight"


def source_in(folder: Path, dtype: str) -> ModelSource:
    (file,) = DIT.save(folder).glob("*.safetensors")
    return ModelSource(DIT.model_class, DIT.config, (str(file),), dtype)


def test_additions_reach_whole_and_fetched_weights_alike_and_come_off_exactly(tmp_path: Path) -> None:
    plan = ParallelPlan()
    names = (*plan.degrees(), "batch", "sequence")
    mesh = Mesh(plan, torch.device("cpu"), dict.fromkeys(names, Axis(None, 1, 0)))
    model = DiffusersModel.load(source_in(tmp_path, "fp32"), mesh)
    rows = DIT.build().get_parameter(LAYER).shape[0]
    up = {"up": torch.randn(rows, rows, generator=torch.Generator().manual_seed(1))}

    def predict(scale: float) -> torch.Tensor:
        model.adapt([Addition(LAYER, 0, 0, rows, scale, "up")] if scale else [], up)
        return model(*DIT.inputs(2, 16, 16))

    scales = (0.0, 0.1, -0.3, 0.0)
    right = [predict(scale) for scale in scales]
    assert right[0].equal(right[3]) and not right[0].equal(right[1]) and not right[1].equal(right[2])
    places = range(len(model.fetched.blocks))
    model.bring(places, HostStore(model.fetched.sizes, mesh.device))
    assert all(map(torch.equal, [predict(scale) for scale in scales], right))


def test_sums_are_in_fp32_and_the_weights_of_the_file_come_back_to_the_bit(tmp_path: Path) -> None:
    source = source_in(tmp_path, "bf16")
    model = build_transformer(source)
    load_weights(model, source, torch.device("cpu"))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    stored = DIT.build().state_dict()[LAYER]
    up, down = torch.randn(len(stored), 2, dtype=torch.bfloat16), torch.randn(2, stored.shape[1], dtype=torch.bfloat16)
    added = [Addition(LAYER, 0, 0, len(stored), scale, "up", "down") for scale in (0.5, 1e-3)]

    def put(name: str, value: torch.Tensor) -> None:
        model.get_parameter(name).data.copy_(value)

    write_weights(model, source, {LAYER}, added, {"up": up, "down": down}, put)
    right = (stored + 0.501 * (up.float() @ down.float())).bfloat16()
    torch.testing.assert_close(model.state_dict()[LAYER], right, rtol=2**-7, atol=1e-6)  # one unit in the last place
    assert (model.state_dict()[LAYER] == right).float().mean() > 0.99
    write_weights(model, source, {LAYER}, [], {}, put)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_an_addition_is_of_its_rows_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    base, up, down = (torch.randn(size, generator=generator) for size in ((12, 6), (20, 2), (2, 6)))
    whole = base.clone()
    whole[2:9] += 0.5 * up[5:12] @ down
    add(base, Addition("weight", row=2, up_row=5, count=7, scale=0.5, up="up", down="down"), {"up": up, "down": down})
    torch.testing.assert_close(base, whole, rtol=1e-6, atol=1e-6)
