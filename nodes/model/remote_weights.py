"""Stands in for a model whose weights are in the worker group: loads and changes them there, and reports their
memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import comfy.model_management

from ...parallel_backend.costs.memory import rank_bytes
from ...parallel_backend.plan import ParallelPlan
from ...parallel_backend.weights.sizes import WeightSizes
from ...worker.host.client import WorkerGroup
from ...worker.wire.protocol import Header
from ..plan_words import Remark, remarks_to_json
from ..workers.room import expect_weights, room_for_weights
from .sampling import show_on_node

check_interrupt = comfy.model_management.throw_exception_if_processing_interrupted
# ComfyUI's list by name: (strength, what to add, strength of the weight itself, (dim, start, length), function).
Patches = Mapping[Any, list[tuple]]


class StandInPatcher(Protocol):
    """ComfyUI's patcher of the model, see `remote_patcher.py`."""

    object_patches_backup: dict[str, Any]

    def reasons(self) -> list[str]: ...

    def forget_load(self) -> None: ...

    def eject_clones(self) -> None: ...

    def unload_here(self) -> None: ...

    def model_patches_models(self) -> list[Any]: ...


class RemoteWeights:
    """source: of the model, as JSON.
    sizes: of its weights.
    note: for the group's status, if the plan is not the requested one.
    name: of the model, as the user chose it.
    working: bytes in addition to the weights on a rank, for the last sampling that ComfyUI freed memory for."""

    def __init__(
        self,
        group: WorkerGroup,
        source: Header,
        plan: ParallelPlan,
        sizes: WeightSizes,
        note: tuple[Remark, ...],
        name: str,
    ) -> None:
        self.group = group
        self.source = source
        self.plan = plan
        self.sizes = sizes
        self.working = 0.0
        self.note = note
        self.name = name or source["model_class"]
        self.makes_room, self.networks = False, 0
        self.patched: tuple[str | None, Patches] = (None, {})  # the running patcher's key and patches

    def load(self) -> None:
        """Makes the worker group hold this model under this plan, with the LoRA of the running patcher."""
        plan = self.plan.to_json(), self.plan.world_size
        said = self.group.load(self.source, *plan, check_interrupt, remarks_to_json(self.note), self.name)
        if said:
            logging.info("[ParallelDiT] %s", said)
            show_on_node(said)
        self.adapt(*self.patched)

    def adapt(self, key: str | None, patches: Patches) -> None:
        """Makes the worker group apply these patches and no others."""
        raise NotImplementedError

    def stale_bytes(self, latents: Sequence[int]) -> int:
        """Returns the bytes that a rank keeps for later steps, for latents of this shape (B, C, …)."""
        raise NotImplementedError

    @property
    def weight_bytes(self) -> int:
        """The bytes of weights that rank 0 keeps on its accelerator, parked ones included.

        The ranks report them. Before that, they are predicted for a card on which ComfyUI has freed memory. It is 1
        if that is not ComfyUI's: with 0, ComfyUI would count the weights itself.
        """
        if not self.group.is_on_comfyuis_card:
            return 1
        plan = self.decided_plan() or expect_weights(self.plan, self.sizes, room_for_weights(self.plan, self.working))
        return max(1, self.sizes.count_kept_bytes(plan)[0])

    def decided_plan(self) -> ParallelPlan | None:
        """Returns the plan with the weights that the ranks reported."""
        reported = self.group.status().get("weights") if self.is_loaded else None
        if not reported:
            return None
        return replace(self.plan, weights=reported["kind"], weight_blocks=reported.get("blocks", 0))

    @property
    def is_loaded(self) -> bool:
        """Whether the worker group holds this model under this plan; parked counts."""
        return self.group.loaded == (self.source, self.plan.to_json())

    def loaded_bytes(self) -> int:
        """Returns the bytes that the worker group keeps on ComfyUI's device, if it holds this model."""
        return self.group.device_bytes() if self.is_loaded else 0

    def needed_bytes(self) -> int:
        """Returns the bytes that the worker group will keep on ComfyUI's device for this model, at least 1. If the
        group holds others, which will be released, it returns only the bytes beyond theirs."""
        kept, own = self.group.device_bytes(), self.weight_bytes
        if self.is_loaded:
            return max(own, kept)
        return own if self.will_join(own) else max(1, own - kept)

    def will_join(self, own: int) -> bool:
        """Whether the ranks will load this model, of so many bytes on rank 0, beside those that they hold."""
        status, room = self.group.status(), room_for_weights(self.plan, self.working)
        if room is None or "memory" not in status or self.source["file"] in status.get("aside", ()):
            return False
        held = status["memory"][0]["resident_weights"]
        return 0 < held <= room.device - own

    @contextlib.contextmanager
    def make_room(self, networks: int) -> Iterator[None]:
        """While entered, ComfyUI asks how much memory to free before a sampling. Otherwise it asks if rows fit into a
        batch. networks: the bytes of the networks that the ranks load for nodes."""
        self.makes_room, self.working, self.networks = True, 0.0, networks
        try:
            yield
        finally:
            self.makes_room = False

    def working_bytes(self, estimate: float, latents: Sequence[int]) -> float:
        """Returns the bytes that rank 0 will take of ComfyUI's device for a call with latents of this shape (B, C, …),
        beyond the weights and its cached memory.

        It is 0 if ComfyUI asks whether the rows fit into one batch, because the ranks share out the batch again.
        estimate: the bytes of the whole call.
        """
        if not self.makes_room or not self.group.is_on_comfyuis_card:
            return 0
        working = rank_bytes(estimate, latents[0], self.plan) + self.stale_bytes(latents) + self.networks
        self.working = max(self.working, working)
        ready = max(0, self.loaded_bytes() - self.weight_bytes)
        return max(0, working - ready)

    def trim(self) -> int:
        """Makes the worker group free its cached memory on its accelerators, if it holds this model. Returns how many
        bytes of ComfyUI's device that freed."""
        return self.group.trim() if self.is_loaded and self.group.settings.on_free != "keep" else 0

    def free(self) -> None:
        """Makes the worker group free its accelerators as the settings say, if it holds this model."""
        if self.is_loaded and self.group.settings.on_free != "keep":
            self.group.park(unload=self.group.settings.on_free == "unload")
