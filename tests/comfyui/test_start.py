"""A rank imports what the model at hand needs, and no more."""

from __future__ import annotations

import subprocess
import sys

from demo.host import REPOSITORY

UNNEEDED = {"diffusers", "transformers", "torchvision", "torchaudio", "av", "kornia", "spandrel", "comfy"}


def test_a_rank_that_waits_has_imported_neither_diffusers_nor_comfyui(own_ranks: None) -> None:
    command = [sys.executable, "-c", "import sys, worker.rank.serving\nprint(*sys.modules)"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True)
    assert UNNEEDED.isdisjoint(run.stdout.splitlines()[-1].split())
