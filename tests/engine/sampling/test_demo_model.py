"""The demo model draws what it is asked for, also by PipeFusion."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks.pipefusion_demo import LEAST_RIGHT, MODEL, STEPS, Request, plan


@pytest.fixture(scope="module")
def drawn() -> torch.Tensor:
    """A picture of every class, in half as many steps as the benchmark's."""
    return Request.of(MODEL).serial(steps=STEPS // 2)


def right_or_nearly(images: torch.Tensor) -> bool:
    request = Request.of(MODEL)
    return len(request.misses(images)) <= (1 - LEAST_RIGHT) * len(request.names)


def test_demo_model_draws_what_was_asked(drawn: torch.Tensor) -> None:
    assert right_or_nearly(drawn)


@pytest.mark.slow
def test_pipefusion_with_one_sync_step_draws_what_was_asked(own_ranks: None) -> None:
    """Its stale keys and values do not keep the model from it."""
    assert right_or_nearly(Request.of(MODEL).parallel({"pipefusion": plan(sync_steps=1)})["pipefusion"])
