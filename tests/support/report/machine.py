"""What the machine is, for a report that strangers read: nothing of its user, its folders or its network."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from parallel_backend.device import THROUGH_THE_HOST

REPOSITORY = Path(__file__).resolve().parents[3]
GIGABYTE = 1 << 30
SETTINGS = (
    "PARALLELDIT_", "NCCL_", "PYTORCH_", "TORCH_", "CUDA_", "HIP_", "HSA_", "ROCR_", "CCL_", "ZE_", "GLOO_", "OMP_"
)  # fmt: skip
SHARED = "/dev/shm"
PROPERTIES = (
    "name", "total_memory", "major", "minor", "gcnArchName", "multi_processor_count", "gpu_subslice_count",
    "driver_version",
)  # fmt: skip
# What tells how cards are linked: NVIDIA's tool, AMD's older and newer one, Intel's.
TABLES = (
    ("nvidia-smi", "topo", "-m"), ("rocm-smi", "--showtopotype"), ("amd-smi", "topology"), ("xpu-smi", "topology", "-m")
)  # fmt: skip
SHARED_NAMES = ("root", "user", "localhost")  # which say nothing of anybody


def facts(comfyui: Path | None, device: str) -> list[str]:
    """Lines of a list. comfyui: None if it takes no part."""
    written = (comfyui / "comfyui_version.py").read_text() if comfyui else ""
    release = re.search(r'__version__ = "(.+)"', written)
    pack = re.search(r'(?m)^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text())
    commit = output("git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD")
    lines = [f"ParallelDiT {pack[1] if pack else '?'}{commit and f' at {commit}'}"]
    lines[0] += f", ComfyUI {release[1]}" if release else ""
    lines.append(f"torch {torch.__version__} ({built_for()}), diffusers {version('diffusers')}")
    lines.append(f"Python {platform.python_version()}, {platform.system()}, {platform.machine()}")
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines.append(f"{os.cpu_count()} CPU threads, {ram / GIGABYTE:.0f} GB of RAM")
    return [*lines, *(gpus(device) if device != "cpu" else [])]


def built_for() -> str:
    """What this torch computes on."""
    releases = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": getattr(torch.version, "xpu", None)}
    return next((f"{name} {release}" for name, release in releases.items() if release), "for the CPU")


def gpus(device: str) -> list[str]:
    lines, said = [], {}
    for card in range(torch.get_device_module(device).device_count()):
        properties = torch.get_device_module(device).get_device_properties(card)  # torch's own have no `__dict__`
        said = {name: getattr(properties, name) for name in PROPERTIES if hasattr(properties, name)}
        kind = f"compute {said['major']}.{said['minor']}" if "major" in said else "no compute capability"
        kind = str(said.get("gcnArchName", kind)) if torch.version.hip else kind  # NVIDIA's repeats the name
        cores = said.get("multi_processor_count", said.get("gpu_subslice_count", "unknown"))
        memory = said["total_memory"] / GIGABYTE
        lines.append(f"GPU {card}: {said['name']}, {memory:.1f} GB, {kind}, {cores} multiprocessors")
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    driver += re.findall(r"(?m)^Driver version: *(\S+)", output("rocm-smi", "--showdriverversion"))
    driver += [str(said[name]) for name in ("driver_version",) if name in said]  # Intel's
    library = "xccl" if device == "xpu" else "RCCL" if torch.version.hip else "NCCL"
    release = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else ""
    return [*lines, f"driver {driver[0] if driver else 'unknown'}, {library} {release}".rstrip()]


def links(device: str) -> str:
    """How the cards reach one another: what torch says of peer access, and the driver's table where there is one."""
    module = torch.get_device_module(device)
    cards = range(module.device_count())
    reaches = getattr(module, "can_device_access_peer", None)  # not every torch says it of Intel's cards
    pairs = [(one, other) for one in cards for other in cards if one < other]
    said = [f"{one}-{other}: {'yes' if reaches(one, other) else 'no'}" for one, other in pairs if reaches]
    table = next(filter(None, (output(*tool) for tool in TABLES)), "")
    table = re.sub(r"\x1b\[[\d;]*m", "", table)
    unknown = "unknown" if pairs else "one card"
    return "\n".join([f"peer access: {', '.join(said) or unknown}", table]).strip()


def has_intel_cards() -> bool:
    """Whether torch can use cards of Intel's, and no others."""
    return not torch.cuda.is_available() and hasattr(torch, "xpu") and torch.xpu.is_available()


def why_no_gpu() -> str:
    """Returns sentences: what torch is, what the driver lists, where to read what to do."""
    if has_intel_cards():
        return (
            "The whole report is for NVIDIA's and AMD's cards. For Intel's, run "
            "`python -m tests.support.report.quick`: it needs neither ComfyUI nor tests/requirements.txt."
        )
    listed = len(re.findall(r"(?m)^GPU \d+:", output("nvidia-smi", "-L")))
    return (
        f"This needs a GPU that torch can use. torch {torch.__version__} ({built_for()}) finds none, and "
        f"nvidia-smi lists {listed}. docs/gpus.md says what to do. Or add --device cpu to see what the report is."
    )


def has_fast_links(links: str) -> bool:
    """Whether cards have links of their own: NVIDIA's NVLink, AMD's XGMI, Intel's Xe Link."""
    return re.search(r"\b(NV\d+|XGMI|XL\d+)\b", links) is not None


def are_alike(device: str) -> bool:
    """Whether all cards are of one kind, as far as their names say."""
    if device == "cpu":
        return True
    module = torch.get_device_module(device)
    return len({module.get_device_properties(card).name for card in range(module.device_count())}) <= 1


def hints(links: str, device: str) -> list[str]:
    """What a reader may do about what the links say."""
    found = []
    if ": no" in links.partition("\n")[0]:
        found.append(
            "Some cards have no peer-to-peer access, so they exchange through RAM, at half the rate. If that hangs, "
            f"set {THROUGH_THE_HOST[device]} (docs/gpus.md)."
        )
    room = shutil.disk_usage(SHARED).total if Path(SHARED).exists() else None
    if room is not None and room < GIGABYTE and torch.get_device_module(device).device_count() > 1:
        found.append(f"{SHARED} has {room >> 20} MB. The ranks need more: start the container with --ipc=host.")
    return found


def settings(environment: Iterable[tuple[str, str]]) -> list[str]:
    return sorted(f"{name}={value}" for name, value in environment if name.startswith(SETTINGS))


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


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def fenced(text: str) -> str:
    return f"```\n{text.replace('```', '')}\n```" if text else "Nothing."
