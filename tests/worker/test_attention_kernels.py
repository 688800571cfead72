"""The ranks attend by the kernel that a node chose, if all of them can. If not, they say why, and what they use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from tests.support.group.direct_group import FLUX, DirectGroup, direct_on, go_on
from worker.comfyui.patched_options import KERNEL, OPTIONS
from worker.host.client import WorkerGroup

SIZES = (16, 16)
SAGE = "A node asks for attention by sage, which runs on NVIDIA's GPUs, and the ranks compute on cpu. "


@pytest.fixture(scope="module")
def two(group_of_two: WorkerGroup, tmp_path_factory: pytest.TempPathFactory) -> DirectGroup:
    return direct_on(group_of_two, tmp_path_factory.mktemp("kernels"), FLUX, ulysses=2)


def under(direct: DirectGroup, **fields: Any) -> DirectGroup:
    changed = replace(direct, plan=ParallelPlan(**fields))
    changed.load()
    return changed


def forward(direct: DirectGroup, kernel: str = "") -> torch.Tensor:
    options = {OPTIONS: {KERNEL: kernel}} if kernel else {}
    return direct.call(*FLUX.inputs(2, *SIZES), **options)


@pytest.mark.parametrize(
    ("plan", "kernel", "why"),
    [
        ({"ulysses": 2}, "sage", SAGE + "The ranks attend by the plan's kernel native."),
        (
            {"ulysses": 2},
            "comfy_kitchen_int8",
            SAGE.replace("sage", "comfy_kitchen_int8") + "The ranks attend by the plan's kernel native.",
        ),
        ({"cfg": 2}, "sage", SAGE + "The ranks attend by ComfyUI's attention_pytorch."),
        (
            {"ring": 2},
            "split",
            "A node asks for attention by split, which returns no log-sum-exp, which ring=2 needs. The ranks attend by "
            "the plan's kernel native.",
        ),
        (
            {"ulysses": 2, "attention": "native"},
            "split",
            "A node asks for attention by split, which gives way to the plan's attention=native. The ranks attend by "
            "the plan's kernel native.",
        ),
    ],
    ids=str,
)
def test_a_kernel_that_cannot_be_used_is_named_and_the_plans_own_computes(
    two: DirectGroup, plan: dict[str, Any], kernel: str, why: str
) -> None:
    direct = under(two, **plan)
    plain = forward(direct)
    assert direct.group.choose_kernel(kernel, go_on) == why
    assert torch.equal(forward(direct, kernel), plain)


def test_another_plan_is_asked_anew(two: DirectGroup) -> None:
    assert under(two, ring=2).group.choose_kernel("split", go_on)
    direct = under(two, ulysses=2)
    assert direct.group.choose_kernel("split", go_on) == ""
    assert direct.group.choose_kernel("split", go_on) == ""
    counts = direct.group.status()["counts"]
    assert under(two, ulysses=2).group.choose_kernel("split", go_on) == ""
    assert direct.group.status()["counts"] == counts, "the ranks were asked again for the same plan"
