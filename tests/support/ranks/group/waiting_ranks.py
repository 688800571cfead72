"""Ranks of which the last one never comes to the collective in which the others wait."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

HANGS = 3600


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == dist.get_world_size() - 1:
        sleep_for_ever()
    dist.all_reduce(torch.ones(1))


def sleep_for_ever() -> None:
    time.sleep(HANGS)
