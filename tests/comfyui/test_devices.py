"""An automatic plan uses GPUs that are alike, and says which it leaves out; what ranks cannot compute on is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_program

LEFT_OUT = "Not used: GPU 1 (GTX 1660, 6 GB)."
OWN = "auto uses only ComfyUI’s own, GPU 0 (RTX 3090, 24 GB), and those like it"
# By machine of `machine_of_cards`: the ranks of an automatic plan, the most of any, and what is said of it.
PLANNED = {
    "three alike": (3, 3, ["auto_gpus", "needs_model"]),
    "one other": (2, 3, ["auto_like", "left_out", "needs_model"]),
    "own is another": (1, 3, ["auto_one", "left_out"]),
    "as many as set": (3, 3, ["auto_set", "needs_model"]),
    "of two machines": (4, 6, ["auto_like", "left_out", "needs_model"]),
    "Intel's": (2, 2, ["auto_gpus", "needs_model"]),
    "set to the CPU": (2, None, ["auto_cpu", "needs_model"]),
    "Apple's, set to the CPU": (2, None, ["auto_cpu", "needs_model"]),
}


@pytest.fixture(scope="module")
def machines(comfyui: Path) -> dict[str, Any]:
    return json.loads(run_program(comfyui, "tests.support.host.machine_of_cards").splitlines()[-1])


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


def test_as_many_ranks_as_are_set_are_measured_on_unlike_gpus_too(machines: dict[str, Any]) -> None:
    """And so share by their speeds."""
    assert machines["as many as set"]["devices"] == ["RTX 3090", "RTX 3090", "GTX 1660"]
    assert machines["one other"]["devices"] == ["RTX 3090", "RTX 3090"]


@pytest.mark.parametrize(
    ("machine", "says"),
    [("Apple's", "cannot compute on mps"), ("set to what is not there", "device is xpu, and torch finds none here")],
)
def test_a_device_that_ranks_cannot_have_is_refused_with_what_to_do(
    machine: str, says: str, machines: dict[str, Any]
) -> None:
    error = machines[machine]["error"]
    assert says in error and ("PARALLELDIT_DEVICE=cpu" in error or "out of the settings" in error)
