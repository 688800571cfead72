"""A test is in the tier of what its fixtures start, and one that starts something else fails."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.support import tiers

STARTS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "-m", "tests.support.ranks.plan_ranks"],
    "forked ranks": [sys.executable, "-m", "tests.support.ranks.forks"],
    "a worker group": [sys.executable, "-m", "worker.launch.agent", "--ranks=2"],
    "one rank": [sys.executable, "-m", "worker.rank.main"],
    "ComfyUI": [sys.executable, "/anywhere/ComfyUI/main.py", "--cpu"],
}


@pytest.mark.parametrize("command", STARTS.values(), ids=STARTS)
def test_what_the_fixtures_do_not_show_is_not_started(command: list[str]) -> None:
    with tiers.guarded(["tmp_path", "monkeypatch"]) as refused, pytest.raises(PermissionError, match="fixtures shows"):
        subprocess.run(command, check=False)
    assert len(refused) == 1, "so that the test fails, whatever it makes of the error"


def test_what_the_fixtures_show_is_started(own_ranks: None) -> None:
    with tiers.guarded(["tmp_path", "own_ranks"]) as refused:
        subprocess.run([sys.executable, "-c", "", "worker.launch.agent"], check=True)
    assert not refused


class Item(SimpleNamespace):
    """As much of a test as the choice of a tier looks at."""

    __hash__ = object.__hash__

    def get_closest_marker(self, name: str) -> object | None:
        return self.marker if name == "slow" else None


def test_each_tier_runs_its_own_and_says_what_it_leaves_out() -> None:
    def select(*options: str) -> tuple[list[Item], list[Item], str]:
        deselected: list[Item] = []
        hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
        config = SimpleNamespace(getoption=lambda name: name in options, hook=hook)
        fixtures = {"in ComfyUI": ["host", "comfyui"], "pure": ["tmp_path"], "on ranks": ["ranks"], "long": []}
        items = [
            Item(name=name, fixturenames=held, marker=name == "long" or None, config=config)
            for name, held in fixtures.items()
        ]
        said = tiers.select(config, items)
        return [item.name for item in items], [item.name for item in deselected], said

    assert select("--fast")[:2] == (["pure"], ["in ComfyUI", "on ranks", "long"])
    said = select("--fast")[2]
    assert said == "3 tests deselected (1 need ComfyUI, 1 need ranks, 1 are slow): run without --fast"
    said = "1 tests deselected, as they are slow: run with --slow"
    assert select() == (["pure", "in ComfyUI", "on ranks"], ["long"], said)
    assert select("--slow") == (["pure", "in ComfyUI", "on ranks", "long"], [], "")
