"""Builds the command and the environment that start a worker group. Does not import torch."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..settings import Settings, SettingsError
from ..wire.private_folder import FOLDER
from .lifetime import PARENT

DEVICE = "PARALLELDIT_DEVICE"
GPUS = "PARALLELDIT_GPUS"  # the numbers of those that take part, separated by commas; or empty
THREADS = "OMP_NUM_THREADS"
COMFYUI_THREADS = "PARALLELDIT_THREADS"  # OMP_NUM_THREADS of ComfyUI; empty if it is not set
LOG_MEGABYTES = "PARALLELDIT_LOG_MEGABYTES"
WITHIN = "within"  # the rendezvous of one machine, see `within.py`
PACK = Path(__file__).resolve().parents[2]
# The variables for the options of torch's allocator: the old name, which every release reads, and the new one.
ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
COMFYUIS_ALLOCATOR, EXPANDABLE = "backend:cudaMallocAsync", "expandable_segments:"
NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",  # end the communication, not the process
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # Each link between stages has a group of its own, so its messages wait for nothing else.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
}


@dataclass(frozen=True)
class Machines:
    """The machines that work together.

    address, port: where the first machine listens for the others. others: the addresses of the other machines.
    """

    address: str
    port: int
    others: tuple[str, ...]

    @classmethod
    def parse(cls, machines: Sequence[str]) -> Machines:
        """Reads the setting `machines`, like 10.0.0.1:29400 and 10.0.0.2. Raises SettingsError."""
        first, *others = machines
        address, _, port = first.rpartition(":")
        if not address or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingsError(
                f"The setting machines begins with {first!r}, which is not an address with a port.",
                "Begin it with this machine's address and a port, like 10.0.0.1:29400.",
            )
        wrong = [name for name in (address, *others) if ":" in name or not name.strip(".-")]
        if wrong or not others or len({address, *others}) <= len(others):
            raise SettingsError(
                f"The setting machines is {','.join(machines)!r}, which does not name two or more different machines.",
                "List their IPv4 addresses or names. Only the first has a port, like 10.0.0.1:29400,10.0.0.2.",
            )
        return cls(address, int(port), tuple(others))

    def __len__(self) -> int:
        return 1 + len(self.others)


def ranks_a_machine(ranks: int, settings: Settings) -> int:
    """Returns how many of the group's ranks run on each machine. Raises SettingsError if they don't divide evenly."""
    count = len(settings.machines) or 1
    if ranks % count:
        below, above = ranks // count * count, (ranks // count + 1) * count
        works = f"{below} or {above}" if below else f"{above}"
        raise SettingsError(
            f"A plan of {ranks} ranks does not divide over {count} machines.",
            f"Choose a plan of {works} ranks, or remove machines from the settings.",
        )
    return ranks // count


def torchrun_command(ranks: int, folder: Path, settings: Settings) -> list[str]:
    """Builds the command of `worker.launch.agent` on the first machine. Raises SettingsError.

    ranks: of the whole group, on all machines. folder: for the logs, and the reason of a failure.
    """
    command = launch_command(settings.python, ranks_a_machine(ranks, settings), folder)
    if settings.machines:
        Machines.parse(settings.machines)
        command += [f"--machines={','.join(settings.machines)}", f"--silence={settings.silence_seconds}"]
    return command


def launch_command(python: str, ranks: int, folder: Path) -> list[str]:
    """Builds the part of the command that every machine needs. ranks: on this machine."""
    return [python, "-m", "worker.launch.agent", f"--folder={folder}", f"--ranks={ranks}"]


def rank_environment(device: str, ranks: int, folder: Path, settings: Settings) -> dict[str, str]:
    """Returns the variables that the ranks get beside their parent's environment. ranks: on this machine. folder: the
    group's, for its logs and sockets."""
    return {
        PARENT: str(os.getpid()),
        DEVICE: device,
        GPUS: ",".join(map(str, settings.gpus)),
        FOLDER: str(folder),
        LOG_MEGABYTES: str(settings.log_megabytes),
        THREADS: str(count_threads(ranks, os.environ.get(THREADS, ""))),
        COMFYUI_THREADS: os.environ.get(THREADS, ""),
        "OMP_WAIT_POLICY": "PASSIVE",  # ranks on the CPU share the cores with ComfyUI; spinning threads stall both
        # numpy's threads start at its import, and a process with threads is not forked (`forks.py`).
        **({"OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1")} if device == "cpu" else {}),
        "HF_HUB_OFFLINE": "1",
        **cuda_environment(os.environ),
    }


def read_gpus(environment: Mapping[str, str]) -> list[int]:
    """Returns the numbers of the GPUs that take part; none for all. environment: a rank's."""
    return [int(number) for number in environment[GPUS].split(",") if number]


def cuda_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for the ranks' CUDA and NCCL. The user's own settings stay.

    ComfyUI's choice of an allocator is not passed on: cudaMallocAsync's pool keeps its memory, NCCL's buffers do not
    come from it, and so memory runs out. NCCL's watchdog ends no process: `rank/job_groups.py` handles an aborted
    communicator.
    """
    is_expandable = sys.platform == "linux" and "microsoft" not in platform.release().lower()  # WSL: pytorch#192330
    found = {name: given.get(name, value) for name, value in NCCL.items()}
    for name in ALLOCATORS:
        options = [option for option in given.get(name, "").split(",") if option and option != COMFYUIS_ALLOCATOR]
        if is_expandable and not any(option.startswith(EXPANDABLE) for option in options):
            options.append(f"{EXPANDABLE}True")
        if name in given or name == ALLOCATORS[0]:
            found[name] = ",".join(options)
    return found


def count_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads(ranks: int, most: str) -> int:
    """Returns the threads of each rank on a machine with so many ranks; at most ComfyUI's own OMP_NUM_THREADS."""
    own = max(1, count_cores() // ranks)
    return min(own, int(most)) if most.isdecimal() and int(most) else own


def is_one_machine() -> bool:
    """Whether all ranks of the group run on this machine. A rank asks it."""
    return os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]


def machine_prefix() -> str:
    """Returns what a rank's errors begin with, so that the person knows the machine; empty on ComfyUI's machine."""
    return "" if os.environ["GROUP_RANK"] == "0" else f"On the machine {socket.gethostname()}: "
