"""What a rank holds between requests: the model, the VAE, and the conditions sent so far."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh_layout import same_weights
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.placement import WeightPlacement

from ..wire.protocol import Header
from ..wire.tensors import Tensors
from .host_model import HostModel
from .memory.device_memory import memory_use, own_bytes
from .memory.release import release_memory
from .sources import Source

if TYPE_CHECKING:
    from ..comfyui.source import VaeSource
    from .vae.rank_vae import RankVae


CPU = torch.device("cpu")


class RankState:
    """The thread that runs requests changes it. Another thread reads its status meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.transformer: DiffusersModel | HostModel | None = None
        self.source: Source | None = None  # where the transformer was loaded from
        self.plan: ParallelPlan | None = None  # as requested
        self.placement = WeightPlacement()
        self.before = 0  # this process's own memory when the weights began to come
        self.loaded: dict[str, Any] = {}  # the transformer, for the status
        self.conditions: Tensors = {}
        self.vae: tuple[VaeSource, RankVae] | None = None  # and where it was loaded from

    def keep_model(self, transformer: DiffusersModel | HostModel, source: Source, plan: ParallelPlan) -> None:
        self.transformer, self.source, self.plan = transformer, source, plan
        self.loaded = {
            "model": source.model_class,
            "files": list(source.files),
            "plan": plan.to_json(),
            "weights": {},
        }
        logging.info("loaded %s (%s) under %s", source.model_class, source.dtype, plan)

    def model_of(self, source: Source, plan: ParallelPlan) -> DiffusersModel | HostModel | None:
        """Returns the model if its weights are from this source and are those that this rank needs under the plan.

        All ranks of the plan get the same answer. If the plan has fewer ranks than before, weights of which other ranks
        keep a shard are not this rank's.
        """
        model = self.transformer
        if model is None or self.source != source:
            return None
        before = model.mesh.plan
        if before.world_size > plan.world_size and model.fetched.store:
            return None
        return model if same_weights(before, plan) else None

    def drop_model(self) -> None:
        """Frees the model's memory."""
        self.transformer, self.source, self.plan, self.loaded = None, None, None, {}
        self.placement.forget()
        self.conditions.clear()
        release_memory(self.device)

    def drop_all(self) -> None:
        """Releases model, VAE and conditions, and frees their memory."""
        self.vae = None
        self.drop_model()

    def take_conditions(self, header: Header, tensors: Tensors, *names: str) -> list[Tensors]:
        """Keeps the conditions in the request, and returns those that the header names by key. Raises RequestError. One
        of ComfyUI's own models takes them as they are, so they are on its device from here on."""
        for key in header["drop"]:
            self.conditions.pop(key, None)
        device = self.device if isinstance(self.transformer, HostModel) else CPU
        self.conditions.update(
            {key: tensor.to(device, copy=True) for key, tensor in tensors.items()}
        )  # they outlive the frame
        unknown = [key for kind in names for key in header[kind].values() if key not in self.conditions]
        if unknown:
            raise RequestError(f"The worker group does not hold {', '.join(unknown):.100}.", "Load the model again.")
        return [{name: self.conditions[key] for name, key in header[kind].items()} for kind in names]

    def memory(self) -> dict[str, int]:
        """Returns what this process holds, see `memory_use`, and the model's weights on this rank and on its device, in
        bytes. read: while weights come, the percentage that has come, judged by memory."""
        model, bringing = self.transformer, self.placement.bringing
        weights, resident = (model.weight_bytes, model.resident_bytes) if model else (0, 0)
        told = {**memory_use(self.device), "weights": weights, "resident_weights": resident}
        if bringing:
            told["read"] = min(100, max(0, 100 * (own_bytes(self.device) - self.before) // bringing))
        return told

    @property
    def is_parked(self) -> bool:
        """Whether this rank holds something, and all of it is in host memory."""
        transformer, vae = self.transformer, self.vae
        held = [part.parking for part in (transformer, vae and vae[1].parallel) if part]
        return bool(held) and all(parking.is_parked for parking in held)
