"""The ranks are asked once for each plan whether they can attend by the kernel that a node chose. The census has what
they say and compute."""

from __future__ import annotations

from tests.support.group.direct_group import DirectGroup, go_on


def test_another_plan_is_asked_anew(two: DirectGroup) -> None:
    assert two.under(ring=2).group.choose_kernel("split", go_on)
    direct = two.under(ulysses=2)
    assert direct.group.choose_kernel("split", go_on) == ""
    assert direct.group.choose_kernel("split", go_on) == ""
    counts = direct.group.status()["counts"]
    assert two.under(ulysses=2).group.choose_kernel("split", go_on) == ""
    assert direct.group.status()["counts"] == counts, "the ranks were asked again for the same plan"
