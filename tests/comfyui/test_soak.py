"""A worker group that serves many prompts holds no more in the end than in the beginning."""

from __future__ import annotations

import pytest

from demo.host import ComfyHost
from tests.support.host.soak import growth, soak

PROMPTS, SETTLED = 60, 20


@pytest.mark.slow
def test_many_prompts_and_cancels_leave_memory_descriptors_and_threads_flat(host: ComfyHost) -> None:
    course = list(soak(host, PROMPTS))
    for name, kinds in growth(course, SETTLED).items():
        for kind, (early, late) in kinds.items():
            # Two descriptors or threads may come and go; a leak of one a prompt, or a cancelled one, is far more.
            assert late <= max(early * 1.05, early + 2), f"{name}: {kind} went from {early} to {late}"
