"""What functions of nodes leave on a model in a rank is taken back at the end of a sampling, and a plan's own stays."""

from __future__ import annotations

import torch

from worker.inside.changes import ATTRIBUTES, Leftovers, apply_changes


def test_what_functions_set_goes_and_what_a_plan_sets_stays() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.steps = 1
    leftovers = Leftovers()
    leftovers.begin(model)
    model.steps, model[0].cache = 5, torch.ones(1)
    leftovers.pause()
    model[0].plans_own = "attention"
    leftovers.begin(model)
    model.steps, model[0].more = 7, True
    leftovers.end()
    assert model.steps == 1 and not hasattr(model[0], "cache") and not hasattr(model[0], "more")
    assert model[0].plans_own == "attention"


def test_a_change_lasts_for_the_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    changes = [[ATTRIBUTES, model, "steps", True, 3], [ATTRIBUTES, model[0], "in_features", False, None]]
    with apply_changes(model, changes):
        assert model.steps == 3 and not hasattr(model[0], "in_features")
    assert not hasattr(model, "steps") and model[0].in_features == 1
