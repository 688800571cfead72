"""The benchmark of one rank's step finds each part of it, in ComfyUI's process and in the rank's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from demo.host import REPOSITORY

PARTS = {"compare", "describe", "ours", "rank", "receive", "request", "send", "stock"}


@pytest.mark.slow
def test_every_part_of_a_step_is_clocked(comfyui: Path) -> None:
    command = (sys.executable, "-m", "tests.benchmarks.host.one_rank", comfyui, "--device", "cpu", "--rounds", "1")
    said = subprocess.run(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, check=True).stdout
    found = {part: float(took) for part, took in re.findall(r"^([a-z]+): ([\d.]+) ms$", said, re.MULTILINE)}
    assert found.keys() == PARTS and found["ours"] > found["request"] > found["rank"], said
