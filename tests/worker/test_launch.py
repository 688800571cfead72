"""What ranks are started with; and of several that failed, the one that brought the others down is named."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from demo.host import REPOSITORY
from tests.support.group.direct_group import wait_until
from worker.launch.agent import find_root_cause
from worker.launch.forks import fork_ranks
from worker.launch.torchrun import DEVICE, cuda_environment

UNNEEDED = {"diffusers", "transformers", "torchvision", "torchaudio", "av", "kornia", "spandrel", "comfy"}
LOST = "Connection closed by peer [127.0.0.1]:4242"


def failure(exitcode: int, message: str = "", timestamp: int = 1_700_000_000) -> SimpleNamespace:
    """What torch's ProcessFailure tells of a rank."""
    data = {"message": {"message": message, "extraInfo": {}}} if message else {}
    return SimpleNamespace(exitcode=exitcode, message=message, timestamp=timestamp, pid=4242, error_file_data=data)


KILLED, ABORTED, ENDED = (failure(-number) for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGTERM))
KILLED_LATER = failure(KILLED.exitcode, timestamp=KILLED.timestamp + 9)
WRONG, CUT_OFF = failure(1, "ValueError: wrong"), failure(1, f"RuntimeError: {LOST}")
NOT_WRITTEN = failure(1, "RuntimeError: writev: Broken pipe")

# What ended the ranks, in their order; which one is named, what is said of it, and whether it may be a consequence.
CASES = {
    "killed": ([ABORTED, KILLED], 1, "was killed by SIGKILL", False),
    "killed, lost": ([CUT_OFF, KILLED], 1, "was killed by SIGKILL", False),
    "aborted, lost": ([CUT_OFF, ABORTED], 1, "was killed by SIGABRT", True),
    "aborted, lost in writing": ([ABORTED, NOT_WRITTEN], 0, "was killed by SIGABRT", True),
    "aborted, wrong": ([ABORTED, WRONG], 1, "failed: ValueError: wrong", False),
    "wrong": ([ENDED, CUT_OFF, WRONG], 2, "failed: ValueError: wrong", False),
    "lost alone": ([ENDED, CUT_OFF], 1, LOST, True),
    "killed by a real-time signal": ([failure(-int(signal.SIGRTMIN) - 1)], 0, "was killed by signal", False),
    "the first": ([KILLED_LATER, KILLED], 1, "was killed by SIGKILL", False),
}


@pytest.mark.parametrize(("failures", "rank", "said", "lost"), CASES.values(), ids=CASES)
def test_the_root_cause_is_no_consequence(failures: list[SimpleNamespace], rank: int, said: str, lost: bool) -> None:
    reason, named, is_lost = find_root_cause(dict(enumerate(failures)))
    assert named == rank and said in reason.cause and is_lost == lost


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "expandable_segments:True"),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,backend:cudaMallocAsync"},
            "max_split_size_mb:64,expandable_segments:True",
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, "expandable_segments:False"),
    ],
)
def test_ranks_have_an_allocator_that_shares_the_card_with_nccl(given: dict[str, str], found: str) -> None:
    """ComfyUI chooses cudaMallocAsync for itself; what a person has set stays."""
    made = cuda_environment(given)
    assert made["PYTORCH_CUDA_ALLOC_CONF"] == found
    assert "PYTORCH_ALLOC_CONF" not in made


@pytest.mark.parametrize("release", ["6.6.87.2-microsoft-standard-WSL2", "4.4.0-19041-Microsoft"])
def test_on_wsl_ranks_have_expandable_segments_only_if_a_person_asks_for_them(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of Windows' drivers fail their first allocation."""
    monkeypatch.setattr(platform, "release", lambda: release)
    name = "PYTORCH_CUDA_ALLOC_CONF"
    assert cuda_environment({})[name] == "", "it overrides what ComfyUI has set for itself"
    assert cuda_environment({name: "backend:cudaMallocAsync,max_split_size_mb:64"})[name] == "max_split_size_mb:64"
    asked = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert cuda_environment(asked) == cuda_environment({}) | asked


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_the_folders_of_a_process_go_with_it_however_it_ends(end: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys; from worker.wire.private_folder import private_folder as of; print(of('a'), of('b'), flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.stdin.read()"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folders = [Path(folder) for folder in process.stdout.readline().split()]
    (folders[0] / "log").write_text("kept while it lives")
    assert len(folders) == 2 and all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    assert psutil.Process(process.pid).children() == [], "who takes care is nobody's child"
    os.killpg(process.pid, end)
    process.communicate()
    assert wait_until(lambda: not any(folder.exists() for folder in folders), 30)


# A module of a rank: it starts a thread as it is imported, as CUDA may.
THREADED = """
import threading
def prepare():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_no_rank_is_forked_where_a_fork_would_break_it(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator that was started, or a thread that runs, does not survive a fork."""
    (tmp_path / "threaded_rank.py").write_text(THREADED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(DEVICE, device)
    assert fork_ranks(2, "threaded_rank") == []


def test_a_rank_that_waits_has_imported_neither_diffusers_nor_comfyui(own_ranks: None) -> None:
    command = [sys.executable, "-c", "import sys, worker.rank.serving\nprint(*sys.modules)"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True)
    assert UNNEEDED.isdisjoint(run.stdout.splitlines()[-1].split())
