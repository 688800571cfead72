"""Reads from the environment which machines a cluster's job has, and which of them this one is.

Knows Slurm's srun and Kubernetes' indexed Jobs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from ..settings import SettingsError

# The variables with a machine's number in its job: for a pod of an indexed Job, and for a node in a Slurm step.
NODE_RANKS = ("JOB_COMPLETION_INDEX", "SLURM_NODEID")
NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
TASK_OF_NODE = "SLURM_LOCALID"


def read_node_rank(environment: Mapping[str, str]) -> int:
    """Returns this machine's node rank: its number in its job, from 0. Raises SettingsError."""
    number = next((environment[name] for name in NODE_RANKS if environment.get(name)), "")
    if not number.isdecimal():
        raise SettingsError(
            f"This machine's number in the job is unknown: {' and '.join(NODE_RANKS)} are not set.",
            "Start it with Slurm's srun or as a Kubernetes Job with completionMode Indexed, or leave out the command.",
        )
    if environment.get(TASK_OF_NODE, "0") != "0":
        raise SettingsError("Slurm started this more than once on a node.", "Use srun --ntasks-per-node=1.")
    return int(number)


def read_job_machines(where: str, environment: Mapping[str, str]) -> list[str]:
    """Returns the job's machines in order, in the form of the setting `machines`: the first has a port.

    where: the machines, separated by commas, or :PORT for the nodes of a Slurm step. Raises SettingsError.
    """
    if not where.startswith(":"):
        return where.split(",")
    nodes = next((environment[name] for name in NODES if environment.get(name)), "")
    if not nodes:
        raise SettingsError(
            f"{where} stands for the nodes of a Slurm job, but {NODES[0]} is not set.",
            "Start it with srun, or name the machines, like 10.0.0.1:29400,10.0.0.2.",
        )
    first, *others = expand_nodelist(nodes)
    return [first + where, *others]


def expand_nodelist(nodelist: str) -> list[str]:
    """Expands Slurm's short form as `scontrol show hostnames` does: gpu[1-2],big becomes gpu1, gpu2, big."""
    hosts: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        pieces = re.split(r"\[([^\]]*)\]", part)  # text and ranges in turn
        choices = [list(expand_ranges(piece)) if index % 2 else [piece] for index, piece in enumerate(pieces)]
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    return hosts


def expand_ranges(ranges: str) -> Iterator[str]:
    """Yields the numbers of 01-03,07 one by one, with their leading zeros."""
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1))
