"""A job of ranks that hangs is ended, and says where each rank waits."""

from __future__ import annotations

import pytest

from tests.support.ranks import pool
from tests.support.ranks.pool import RankPool


def test_a_job_that_hangs_ends_with_the_stacks_of_all_ranks(ranks: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "JOB_SECONDS", 5)
    with pytest.raises(AssertionError) as caught:
        ranks.run(2, "group.waiting_ranks")
    said = str(caught.value)
    assert "in sleep_for_ever" in said and "in all_reduce" in said
