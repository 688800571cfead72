"""Estimates in ComfyUI's process how much room weights have on the ranks' cards, and where the ranks will put them."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import replace
from typing import Any

import comfy.model_management
import torch

from ...parallel_backend.device import CPU, Card
from ...parallel_backend.groups.communicators import count_communicator_bytes, count_weights_communicator
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import GB, OF_HOST, WeightRoom, fit_stages, fit_weights
from ...parallel_backend.weights.sizes import WeightSizes
from .group import list_cards, settings


def list_plan_cards(plan: ParallelPlan) -> list[Card]:
    """Returns this machine's cards that a plan's ranks compute on, in the ranks' order. Empty on the CPU."""
    return list_cards()[: math.ceil(plan.world_size / max(1, len(settings().machines)))]


def smallest_card(plan: ParallelPlan) -> int:
    """Returns the bytes of the smallest of a plan's cards on this machine; 0 on the CPU."""
    return min((card.total for card in list_plan_cards(plan)), default=0)


def count_reserved_bytes(working: float) -> int:
    """Returns the bytes of a card that weights cannot use.

    It is the larger of two: what ComfyUI keeps free for inference, or a forward's `working` bytes plus what ComfyUI
    reserves for other programs.
    """
    management = comfy.model_management
    return math.ceil(max(management.minimum_inference_memory(), working + management.extra_reserved_memory()))


def room_for_weights(plan: ParallelPlan, working: float = 0) -> WeightRoom | None:
    """Returns the room for weights on the smallest card and in RAM. None on the CPU.

    The card's room is its memory without `count_reserved_bytes` and communicators. ComfyUI's other models do not count,
    because ComfyUI unloads them when it frees memory. With --highvram all weights have room on the card, with --novram
    none.

    Free RAM is rounded down to whole GB, because it changes all the time and is a key of `expect_weights`' cache.
    """
    management = comfy.model_management
    if not (card := smallest_card(plan)):
        return None
    free = count_reserved_bytes(working) + count_communicator_bytes(replace(plan, weights=WHOLE, weight_blocks=0))
    if management.vram_state in (management.VRAMState.HIGH_VRAM, management.VRAMState.SHARED):
        card, free = sys.maxsize, 0
    if management.vram_state == management.VRAMState.NO_VRAM:
        card = 0
    in_ram: Any = management.get_free_memory(torch.device(CPU))
    in_ram = int(OF_HOST * in_ram // GB * GB)
    return WeightRoom(max(0, card - free), in_ram, count_weights_communicator(plan))


def room_with_enough_ram(plan: ParallelPlan, working: float = 0) -> WeightRoom | None:
    """Returns the same if RAM is no limit. So it is the same at each prompt."""
    room = room_for_weights(plan, working)
    return room and replace(room, host=sys.maxsize)


def balance_stages(plan: ParallelPlan, sizes: WeightSizes) -> ParallelPlan:
    """Returns the plan with the balance of its stages decided by the smallest card, see `fit_stages`. The ranks get it
    with the plan, so all cut the stages alike."""
    room = room_for_weights(plan)
    return plan if room is None else fit_stages(plan, sizes, room)


@functools.lru_cache(maxsize=64)
def expect_weights(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom | None) -> ParallelPlan:
    """Returns the plan with the weight placement that the ranks will choose, if they find this room."""
    if room is None:
        return replace(plan, weights=WHOLE, weight_blocks=0) if plan.weights == AUTO else plan
    return fit_weights(plan, sizes, room)
