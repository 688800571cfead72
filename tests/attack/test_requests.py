"""Requests that are well formed and impossible are refused, and the group lives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import DIT, sample_request, source_of
from tests.support.group.one_rank import OneRank
from worker.inside.code_files import find_installed
from worker.wire.operations import LOAD

SHAPES = [(), (4,), (1, 4, 0, 16), (0, 4, 16, 16)]


def test_noise_of_an_impossible_shape_is_refused(own_ranks: None, tmp_path: Path) -> None:
    source = source_of(DIT, tmp_path / "model")
    header, tensors = sample_request(DIT, steps=2)
    with OneRank(tmp_path) as rank:
        assert "error" not in rank.request(LOAD.header(source=source.to_json(), plan=ParallelPlan().to_json()))[0]
        for shape in SHAPES:
            reply, _ = rank.request(header, {**tensors, "noise": torch.zeros(shape)})
            assert f"cannot have the shape {shape}" in reply["error"]["cause"]
        reply, results = rank.request(header, tensors)
        assert "error" not in reply and results


@pytest.mark.parametrize(
    "name",
    [
        *("torch:from_file", "torch:load", "torch:save", "torch.hub:", "builtins:open", "builtins:eval"),
        *("numpy:load", "os:system", "subprocess:Popen"),
    ],
)
def test_no_description_names_a_function_that_reads_files_or_runs_code(name: str) -> None:
    with pytest.raises(ValueError, match="not of the installed code"):
        find_installed(name)
    assert find_installed("torch:cat") is torch.cat
