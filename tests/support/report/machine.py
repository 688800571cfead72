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

import torch

from parallel_backend.groups.processors import find_node

REPOSITORY = Path(__file__).resolve().parents[3]
GIGABYTE = 1 << 30
SETTINGS = ("PARALLELDIT_", "NCCL_", "PYTORCH_", "TORCH_", "CUDA_", "HIP_", "HSA_", "ROCR_", "GLOO_", "OMP_")
SHARED = "/dev/shm"
SHARED_NAMES = ("root", "user", "localhost")  # which say nothing of anybody


def facts(comfyui: Path | None, device: str) -> list[str]:
    """Lines of a list. comfyui: None if it takes no part."""
    written = (comfyui / "comfyui_version.py").read_text() if comfyui else ""
    release = re.search(r'__version__ = "(.+)"', written)
    pack = re.search(r'(?m)^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text())
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    torch_of = built if device == "cuda" else "for the CPU" if torch.version.cuda is None else built
    lines = [f"ParallelDiT {pack[1] if pack else '?'}{commit()}" + (f", ComfyUI {release[1]}" if release else "")]
    lines.append(f"torch {torch.__version__} ({torch_of}), diffusers {version('diffusers')}")
    lines.append(f"Python {platform.python_version()}, {platform.system()}, {platform.machine()}")
    lines.append(f"{os.cpu_count()} CPU threads, {memory_bytes() / GIGABYTE:.0f} GB of RAM")
    return [*lines, *(gpus() if device == "cuda" else [])]


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpus() -> list[str]:
    lines = []
    for card in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(card)
        memory, cores = found.total_memory / GIGABYTE, found.multi_processor_count
        lines.append(
            f"GPU {card}: {found.name}, {memory:.1f} GB, compute {found.major}.{found.minor}, {cores} multiprocessors"
            + (f", NUMA node {node.number}" if (node := find_node(torch.device("cuda", card))) else "")
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


def has_nvlink(links: str) -> bool:
    return re.search(r"\bNV\d+\b", links) is not None


def are_alike(device: str) -> bool:
    """Whether all cards are of one kind, as far as their names say."""
    cards = range(torch.cuda.device_count() if device == "cuda" else 0)
    return len({torch.cuda.get_device_properties(card).name for card in cards}) <= 1


def hints(links: str) -> list[str]:
    """What a reader may do about what the links say."""
    found = []
    if ": no" in links.partition("\n")[0]:
        found.append(
            "Some cards have no peer-to-peer access, so NCCL exchanges through RAM, at half the rate. If it hangs, set "
            "NCCL_P2P_DISABLE=1 (docs/gpus.md)."
        )
    room = shutil.disk_usage(SHARED).total if Path(SHARED).exists() else None
    if room is not None and room < GIGABYTE and torch.cuda.device_count() > 1:
        found.append(f"{SHARED} has {room >> 20} MB. NCCL needs more: start the container with --ipc=host.")
    return found


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


def without_names(text: str, comfyui: Path | None) -> str:
    """The text without folders, but those in the pack, ComfyUI and Python's packages; without addresses, the user's
    name and the machine's."""
    text = re.sub(r"[^\s'\"]*/site-packages/", "", text)
    for folder, said in ((comfyui, "ComfyUI/"), (REPOSITORY, "")):
        if folder is None:
            continue
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
