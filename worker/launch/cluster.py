"""Which machines a cluster's job has, and which of them this one is, as Slurm's srun and Kubernetes' Jobs tell each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from ..settings import SettingsError

# The number of a machine in its job: of an indexed Job's pod, and of a node in a Slurm step.
PLACES = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
TASK_OF_NODE = "SLURM_LOCALID"


def job_place(environment: Mapping[str, str]) -> int:
    """This machine's number in its job; the first has 0. Raises SettingsError."""
    number = next((environment[name] for name in PLACES if environment.get(name)), "")
    if not number.isdecimal():
        raise SettingsError(
            f"Which machine of a job this is, neither {' nor '.join(PLACES)} says.",
            "Start it by Slurm's srun or as a Kubernetes Job with completionMode Indexed, or leave out the command.",
        )
    if environment.get(TASK_OF_NODE, "0") != "0":
        raise SettingsError("Slurm has started this more than once on a node.", "Use srun --ntasks-per-node=1.")
    return int(number)


def job_machines(where: str, environment: Mapping[str, str]) -> list[str]:
    """The job's machines in their order, the first with a port, as the setting `machines` has them.

    where: these, with commas between them, or :PORT for the nodes of a Slurm step. Raises SettingsError.
    """
    if not where.startswith(":"):
        return where.split(",")
    nodes = next((environment[name] for name in NODES if environment.get(name)), "")
    if not nodes:
        raise SettingsError(
            f"{where} stands for the nodes of a Slurm job, and {NODES[0]} names none.",
            "Start it by srun, or name the machines, like 10.0.0.1:29400,10.0.0.2.",
        )
    first, *others = hosts_of(nodes)
    return [first + where, *others]


def hosts_of(nodelist: str) -> list[str]:
    """Slurm's short form written out, as `scontrol show hostnames` does: gpu[1-2],big is gpu1, gpu2, big."""
    hosts: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        pieces = re.split(r"\[([^\]]*)\]", part)  # text and ranges in turn
        choices = [list(numbers_of(piece)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    return hosts


def numbers_of(ranges: str) -> Iterator[str]:
    """01-03,07 one by one, as wide as they are written."""
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1))
