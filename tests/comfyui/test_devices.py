"""An automatic plan uses GPUs that are alike, and says which it leaves out; what ranks cannot compute on is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.census.pack_rows import PACK
from tests.support.host.graphs import TINY_MODELS
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_apart, run_program

MODEL, VAE = "flux", "wan.safetensors"
LACKS = {"distributed": "has no gloo", "folder": "The folder for temporary files cannot be used"}
LEFT_OUT = "Not used: GPU 1 (GTX 1660, 6 GB)."
OWN = "auto uses only GPUs like ComfyUI's own, GPU 0 (RTX 3090, 24 GB)."
# By machine of `machine_of_cards`: the ranks of an automatic plan, the most of any, and what is said of it.
PLANNED = {
    "three alike": (3, 3, ["auto_gpus", "needs_model"]),
    "one other": (2, 3, ["auto_like", "left_out", "needs_model"]),
    "own is another": (1, 3, ["auto_one", "left_out"]),
    "as many as set": (3, 3, ["auto_set", "needs_model"]),
    "more set than cards": (2, 2, ["auto_set", "needs_model"]),
    "of two machines": (4, 6, ["auto_like", "left_out", "needs_model"]),
    "Intel's": (2, 2, ["auto_gpus", "needs_model"]),
    "set to the CPU": (2, None, ["auto_cpu", "needs_model"]),
    "of two cards, the ranks with their own Python": (2, 2, ["auto_gpus", "needs_model"]),
    "both chosen": (2, 2, ["auto_set", "needs_model"]),
    "chosen without ComfyUI's own": (2, 2, ["auto_set", "needs_model"]),
    "one chosen": (1, 1, ["auto_one"]),
}
REFUSED = {
    "chosen, and more ranks": "ranks is 3, and gpus has only 2",
    "chosen on the CPU": "gpus chooses GPUs, but the ranks compute on the CPU",
    "chosen on two machines": "gpus chooses GPUs of one machine, and machines names several",
    "chosen what is not there": "gpus has GPU 2 and 7, but this machine has only GPU 0 (RTX 3090, 24 GB), GPU 1 (",
}


@pytest.fixture(scope="module")
def machines(comfyui: Path) -> dict[str, Any]:
    return run_program(comfyui, "tests.support.host.machine_of_cards")


@pytest.mark.parametrize("machine", PLANNED)
def test_an_automatic_plan_is_for_comfyuis_own_gpu_and_those_like_it(machine: str, machines: dict[str, Any]) -> None:
    auto, most, remarks = PLANNED[machine]
    found = machines[machine]
    assert (found["auto"], found["most"], found["remarks"]) == (auto, most or found["most"], remarks)
    on = "cpu" if "CPU" in machine else "xpu" if machine == "Intel's" else "cuda"
    assert found["device"] == on


def test_what_is_left_out_is_said_before_the_run_and_with_it(machines: dict[str, Any]) -> None:
    found = machines["one other"]
    for said in (found["text"], found["note"]):
        assert LEFT_OUT in said and OWN in said
    assert found["plan"] == "cfg=2"
    for machine in ("three alike", "as many as set"):
        assert LEFT_OUT not in machines[machine]["note"]


def test_the_ranks_compute_on_all_gpus_that_are_set_or_chosen_comfyuis_own_first(machines: dict[str, Any]) -> None:
    """And share by the speeds of unlike ones. Otherwise, only on those like it."""
    for machine, names in {
        "as many as set": ["RTX 3090", "RTX 3090", "GTX 1660"],
        "one other": ["RTX 3090", "RTX 3090"],
        "both chosen": ["RTX 3090", "GTX 1660"],
        "chosen without ComfyUI's own": ["GTX 1660", "RTX 3090"],
        "one chosen": ["RTX 3090"],
    }.items():
        assert machines[machine]["devices"] == names, machine
    used = [card["index"] for card in machines["one chosen"]["cards"] if card["is_used"]]
    assert used == [2] and len(machines["one chosen"]["cards"]) == 3


def test_gpus_that_comfyui_hides_from_the_ranks_are_told_of(machines: dict[str, Any]) -> None:
    said = "--cuda-device=1, which hides the other GPUs."
    assert {name for name, told in machines.items() if said in told.get("hidden", "")} == {
        name for name, told in machines.items() if told.get("device", "cpu") != "cpu"
    }


def test_all_gpus_are_offered_where_some_are_left_out(machines: dict[str, Any]) -> None:
    assert machines["one other"]["offered"] == machines["own is another"]["offered"] == [3]
    assert machines["of two machines"]["offered"] == [0], "each machine would have its own numbers"


@pytest.mark.parametrize("machine", REFUSED)
def test_gpus_that_cannot_take_part_are_refused_and_can_be_chosen_anew(machine: str, machines: dict[str, Any]) -> None:
    found = machines[machine]
    assert REFUSED[machine] in found["error"]
    assert not any(card["is_used"] for card in found["cards"])
    assert bool(found["cards"]) == ("CPU" not in machine), "the dialog shows them"


def test_a_device_that_is_set_and_not_there_is_refused_with_what_to_do(machines: dict[str, Any]) -> None:
    error = machines["set to what is not there"]["error"]
    assert "device is xpu, and torch finds none here" in error and "out of the settings" in error


@pytest.mark.parametrize(
    ("machine", "says"),
    {
        "Apple's": "cannot compute on mps",
        "without NCCL": "has no nccl",
        "on Windows": "WSL2",
    }.items(),
)
def test_a_machine_without_worker_groups_runs_every_plan_as_stock_and_says_why(
    machine: str, says: str, machines: dict[str, Any]
) -> None:
    found = machines[machine]
    plan, note = found["asked"]
    assert plan == found["plan"] == "one rank" and found["auto"] == 1
    for text in (note, found["said"]):
        assert "run as stock" in text and says in text


@pytest.fixture(scope="module", params=LACKS)
def alone(request: pytest.FixtureRequest, comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    base = tmp_path_factory.mktemp("alone")
    write_cases(comfyui, base, [MODEL])
    shutil.copytree(PACK, base / "custom_nodes" / PACK.name, ignore=shutil.ignore_patterns("__pycache__"))
    (base / "models" / "vae").mkdir(parents=True)
    run_program(comfyui, "tests.support.files.stock_files:write_video_vaes", base / "models" / "vae")
    said = run_apart(comfyui, "tests.support.group.no_group", base, request.param, MODEL, VAE, **TINY_MODELS)
    return {**said, "why": LACKS[request.param]}


def test_without_a_group_the_nodes_give_the_stock_nodes_bits_and_say_why(alone: dict[str, Any]) -> None:
    assert alone["sampled"] == [True, True] and alone["decoded"] == [True] * 3 and not alone["read before"]
    assert [run["is_stock"] for run in alone["runs"]] == [True, True]
    for said in (*alone["said"], *(run["reason"] for run in alone["runs"])):
        assert "runs as stock, on ComfyUI's own device alone." in said and alone["why"] in said
    told = [said for said in alone["said"] if said.startswith("The VAE runs")]
    assert len(told) == 2, "once for each node"
    assert "It computes in torch.float32, not in torch.bfloat16." in told[1]


def test_a_network_that_has_a_parallel_vae_takes_the_stock_one_into_the_ranks(alone: dict[str, Any]) -> None:
    assert alone["needed"]


def test_who_asks_for_an_error_gets_it_without_a_group(alone: dict[str, Any]) -> None:
    for node in ("model", "vae"):
        assert alone["why"] in alone[node]
