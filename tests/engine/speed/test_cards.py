"""What is predicted for MiniMax H3 on cards is what the page says, and near what others have published."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.host import REPOSITORY
from tests.support.pages import written_table

NEAR = 0.15
NOT_KNOWN = "H3VM"  # of whose run the number of frames is not known


@pytest.mark.slow
def test_the_page_has_what_is_predicted_on_cards(comfyui: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.exchange.cards"],
        cwd=REPOSITORY,
        env={**os.environ, "COMFYUI_PATH": str(comfyui)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert written_table("cards") in run.stdout, "write it: python -m tests.benchmarks.exchange.cards --write"


def test_predictions_are_near_what_others_have_published() -> None:
    compared = 0
    for line in written_table("cards").splitlines()[2:]:
        published, predicted = (cell.split("(")[0].split(";") for cell in line.split("|")[3:5])
        for other, ours in zip(published, predicted, strict=True):
            if other.strip() != "–" and NOT_KNOWN not in line:
                compared += 1
                assert abs(float(ours) / float(other) - 1) <= NEAR, line
    assert compared == 5
