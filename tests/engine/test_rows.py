"""Which part of a call of somebody else's model is a rank's share of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parallel_backend.groups.calls import share_out
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.forward import Forward

ALONE = Axis(None, 1, 0)


class Recorder(torch.nn.Module):
    """Keeps what it is called with."""

    def forward(self, x: torch.Tensor, timestep: torch.Tensor, **given: Any) -> torch.Tensor:
        self.given = {"timestep": timestep, **given}
        return x


def share(rank: int, batch: int) -> dict[str, Any] | None:
    """What a model is called with on one of two ranks that share a batch; None where it is not called."""
    axes = {
        **dict.fromkeys(("dp", "pipefusion", "ring", "ulysses", "sequence"), ALONE),
        "cfg": Axis(None, 2, rank),
    }
    mesh = Mesh(ParallelPlan(cfg=2), torch.device("cpu"), {**axes, "batch": Axis(None, 2, rank)})
    rows = torch.arange(batch)
    given = {
        "context": rows[:, None],
        "one_for_all": torch.ones(1, 3),
        "ref_latents": [rows[:, None, None], torch.ones(1, 2)],
        "control": {"input": [rows, None]},
        "strength": [0.5] * batch,
        "transformer_options": {"sample_sigmas": torch.arange(float(batch)), "cond_or_uncond": [0, 1]},
    }
    model = Recorder()
    parallel = ParallelModel(model, mesh, torch.float32)
    output = parallel.run_rows((rows[:, None].float(), rows), given, batch, mesh["batch"], Forward([0]))
    assert (output is None) == (not hasattr(model, "given"))
    return getattr(model, "given", None)


@pytest.mark.parametrize(("rank", "rows"), [(0, [0, 1]), (1, [2])])
def test_a_rank_gets_its_rows_of_all_that_has_as_many_as_the_batch(rank: int, rows: list[int]) -> None:
    given = share(rank, 3)
    assert given is not None
    assert given["timestep"].tolist() == given["context"].flatten().tolist() == rows
    assert given["ref_latents"][0].flatten().tolist() == given["control"]["input"][0].tolist() == rows
    assert len(given["one_for_all"]) == len(given["ref_latents"][1]) == 1
    assert given["strength"] == [0.5] * 3
    assert given["transformer_options"]["sample_sigmas"].tolist() == [0.0, 1.0, 2.0], "options are of all rows"


def test_a_rank_without_rows_does_not_call_the_model() -> None:
    assert share(1, 1) is None


@pytest.mark.parametrize(
    ("sizes", "groups", "shares"),
    [
        ([2], 2, ["1/2", "2/2"]),
        ([3], 2, ["1/2", "2/2"]),
        ([1], 2, ["1/2", ""]),
        ([1, 1], 2, ["1/1", "1/1"]),
        ([2, 2], 4, ["1/2", "2/2", "1/2", "2/2"]),
        ([2, 2, 2], 2, ["1/2 1/2 1/2", "2/2 2/2 2/2"]),
        ([1, 1, 1], 2, ["1/1 1/1", "1/1"]),
        ([2, 2, 2, 2], 2, ["1/1 1/1", "1/1 1/1"]),
        ([1, 1], 4, ["1/2", "1/2", "", ""]),
    ],
)
def test_several_calls_are_shared_out_in_as_few_parts_as_give_every_group_as_many(
    sizes: list[int], groups: int, shares: list[str]
) -> None:
    parts = share_out(sizes, Axis(None, groups, 0))
    assert parts[0].group == parts[0].call == 0
    of_groups = [[part.rows for part in parts if part.group == group] for group in range(groups)]
    assert [" ".join(f"{rows.index + 1}/{rows.degree}" for rows in each) for each in of_groups] == shares
