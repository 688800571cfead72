"""What the tests of worker groups share."""

from __future__ import annotations

import pytest

from tests.support.group.direct_group import FLUX, DirectGroup, direct_on
from worker.host.client import WorkerGroup


@pytest.fixture(scope="module")
def two(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> DirectGroup:
    return direct_on(group_of_two, tmp_path_factory.mktemp("two"), FLUX, ulysses=2)
