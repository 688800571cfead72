"""The workflows that ComfyUI ships: their model files are taken, what comes of them is a table of docs/classes.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.templates import AS_STOCK, NO_MODEL, REFUSED, TABLE, UNKNOWN, describe, outcome, table
from tests.support.pages import written_table
from tests.support.templates.workflows import RELEASE, release, templates_folder, workflows

pytestmark = pytest.mark.skipif(templates_folder() is None, reason="needs ComfyUI's templates package")

V_PREDICTION = "noobai-xl-vpred.safetensors"


@pytest.fixture(scope="module")
def described(comfyui: Path) -> Mapping[str, Any]:
    return describe(comfyui, V_PREDICTION)


def test_the_readmes_table_of_workflows_is_what_comes_of_them(described: Mapping[str, Any]) -> None:
    if release() != RELEASE:
        pytest.skip(f"the page's table is of another release than {release()}")
    found = [(workflow, *outcome(workflow, described)) for workflow in workflows()]
    assert written_table(TABLE) == table(found), "write it: python -m tests.benchmarks.templates --write"


def test_every_model_file_of_a_workflow_is_taken(described: Mapping[str, Any]) -> None:
    assert {name: each["refused"] for name, each in described.items() if "refused" in each} == {}


def test_every_workflow_with_a_diffusion_model_runs(described: Mapping[str, Any]) -> None:
    """A newer templates package may name files that `model_files` does not have: a few are counted, and not judged."""
    found = {workflow.name: outcome(workflow, described) for workflow in workflows()}
    with_model = [kind for kind, _ in found.values() if kind != NO_MODEL]
    assert len(with_model) > 200
    unknown = {name: why for name, (kind, why) in found.items() if kind == UNKNOWN}
    assert len(unknown) <= (0 if release() == RELEASE else len(with_model) // 20), unknown
    assert with_model.count(REFUSED) == 0
    assert with_model.count(AS_STOCK) <= 9, "more run on one device"


def test_a_forward_costs_as_much_as_before_the_ranks_have_its_weights(described: Mapping[str, Any]) -> None:
    counted = {name: each["counted alike"] for name, each in described.items() if each["counted alike"] is not None}
    assert counted and all(counted.values()), counted
    assert any("fp8" in name for name in counted)


def test_what_a_checkpoint_says_beside_its_weights_is_heard(described: Mapping[str, Any]) -> None:
    """As of a model that predicts velocities, among others of its class that predict noise."""
    assert described[V_PREDICTION]["predicts"] == "V_PREDICTION"
    assert described["sd_xl_base_1.0.safetensors"]["predicts"] == "EPS"


def test_a_node_can_read_the_texts_that_seedvr2_brings_in_its_file(described: Mapping[str, Any]) -> None:
    found = described["seedvr2_7b_int8_convrot.safetensors"]["buffers"]
    assert {"positive_conditioning", "negative_conditioning"} <= {*found}
