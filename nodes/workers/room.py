"""What room there is for weights on the cards that the ranks compute on, and what the ranks will make of it, as far as
ComfyUI's process can tell before they do."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import replace
from typing import Any

import comfy.model_management
import torch

from ...parallel_backend.device import CPU, Card
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import GB, OF_HOST, WeightRoom, fit_weights
from ...parallel_backend.weights.sizes import WeightSizes
from .group import cards_in_order, settings


def cards_of(plan: ParallelPlan) -> list[Card]:
    """Those of this machine that a plan's ranks compute on, in the ranks' order; none on the CPU."""
    return cards_in_order()[: math.ceil(plan.world_size / max(1, len(settings().machines)))]


def smallest_card(plan: ParallelPlan) -> int:
    """Bytes of the smallest of this machine's cards that a plan's ranks compute on; 0 on the CPU."""
    return min((card.total for card in cards_of(plan)), default=0)


def kept_free(working: float) -> int:
    """Bytes of a card that weights cannot have: what ComfyUI keeps free on its own, or a forward that takes `working`
    bytes and what ComfyUI keeps for other programs."""
    management = comfy.model_management
    return math.ceil(max(management.minimum_inference_memory(), working + management.extra_reserved_memory()))


def room_for_weights(plan: ParallelPlan, working: float = 0) -> WeightRoom | None:
    """What is left of the smallest card by what ComfyUI keeps free on its own, and by a forward that takes `working`
    bytes; if ComfyUI's other models leave, as they do when it makes room. As its arguments have it (--highvram,
    --novram), all or none. None on the CPU. Whole GB of RAM: it changes all the time, and what follows is asked for
    often."""
    management = comfy.model_management
    if not (card := smallest_card(plan)):
        return None
    free = kept_free(working)
    if management.vram_state in (management.VRAMState.HIGH_VRAM, management.VRAMState.SHARED):
        card, free = sys.maxsize, 0
    if management.vram_state == management.VRAMState.NO_VRAM:
        card = 0
    in_ram: Any = management.get_free_memory(torch.device(CPU))
    return WeightRoom(max(0, card - free), int(OF_HOST * in_ram // GB * GB))


@functools.lru_cache(maxsize=64)
def expected_weights(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom | None) -> ParallelPlan:
    """The plan with its weights as the ranks will decide on them, if this is the room that they find."""
    if room is None:
        return replace(plan, weights=WHOLE, weight_blocks=0) if plan.weights == AUTO else plan
    return fit_weights(plan, sizes, room)
