"""A link between ranks is as slow as it is set, and profiles keep the ratio of real cards to their links."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from tests.support.links.link import TOOLS, Link
from tests.support.links.namespaces import NAMED, why_impossible
from tests.support.links.profiles import PROFILES, Profile
from tests.support.links.transfers import LEAST, MOST

SLOW, FAST = 2_000_000, 20_000_000


@pytest.fixture(scope="module")
def possible(own_ranks: None) -> None:
    if reason := why_impossible(*TOOLS):
        pytest.fail(f"{reason}: the tests of slow links run as root on Linux, with iproute2 installed")


def test_an_exchange_takes_its_bytes_by_the_rate_that_is_set(possible: None, tmp_path: Path) -> None:
    with Link(2) as link:
        file = tmp_path / "found.json"
        link.run("tests.support.links.transfers", link.name, json.dumps([SLOW, FAST]), str(file), seconds=600)
    found = json.loads(file.read_text())
    for rate in (SLOW, FAST):
        assert LEAST * rate < statistics.median(found[str(rate)]) < MOST * rate, found
    assert not Path(NAMED, link.name).exists()


def found_by(module: str, folder: Path, *options: str) -> tuple[dict, str]:
    """What a benchmark writes, and what it prints. It says by its exit status whether figures are as hoped for."""
    file = folder / "found.json"
    command = [sys.executable, "-m", module, *options, "--rounds", "1", "--json", str(file)]
    run = subprocess.run(command, cwd=REPOSITORY, text=True, capture_output=True)
    assert file.exists(), run.stdout + run.stderr
    return json.loads(file.read_text()), run.stdout


@pytest.mark.slow
def test_the_table_of_links_is_measured_from_end_to_end(possible: None, tmp_path: Path) -> None:
    found, said = found_by("tests.benchmarks.links", tmp_path, "--only", "Flux", "--quick", "--ranks", "2")
    case = found["Flux-shaped"]["2"]
    assert {"one rank", "ulysses 2", "ring 2", "int4", "no overlap", "diffusers"} <= set(case["errors"])
    assert case["refused"] == {}
    for profile in ("PCIe 4.0 x16", "10 Gbit/s Ethernet"):
        assert profile in said
        assert all(len(seconds) == 1 for seconds in case["seconds"][profile].values())


@pytest.mark.slow
def test_every_plan_is_tried_beside_the_automatic_one_from_end_to_end(possible: None, tmp_path: Path) -> None:
    asked = ("tests.benchmarks.auto", tmp_path, "--only", "Wan-shaped 81 frames, 2 ranks, mixed")
    found, said = found_by(*asked)
    again, repeated = found_by(*asked, "--minutes", "0")
    assert again == found and repeated.splitlines()[1:] == said.splitlines()[1:], "a run goes on where it stopped"
    (case,) = found["Wan-shaped 81 frames, 2 ranks, mixed"]["profiles"].values()
    assert {"one rank", "ulysses=2", "ring=2"} <= set(case["seconds"])
    fast, slow = (speed["linear"] for speed in case["machine"]["speeds"])
    assert slow < 0.8 * fast, "a throttled rank is found to be slower"
    assert "1 cases" in said


def ratios(tokens: float, width: float, flops: float, rate: float, itemsize: int) -> tuple[float, float]:
    """A block's seconds on the link to its seconds of computing: of its weights, and of the hidden states of its q,
    k, v and result."""
    computing = (24 * tokens * width**2 + 4 * tokens**2 * width) / flops
    return 12 * width**2 * itemsize / rate / computing, 4 * tokens * width * itemsize / rate / computing


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
@pytest.mark.parametrize("shrink", [1, 6, 10])
def test_a_scaled_link_takes_the_share_of_a_step_that_the_real_one_does(profile: Profile, shrink: int) -> None:
    flops, tokens, width = 80e9, 4608, 3072
    wanted = ratios(tokens, width, profile.card, profile.link, 2)
    scaled = profile.rate(flops, 4, shrink)
    assert ratios(tokens / shrink, width / shrink, flops, scaled, 4) == pytest.approx(wanted)
