"""Estimates in ComfyUI's process how much room weights have on the ranks' cards, and where the ranks will put them."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import replace

import comfy.model_management

from ...parallel_backend.device import Card, outside_bytes
from ...parallel_backend.groups.communicators import count_communicator_bytes, count_weights_communicator
from ...parallel_backend.plan import AUTO, WHOLE, ParallelPlan
from ...parallel_backend.weights.fitting import GB, OF_HOST, WeightRoom, fit_stages, fit_weights
from ...parallel_backend.weights.free_ram import available_ram_bytes
from ...parallel_backend.weights.sizes import WeightSizes
from ...worker.host.measured import measured_file
from .group import all_cards, last_status, list_cards, measured_folder, settings

CONTEXT = int(0.7 * GB)  # a rank's before one is measured: of an H200, its first kernels and their libraries take 0.72


def list_plan_cards(plan: ParallelPlan) -> list[Card]:
    """Returns this machine's cards that a plan's ranks compute on, in the ranks' order. Empty on the CPU."""
    return list_cards()[: math.ceil(plan.world_size / max(1, len(settings().machines)))]


@functools.cache
def measure_own_context() -> int:
    """Returns what of ComfyUI's card, the first, is not its torch's: its context, and other programs. 0 on the CPU. It
    is measured as the pack is loaded: later, models may be on the card that torch does not count."""
    return outside_bytes(comfy.model_management.get_torch_device())


def list_rank_contexts() -> dict[str, int]:
    """Returns by a card's number what its rank found there as it started, beside its own tensors and ComfyUI's context.
    Figures are kept for the next ComfyUI. Only the first group's count: the others' ranks may find its weights."""
    stored = measured_file(measured_folder(), tuple(card.name for card in all_cards()), "")
    known = stored.figures or {}
    cards = [each for each in last_status(1).get("devices", ()) if each["index"] is not None]
    started = {str(each["index"]): each["outside"] for each in reversed(cards)}  # this machine's last
    found = known | started | ({"0": started["0"] - measure_own_context()} if "0" in started else {})
    if found != known:
        stored.keep(found)
    return found


def count_contexts(card: Card) -> int:
    """Returns what contexts and other programs take of a card: as measured, or assumed before the first start.

    On ComfyUI's card a rank may have found ComfyUI's models, too. So its context counts as large as another card's, or
    on the only card as no larger than assumed. ComfyUI's becomes as large once its kernels are loaded.
    """
    found = list_rank_contexts()
    if card.index:
        return found.get(str(card.index), CONTEXT)
    others = [size for index, size in found.items() if index != "0"]
    rank = min(others) if others else min(CONTEXT, max(0, found.get("0", CONTEXT)))
    return rank + max(measure_own_context(), rank)


def usable_bytes(card: Card, working: float, contexts: int | None = None) -> int:
    """Returns the bytes of a card for weights and communicators, beside a forward's `working` bytes.

    Beside contexts, it leaves the larger of two: what ComfyUI keeps free for inference, or the working bytes plus what
    ComfyUI reserves for other programs. contexts: bytes; by default, of `count_contexts`.
    """
    management = comfy.model_management
    reserved = max(management.minimum_inference_memory(), working + management.extra_reserved_memory())
    return card.total - (count_contexts(card) if contexts is None else contexts) - math.ceil(reserved)


def room_for_weights(plan: ParallelPlan, working: float = 0, contexts: int | None = None) -> WeightRoom | None:
    """Returns the room for weights on the card with the least and in RAM. None on the CPU.

    Of the card, `usable_bytes` without communicators. ComfyUI's other models do not count, because ComfyUI unloads them
    when it frees memory. With --highvram all weights have room on the card, with --novram none.

    Free RAM is rounded down to whole GB, because it changes all the time and is a key of `expect_weights`' cache.
    """
    management = comfy.model_management
    if not (cards := list_plan_cards(plan)):
        return None
    room = min(usable_bytes(card, working, contexts) for card in cards)
    room -= count_communicator_bytes(replace(plan, weights=WHOLE, weight_blocks=0))
    if management.vram_state in (management.VRAMState.HIGH_VRAM, management.VRAMState.SHARED):
        room = sys.maxsize
    if management.vram_state == management.VRAMState.NO_VRAM:
        room = 0
    in_ram = int(OF_HOST * available_ram_bytes() // GB * GB)
    return WeightRoom(max(0, room), in_ram, count_weights_communicator(plan))


def room_with_enough_ram(plan: ParallelPlan, working: float = 0) -> WeightRoom | None:
    """Returns the same if RAM is no limit, with assumed contexts. So it is the same at each prompt."""
    room = room_for_weights(plan, working, 2 * CONTEXT)
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
