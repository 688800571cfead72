"""PipeFusion's stale keys and values do not keep the demo model from drawing what it is asked for."""

from __future__ import annotations

import pytest

from tests.benchmarks.pipefusion_demo import LEAST_RIGHT, MODEL, Request, plan


@pytest.mark.slow
def test_pipefusion_with_one_sync_step_draws_what_was_asked(own_ranks: None) -> None:
    request = Request.of(MODEL)
    misses = request.misses(request.parallel({"pipefusion": plan(sync_steps=1)})["pipefusion"])
    assert len(misses) <= (1 - LEAST_RIGHT) * len(request.names), misses
