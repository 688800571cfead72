"""Blocks that are to be compiled where nothing compiles: refused by name, and the ranks go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.folder import transformer_source
from tests.support.cases.families import FAMILIES
from tests.support.group.one_rank import OneRank


def test_a_plan_that_compiles_is_refused_where_no_compiler_is(
    own_ranks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FAMILIES["pixart-alpha"].save(tmp_path / "transformer").parent
    source = transformer_source(folder).to_json()
    latents, timestep, conditions = FAMILIES["pixart-alpha"].inputs(1, 8, 8)
    keys = {name: f"condition.{name}" for name in conditions}
    tensors = {"latents": latents, "timestep": timestep, **{keys[name]: each for name, each in conditions.items()}}
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with OneRank(tmp_path) as rank:

        def load(compiled: str) -> dict:
            plan = ParallelPlan(compile=compiled).to_json()
            return rank.request({"op": "load", "source": source, "plan": plan})[0]

        def forward() -> dict:
            return rank.request({"op": "forward", "conditions": keys, "drop": [], "steps": 1}, tensors)[1]

        error = load("on")["error"]
        assert "there is no C++ compiler (g++)" in error["cause"]
        assert "compile=off" in error["advice"]
        assert load("off").keys() == {"id"}
        assert "prediction" in forward()
        assert "run through torch.compile" not in rank.said()
