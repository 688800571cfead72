"""Connects the ranks of a new group, before weights fill their devices."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ..device import THROUGH_THE_HOST, name_of
from ..errors import GroupError
from .communicators import Communicator

# Gathers into one tensor, because NCCL would copy a list. Older torch has only the other name.
ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
HANDSHAKE_SECONDS, HANDSHAKE_PAUSE = 60.0, 0.0005


def shake_hands(group: dist.ProcessGroup, device: torch.device, each: Communicator) -> None:
    """Runs a tiny exchange of each kind that the group is for, so that NCCL connects and takes its memory before
    weights fill the device.

    Raises GroupError.
    """
    works, deadline = start_exchanges(group, device, each), time.monotonic() + HANDSHAKE_SECONDS
    try:
        while not all(work.is_completed() for work in works):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing came within {HANDSHAKE_SECONDS:.0f} s")
            time.sleep(HANDSHAKE_PAUSE)
    except (RuntimeError, TimeoutError) as error:
        cause = (
            f"The devices of the ranks {', '.join(map(str, each.ranks))} cannot exchange data (this one is rank "
            f"{dist.get_rank()}'s, {name_of(device)}): {error}"
        )
        advice = "Check whether a firewall blocks the connections between the ranks."
        if variable := THROUGH_THE_HOST.get(device.type):
            advice = f"Start ComfyUI with {variable} in its environment: these GPUs may not reach one another directly."
        raise GroupError(cause, advice) from error


def start_exchanges(group: dist.ProcessGroup, device: torch.device, each: Communicator) -> list[dist.Work]:
    """Starts an all-gather if the ranks gather, and an all-to-all in which each pair sends a number."""
    works, own = [], torch.zeros(1, device=device)
    if each.gathers:
        works.append(getattr(dist, ALL_GATHER)(own.new_zeros(len(each.ranks)), own, group=group, async_op=True))
    if each.pairs:
        rank = dist.get_rank()
        to, of = ([int(pair in each.pairs) for pair in zip(*ends, strict=True)] for ends in (
            ([rank] * len(each.ranks), each.ranks), (each.ranks, [rank] * len(each.ranks)),
        ))  # fmt: skip
        given, received = own.new_zeros(sum(to)), own.new_zeros(sum(of))
        works.append(dist.all_to_all_single(received, given, of, to, group=group, async_op=True))
    return works
