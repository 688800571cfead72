"""A rank imports what the model at hand needs, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from demo.host import REPOSITORY
from tests.support.programs import run_program

MEDIA = {"torchaudio", "av", "kornia", "spandrel", "comfy.sd"}
WAIT = "import sys, worker.rank.serving"
LOAD_FILE = """
import os, torch
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan
from worker.comfyui.source import HostSource
from worker.rank.model.host_model import HostModel
file, plan, cpu = sys.argv.pop(), ParallelPlan(), torch.device("cpu")
axes = dict.fromkeys((*plan.degrees(), "batch", "sequence"), Axis(None, 1, 0))
source = HostSource(os.environ["COMFYUI_PATH"], ("--cpu",), file, "", "float32", "")
HostModel.build(source, Mesh(plan, cpu, axes, Timeline(cpu))).bring((), None)
"""


def imported(program: str, *arguments: str, **environment: str) -> set[str]:
    """The modules that are there after a program of its own process."""
    command = [sys.executable, "-c", f"{program}\nprint(*sys.modules)", *arguments]
    run = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return set(run.stdout.splitlines()[-1].split())


def test_a_rank_that_waits_has_imported_neither_diffusers_nor_comfyui(own_ranks: None) -> None:
    assert {"diffusers", "transformers", "torchvision", "comfy", *MEDIA}.isdisjoint(imported(WAIT))


def test_a_file_by_comfyuis_own_class_needs_no_diffusers_and_no_media_package(
    comfyui: Path, own_ranks: None, tmp_path: Path
) -> None:
    """ComfyUI's classes themselves import transformers and torchvision."""
    run_program(comfyui, "tests.support.files.write_stock_models", tmp_path, "krea-2")
    found = imported(WAIT + LOAD_FILE, str(tmp_path / "krea-2.safetensors"), COMFYUI_PATH=str(comfyui))
    assert "comfy" in found
    assert {"diffusers", *MEDIA}.isdisjoint(found)
