"""What the machine is, for a report that strangers read: nothing of its user, its folders or its network."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from demo.host import REPOSITORY

GIGABYTE = 1 << 30
SETTINGS = ("PARALLELDIT_", "NCCL_", "PYTORCH_", "TORCH_", "CUDA_", "HIP_", "HSA_", "ROCR_", "GLOO_", "OMP_")
SHARED_NAMES = ("root", "user", "localhost")  # which say nothing of anybody


def facts(comfyui: Path, device: str) -> list[str]:
    """Lines of a list."""
    release = re.search(r'__version__ = "(.+)"', (comfyui / "comfyui_version.py").read_text())
    pack = re.search(r'(?m)^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text())
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    torch_of = built if device == "cuda" else "for the CPU" if torch.version.cuda is None else built
    lines = [f"ParallelDiT {pack[1] if pack else '?'}{commit()}, ComfyUI {release[1] if release else '?'}"]
    lines.append(f"torch {torch.__version__} ({torch_of}), diffusers {version('diffusers')}")
    lines.append(f"Python {platform.python_version()}, {platform.system()}, {platform.machine()}")
    lines.append(f"{os.cpu_count()} CPU threads, {psutil.virtual_memory().total / GIGABYTE:.0f} GB of RAM")
    return [*lines, *(gpus() if device == "cuda" else [])]


def gpus() -> list[str]:
    lines = []
    for card in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(card)
        memory, cores = found.total_memory / GIGABYTE, found.multi_processor_count
        lines.append(
            f"GPU {card}: {found.name}, {memory:.1f} GB, compute {found.major}.{found.minor}, {cores} multiprocessors"
        )
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "RCCL"
    return [*lines, f"driver {driver[0] if driver else 'unknown'}, NCCL {nccl}"]


def links() -> str:
    """How the cards reach one another: what torch says of peer access, and the driver's table where there is one."""
    cards = range(torch.cuda.device_count())
    pairs = [(one, other) for one in cards for other in cards if one < other]
    said = [
        f"{one}-{other}: {'yes' if torch.cuda.can_device_access_peer(one, other) else 'no'}" for one, other in pairs
    ]
    table = re.sub(r"\x1b\[[\d;]*m", "", output("nvidia-smi", "topo", "-m"))
    return "\n".join([f"peer access: {', '.join(said) or 'one card'}", table]).strip()


def settings(environment: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(f"{name}={value}" for name, value in environment if name.startswith(SETTINGS))


def commit() -> str:
    found = output("git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD")
    return f" at {found}" if found else ""


def output(*command: str) -> str:
    """What a program says, if it is there and well."""
    if not shutil.which(command[0]):
        return ""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def without_names(text: str, comfyui: Path) -> str:
    """The text without folders, but those in the pack, ComfyUI and Python's packages; without addresses, the user's
    name and the machine's."""
    text = re.sub(r"[^\s'\"]*/site-packages/", "", text)
    for folder, said in ((comfyui, "ComfyUI/"), (REPOSITORY, "")):
        text = text.replace(f"{folder}/", said)
    text = re.sub(r"(?<![\w./])/(?:[^\s/'\"]+/)+", "…/", text)
    text = re.sub(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", "…", text)
    for name in names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text)
    return text


def names() -> set[str]:
    host = socket.gethostname()
    found = {host, host.partition(".")[0]}
    try:
        found.add(getpass.getuser())
    except (OSError, KeyError):  # no name is known
        pass
    return {name for name in found if len(name) > 1 and name not in SHARED_NAMES}
