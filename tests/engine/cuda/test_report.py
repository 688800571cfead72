"""The report of `python3 dev.py gpu`, made on the CPU: what it says, and what it keeps to itself."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from demo.host import REPOSITORY
from tests.support.ranks.cuda.resumed import told_by_ranks
from tests.support.report import machine
from tests.support.report.page import page
from tests.support.report.results import read

SECTIONS = ("Machine", "Tests", "Failures", "Time a step", "What the ranks' logs say", "Settings")
VARIANTS = ("stock KSampler", "ours, 1 rank", "automatic plan", "ulysses=2", "ring=2")
BROKEN = """
from pathlib import Path

import pytest


@pytest.mark.gpu
def test_a_file_of_somebodys_own() -> None:
    (Path.home() / "secret" / "weights.safetensors").read_bytes()
"""


@pytest.fixture(scope="module")
def written(comfyui: Path, own_ranks: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Exit status and page, of one of the GPU tests and one that fails."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "test_broken.py").write_text(BROKEN)
    command = [sys.executable, "-m", "tests.support.report", "--device", "cpu", "--out", str(folder / "page.md")]
    command += ["tests/engine/cuda/test_gpu.py", str(folder / "test_broken.py")]
    run = subprocess.run(
        [*command, "-k", "somebodys or (comfyui and flux-dev and ulysses)"], cwd=REPOSITORY, capture_output=True,
        text=True, timeout=1200, env={**os.environ, "COMFYUI_PATH": str(comfyui), "NCCL_HOSTID": socket.gethostname()},
    )  # fmt: skip
    assert (folder / "page.md").exists(), run.stderr[-4000:]
    return run.returncode, (folder / "page.md").read_text()


def test_the_report_has_all_sections_and_says_that_it_is_of_a_cpu(written: tuple[int, str]) -> None:
    _, page = written
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == list(SECTIONS)
    assert "On the CPU: shows that the report works, not speed." in page
    assert f"torch {torch.__version__}" in page


def test_the_report_times_stock_and_ours(written: tuple[int, str]) -> None:
    _, page = written
    rows = [line for line in page.splitlines() if line.startswith(("| stock", "| ours"))]
    assert all(words in row for words, row in zip(VARIANTS, rows, strict=True))
    differences = [float(row.split("|")[5]) for row in rows[1:]]
    assert differences[0] == 0, "one rank gives stock's bits"
    assert max(differences) < 1e-5


def test_a_test_that_fails_is_in_the_report_and_in_its_exit_status(written: tuple[int, str]) -> None:
    status, page = written
    assert status == 1
    assert "1 passed, 1 failed" in page
    assert "| comfyui, ulysses=2, fp32 | 1 |" in page
    failures = page[page.index("## Failures") : page.index("## Time")]
    assert "`test_a_file_of_somebodys_own`" in failures
    assert "FileNotFoundError" in failures and "weights.safetensors" in failures


def test_the_report_has_nothing_private(written: tuple[int, str], comfyui: Path) -> None:
    _, page = written
    assert "NCCL_HOSTID=…" in page
    for private in (Path.home(), REPOSITORY, comfyui, sys.prefix, "secret", socket.gethostname()):
        assert str(private) not in page


def test_a_page_of_a_thousand_failures_fits_into_an_issue(tmp_path: Path) -> None:
    said = [" ".join([f"{kind} is wrong,"] * 40) + "&#10;line" * 40 for kind in range(100)]
    cases = [
        f'<testcase name="test_a[{place}]"><failure message="{said[place % 100]}"/></testcase>' for place in range(1000)
    ]
    (tmp_path / "results.xml").write_text(f"<testsuites>{''.join(cases)}</testsuites>")
    found = read(tmp_path / "results.xml")
    said = dict.fromkeys(("links", "expected", "tests_said", "timing_said"), "")
    made = page(device="cuda", machine=(), results=found, timing=None, settings=(), **said)
    assert "1000 failed" in made and "84 other kinds" in made
    assert "`test_a[0]`, `test_a[100]`" in made, "what says the same stands together"
    assert len(made) < 65_536


def test_names_and_folders_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "tower.lan")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    said = "ada on tower: /mnt/disk 2/ada/flux.safetensors at 192.168.1.7:29400, CUDA 12.8.93, 1/2 of Canada's"
    kept = "… on …: …/disk 2/…/flux.safetensors at …:29400, CUDA 12.8.93, 1/2 of Canada's"
    assert machine.without_names(said, Path("/opt/ComfyUI")) == kept
    files = "/opt/ComfyUI/comfy/ops.py /usr/lib/python3/site-packages/torch/nn.py " + str(REPOSITORY / "dev.py")
    assert machine.without_names(files, Path("/opt/ComfyUI")) == "ComfyUI/comfy/ops.py torch/nn.py dev.py"


@pytest.mark.slow
def test_ranks_that_are_lost_cost_one_case(own_ranks: None, comfyui: Path, tmp_path: Path) -> None:
    """Rank 0 cannot write the first model's file; rank 1 would wait for it for ever."""
    cases = [("diffusers", name, {"ulysses": 2}, "fp32") for name in ("flux-dev", "dit")]
    folder = tmp_path / "2-ranks-0"
    folder.mkdir()
    (folder / "flux-dev").write_text("in the way")
    found = told_by_ranks("cpu", 2, cases, tmp_path)
    lost, served = (found[json.dumps(case)] for case in cases)
    assert "flux-dev" in lost[0]["failed"]
    assert len(served) == 2 and served[0]["error"] < 1e-5
