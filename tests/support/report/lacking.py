"""Why torch finds no GPU on this machine, and what to do: for a person whose command ends there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch

SECONDS = 30
OLDER_TORCH = "https://download.pytorch.org/whl/cu126"  # the oldest CUDA that the oldest torch we run on is built for
TRY_CPU = "Or add --device cpu to see what the report is."
IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")
VISIBLE = "CUDA_VISIBLE_DEVICES"
ROOT = Path("/")


class Maker(NamedTuple):
    """One beside NVIDIA. torch: its platform. device: torch's name of its devices. tools: of which its driver brings
    one. node: below /, what a program opens that uses its cards. folders: what a container is given. visible: settings
    that hide cards."""

    name: str
    torch: str
    device: str
    tools: tuple[str, ...]
    node: str
    folders: tuple[str, ...]
    visible: tuple[str, ...]


AMD = Maker(
    "AMD", "ROCm", "cuda", ("rocm-smi", "amd-smi"), "dev/kfd", ("/dev/kfd", "/dev/dri"),
    ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", VISIBLE),
)  # fmt: skip
INTEL = Maker(
    "Intel", "XPU", "xpu", ("xpu-smi",), "dev/dri/renderD*", ("/dev/dri",), ("ZE_AFFINITY_MASK",),
)  # fmt: skip


def has_intel_cards() -> bool:
    """Whether torch can use cards of Intel's, and no others."""
    return not torch.cuda.is_available() and hasattr(torch, "xpu") and torch.xpu.is_available()


def why_no_gpu() -> str:
    """Returns sentences: what torch is, what the driver says, what to do."""
    if has_intel_cards():
        return (
            "The whole report is for NVIDIA's and AMD's cards. For Intel's, run "
            "`python -m tests.support.report.quick`: it needs neither ComfyUI nor tests/requirements.txt."
        )
    return f"This needs a GPU that torch can use, and torch {torch.__version__} finds none. {cause()} {TRY_CPU}"


def cause() -> str:
    if torch.version.hip:
        return why_none_of(AMD, torch.version.hip)
    if release := getattr(torch.version, "xpu", None):
        return why_none_of(INTEL, release)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        for maker in (AMD, INTEL):
            if found := [each for each in maker.tools if shutil.which(each)]:
                return (
                    f"{found[0]} is here, so there may be cards of {maker.name}'s. They need torch for {maker.torch}, "
                    "in an environment of your own: CONTRIBUTING.md has the commands."
                )
        if any(Path(mark).exists() for mark in IN_CONTAINER):
            return "This container has no nvidia-smi: start it with --gpus all --ipc=host."
        return "There is no nvidia-smi: install the NVIDIA driver. (For AMD's and Intel's cards see CONTRIBUTING.md.)"
    code, said = ask(tool)
    if code:
        return (
            f"nvidia-smi fails ({first_line(said)}): install the driver anew, or restart the machine after an update."
        )
    cards = len(re.findall(r"(?m)^GPU \d+:", ask(tool, "-L")[1]))
    if not cards:
        return "nvidia-smi lists no GPU: see that the card is plugged in, and passed on to this machine."
    listed = f"nvidia-smi lists {cards} GPU{'s' if cards > 1 else ''}"
    if torch.version.cuda is None:
        return f"{listed}, but this torch is built for the CPU: remove the folder .venv, and run this again."
    driver, newest = (re.search(rf"{what} ?Version: ([\d.]+)", said) for what in ("Driver", "CUDA"))
    if newest and major(newest[1]) < major(torch.version.cuda):
        return (
            f"{listed}, and the driver {driver[1] if driver else ''} runs programs for CUDA {newest[1]} at most. This "
            f"torch is built for CUDA {torch.version.cuda}: update the driver. If you cannot, take an older torch: "
            f".venv/bin/python -m pip install --force-reinstall torch --index-url {OLDER_TORCH}"
        )
    if VISIBLE in os.environ:
        return f"{listed}, and {VISIBLE} is {os.environ[VISIBLE]!r}: unset it, or name cards that are there."
    return (
        f"{listed}, so something else is wrong: `.venv/bin/python -c 'import torch; torch.zeros(1).cuda()'` says what."
    )


def why_none_of(maker: Maker, release: str) -> str:
    """Why a torch for another maker's cards finds none."""
    built = f"This torch is built for {maker.torch} {release}"
    nodes = sorted(ROOT.glob(maker.node))
    if not nodes:
        given = " ".join(f"--device={folder}" for folder in maker.folders)
        advice = f"install {maker.name}'s driver, or start the container with {given}"
        return f"{built}, and there is no /{maker.node}: {advice}."
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        return (
            f"{built}, and you may not open {closed[0]}: add your user to the groups render and video, and log in anew."
        )
    hidden = next((name for name in maker.visible if name in os.environ), None)
    if hidden:
        return f"{built}, and {hidden} is {os.environ[hidden]!r}: unset it, or name cards that are there."
    tried = f"import torch; torch.zeros(1, device={maker.device!r})"
    return f'{built}, so something else is wrong: `python -c "{tried}"` says what.'


def ask(*command: str) -> tuple[int, str]:
    """Returns a program's exit code, and what it says."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return run.returncode, run.stdout + run.stderr


def first_line(said: str) -> str:
    return next(iter(said.strip().splitlines()), "it says nothing")


def major(version: str) -> int:
    return int(version.partition(".")[0])
