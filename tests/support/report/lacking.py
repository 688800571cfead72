"""Why torch finds no GPU on this machine, and what to do: for a person whose command ends there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import torch

SECONDS = 30
OLDER_TORCH = "https://download.pytorch.org/whl/cu126"  # the oldest CUDA that the oldest torch we run on is built for
TRY_CPU = "Or add --device cpu to see what the report is."
IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def why_no_gpu() -> str:
    """Returns sentences: what torch is, what the driver says, what to do."""
    return f"This needs a GPU that torch can use, and torch {torch.__version__} finds none. {cause()} {TRY_CPU}"


def cause() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        if any(Path(mark).exists() for mark in IN_CONTAINER):
            return "This container has no nvidia-smi: start it with --gpus all --ipc=host."
        return "There is no nvidia-smi: install the NVIDIA driver. (For AMD's cards see CONTRIBUTING.md.)"
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
