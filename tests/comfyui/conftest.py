"""What the tests of the nodes share beside the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.host import ComfyHost
from tests.support.host.graphs import GROUPS_BY_SIZE, post


@pytest.fixture(scope="session")
def groups_by_size(host: ComfyHost) -> Iterator[None]:
    """For modules with jobs whose group is that of their plan's size. That of four ranks takes longest to start, so it
    stays for the next of these modules, and ends with the session."""
    yield
    post(host, f"/paralleldit/stop?group={GROUPS_BY_SIZE[4]}")
