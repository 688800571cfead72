"""ComfyUI's Free, and its other models' need of room: what the workers give back, and that the next prompt is served
as before."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from demo.host import ComfyHost
from parallel_backend.errors import RequestError
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights import parking
from parallel_backend.weights.host_memory import HostMemory
from tests.conftest import SIZES
from tests.support.cases.families import FAMILIES, WIDE
from tests.support.group.direct_group import DirectGroup, Layer, go_on, source_of, take_for_gpus, wait_until
from tests.support.host.graphs import Job, latents, ranks, status, with_lora
from tests.support.programs import run_program
from worker.comfyui.source import HostSource
from worker.errors import RequestRefused
from worker.host.client import WorkerGroup

MEGABYTE = 1 << 20
PLAN = ParallelPlan(ulysses=2)
LAYER = Layer("transformer_blocks.3.attn1.to_q.weight", (1024, 1024))
SECONDS_TO_FREE = 20
ROOM = 32 * MEGABYTE  # for a rank to go on with, and too little for its weights


def test_what_is_parked_is_nowhere_else_and_comes_back_to_the_bit(one_rank: None) -> None:
    """What real models have: tied weights, a view with strides of its own, fp8."""
    model = FAMILIES["flux-dev"].build()
    block = model.transformer_blocks[0]
    block.ff.net[2].weight = block.ff_context.net[2].weight
    model.register_buffer("transposed", torch.arange(12.0).reshape(3, 4).T)
    block.attn.to_q.weight = torch.nn.Parameter(block.attn.to_q.weight.to(torch.float8_e4m3fn), requires_grad=False)
    held = model.state_dict()
    right = {name: (tensor.clone(), tensor.stride()) for name, tensor in held.items()}
    parked = parking.Parking(model, torch.device("cpu"))
    parked.copy(HostMemory(parked.size))
    parked.free_device()
    assert {tensor.untyped_storage().nbytes() for tensor in held.values()} == {0}
    parked.fill_device()
    parked.end()
    for name, (values, strides) in right.items():
        assert held[name].float().equal(values.float()), name
        assert held[name].stride() == strides
        assert model.state_dict()[name].data_ptr() == held[name].data_ptr(), name
    assert block.ff.net[2].weight.data_ptr() == block.ff_context.net[2].weight.data_ptr()


def test_weights_stay_where_they_are_if_ram_is_too_short_for_them() -> None:
    model = FAMILIES["dit"].build()
    right = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parked = parking.Parking(model, torch.device("cpu"))
    memory = HostMemory(parked.size)
    memory.copies = 1 << 30
    with pytest.raises(RequestError, match=r"Parking takes .* times on this machine.*\n\nSet on_free to unload"):
        parked.copy(memory)
    assert not parked.is_parked
    assert all(tensor.equal(right[name]) for name, tensor in model.state_dict().items())


def resident(group: WorkerGroup) -> int:
    """Bytes of the ranks' own, without the files' pages."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in group.status()["pids"])


def predict(group: WorkerGroup, source: HostSource, lora: bool = True) -> torch.Tensor:
    """What a forward does in the node: the model, its LoRA, and the prediction."""
    direct = DirectGroup(group, WIDE, source, PLAN)
    direct.load()
    direct.patch(LAYER, 0.5 * lora)
    return direct.forward(8, 8)


@pytest.fixture(scope="module")
def wide(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> tuple[WorkerGroup, HostSource]:
    """A group, and a model for it."""
    # Which the file is not: so each rank has a copy of its own, of 150 MiB.
    source = replace(source_of(WIDE, tmp_path_factory.mktemp("wide")), dtype="bfloat16", cast="float32")
    group_of_two.load(source.to_json(), PLAN.to_json(), PLAN.world_size, go_on)
    return group_of_two, source


def test_ranks_on_the_cpu_give_their_weights_back_and_draw_the_same_again(wide: tuple) -> None:
    group, source = wide
    weights = Path(source.files[0]).stat().st_size // 2 * PLAN.world_size
    plain, right = predict(group, source, lora=False), predict(group, source)
    assert not plain.equal(right), "the LoRA changes nothing"
    pids, held = group.status()["pids"], resident(group)
    began = time.monotonic()
    group.park()
    told = group.status()["memory"][0]["resident"]  # what ComfyUI asks at once
    took, left = time.monotonic() - began, resident(group)
    print(f"{weights / MEGABYTE:.0f} MiB of weights: {(held - left) / MEGABYTE:.0f} MiB given back in {took:.2f} s")
    assert held - left > 0.8 * weights
    assert abs(told - psutil.Process(pids[0]).memory_info().rss) < 0.2 * weights
    assert group.loaded is None and "model" not in group.status()
    assert predict(group, source).equal(right)
    assert group.status()["pids"] == pids


def test_what_is_only_kept_ready_is_given_back_without_the_model(wide: tuple) -> None:
    group, source = wide
    right, loads = predict(group, source), group.status()["counts"]["load"]
    assert group.trim() == 0, "a rank on the CPU has no accelerator"
    assert group.status()["counts"]["trim"] >= 1
    assert predict(group, source).equal(right)
    assert group.status()["counts"]["load"] == loads


def mapped(pid: int) -> dict[str, int]:
    """The parked weights that a process has mapped: by the memory that they are in, its size."""
    found = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, _, _, _, inode, *name = line.split(maxsplit=5)
        if name and "memfd:paralleldit-weights" in name[0]:
            start, end = (int(place, 16) for place in where.split("-"))
            found[inode] = end - start
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a copy a rank")
def test_ranks_with_the_same_weights_park_one_copy_of_them_which_is_used_again(
    wide: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, source = wide
    weights = Path(source.files[0]).stat().st_size // 2  # bf16 of fp32
    right, pids = predict(group, source), group.status()["pids"]
    held = resident(group)
    take_for_gpus(monkeypatch, group)  # or it would unload
    group.park()
    first, second = (mapped(pid) for pid in pids)
    assert first == second and len(first) == 1
    assert max(first.values()) >= weights
    assert held - resident(group) > 0.8 * weights, "two ranks had them, and one copy is left"
    plain = predict(group, source, lora=False)
    group.park()
    assert [mapped(pid) for pid in pids] == [first, first]
    assert predict(group, source).equal(right)
    assert predict(group, source, lora=False).equal(plain) and not plain.equal(right)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits a running rank's memory, which Linux alone lets us do")
def test_parked_ranks_keep_model_and_lora_and_stay_parked_while_one_has_no_room(
    wide: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parking itself, which makes sense with an accelerator alone, but works on any device."""
    group, source = wide
    right = predict(group, source)
    loaded, before = group.loaded, group.status()
    take_for_gpus(monkeypatch, group)  # or it would unload
    group.park()
    assert group.loaded == loaded
    assert group.status()["state"] == "parked"
    rank = psutil.Process(before["pids"][1])
    limits = rank.rlimit(psutil.RLIMIT_AS)
    rank.rlimit(psutil.RLIMIT_AS, (rank.memory_info().vms + ROOM, limits[1]))
    with pytest.raises(RequestRefused, match="memory"):
        predict(group, source)
    assert group.status()["state"] == "parked"
    rank.rlimit(psutil.RLIMIT_AS, limits)
    assert predict(group, source).equal(right)
    after = group.status()
    assert after["state"] == "ready" and after["pids"] == before["pids"]
    assert [after["counts"][name] for name in ("load", "patch")] == [before["counts"][n] for n in ("load", "patch")]


def lora(models: Path) -> str:
    """A LoRA for a layer of the tiny SD3, in ComfyUI's folder."""
    width, generator = SIZES["tiny-sd3"]["caption_projection_dim"], torch.Generator().manual_seed(2)
    name = "diffusion_model.joint_blocks.0.x_block.attn.proj"
    tensors = {f"{name}.lora_A.weight": torch.randn(2, width, generator=generator)}
    tensors[f"{name}.lora_B.weight"] = torch.randn(width, 2, generator=generator)
    save_file(tensors, models / "models" / "loras" / "free.safetensors")
    return "free.safetensors"


def test_free_in_comfyui_unloads_the_ranks_and_the_next_prompt_draws_the_same(host: ComfyHost, models: Path) -> None:
    adapted = with_lora(lora(models), 0.7)
    job = Job("tiny-sd3.safetensors", "text.safetensors", "other-text.safetensors", seed=5, plan={"cfg": 2})
    plain, right = latents(host, job.prompt()), latents(host, job.prompt(adapted))
    assert not plain.equal(right), "the LoRA changes nothing"
    processes, loads = ranks(host), status(host)["counts"]["load"]
    host.free()
    assert wait_until(lambda: "model" not in status(host), SECONDS_TO_FREE), "the ranks hold their model still"
    assert latents(host, job.prompt(adapted)).equal(right)
    assert ranks(host) == processes
    assert status(host)["counts"]["load"] == loads + 1


@pytest.fixture(scope="module")
def accounts(comfyui: Path, models: Path) -> dict[str, dict]:
    return run_program(comfyui, "tests.support.host.room_on_a_card", models / "models/diffusers/tiny-dit")


# What was done; then how the group is asked to park (False) or to unload (True), and the GB that are held.
ACCOUNTS = {
    "sampled": ([], 10, 0),
    "another model needs the room": ([False], 0, 8),
    "sampled again": ([False], 10, 0),
    "freed": ([False, False], 0, 0),
    "a sampling has room beside it": ([], 10, 2),
    "a sampling needs the room of another": ([], 10, 0),
    "a sampling has a network in the ranks": ([], 10, 0),
    "the ranks keep ready what a sampling needs": ([], 13, 1),
    "another model has room in what the ranks only keep ready": ([], 10, 4),
    "the model's weights wait in RAM": ([], 3, 8),
    "the group holds another": ([], 0, 8),
    "3 GB of another": ([], 0, 0),
    "8 GB of another": ([], 0, 2),
    "3 GB of another, ours among them": ([], 0, 2),
    "freed, to unload": ([True], 0, 0),
    "freed, to keep": ([], 10, 0),
}


@pytest.mark.parametrize("done", ACCOUNTS)
def test_comfyui_makes_room_for_the_ranks_and_has_them_make_room_for_others(done: str, accounts: dict) -> None:
    asked, ours, other = ACCOUNTS[done]
    assert accounts[done] == {"asked": asked, "ours": ours, "other": other}


@pytest.mark.parametrize(("model", "weights", "kept"), [("fits", 10, 10), ("does not", 25, 14)])
def test_a_text_encoder_and_a_model_that_do_not_fit_together_take_turns_on_the_card(
    model: str, weights: int, kept: int, accounts: dict
) -> None:
    """Of 16 GB, of which the encoder takes 12: it is gone before the ranks take theirs, and their weights are before it
    comes back. Of a model larger than the card, room is made for what the ranks will keep."""
    found = accounts["prompts"][model]
    encoded, prepared, sampled = [12, 0, 4], [0, 0, 16], [0, kept, 16 - kept]
    assert found == {"held": [encoded, prepared, sampled] * 2, "asked": [False], "whole": weights}


def test_room_is_made_for_what_the_ranks_tell_that_they_keep(accounts: dict) -> None:
    """Of 25 GB in blocks of one: all; all but 20, which come to two; or, while nothing is told, what will fit."""
    told = {"kind": "whole"}, {"kind": "host", "blocks": 20}, {}
    assert accounts["parked"] == dict(zip(map(json.dumps, told), (25, 7, 14), strict=True))


def test_the_ranks_are_asked_once_for_what_they_will_keep(accounts: dict) -> None:
    """Of a model that they hold, and of another."""
    assert accounts["asks"] == [1, 1]


def test_the_ranks_make_room_when_the_loader_has_gone_from_the_graph(accounts: dict) -> None:
    assert accounts["the node is gone"] == {"asked": [False], "other": 8}
