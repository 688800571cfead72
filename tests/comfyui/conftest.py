"""What the tests of the nodes share beside the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.host import ComfyHost
from tests.support.host.graphs import GROUPS_BY_SIZE, post


@pytest.fixture(scope="module")
def groups_by_size(host: ComfyHost) -> Iterator[None]:
    """For modules with jobs whose group is that of their plan's size. That of four ranks, which few use, ends with the
    module."""
    yield
    post(host, f"/paralleldit/stop?group={GROUPS_BY_SIZE[4]}")
