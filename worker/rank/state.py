"""What a rank holds between requests: the model, the VAE, and the conditions sent so far."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from parallel_backend.device import is_accelerator, outside_bytes
from parallel_backend.errors import RequestError, format_bytes
from parallel_backend.groups.communicators import count_weights_communicator
from parallel_backend.groups.mesh_layout import same_weights
from parallel_backend.plan import SHARED, ParallelPlan
from parallel_backend.weights.fitting import Links
from parallel_backend.weights.placement import AllRanks, count_lacking

from ..comfyui.call_keys import take_new
from ..wire.operations import BESIDE, FORGOTTEN
from ..wire.protocol import Header
from ..wire.tensors import Tensors
from .memory.device_memory import memory_use, own_bytes, process_ram_bytes, release_memory
from .memory.sensors import find_sensors
from .model.host_model import HostModel

if TYPE_CHECKING:
    from parallel_backend.vae.parallel import ParallelVAE

    from ..comfyui.source import HostSource, VaeSource

FIGURES_SECONDS = 0.25  # the least time between figures while a request runs; a beat tells them as often


class RankState:
    """The thread that runs requests changes it. Another thread reads its status meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.outside = outside_bytes(device)  # before communicators and weights take theirs
        self.model: HostModel | None = None  # in use
        self.links: dict[tuple[int, int], Links] = {}  # see `AllRanks`
        self.aside: list[HostModel] = []  # the earliest used first; their plans have as many ranks as the last one
        # By the link to each, this rank's copies of files that are on another machine, see `copied_file.py`.
        self.copies: weakref.WeakValueDictionary[Path, Any] = weakref.WeakValueDictionary()
        self.crowded: set[int] = set()  # the numbers of ranks that lacked memory while a model was set aside
        self.before = 0  # this process's own memory when the load of the weights began
        self.loaded: dict[str, Any] = {}  # the model, for the status
        self.conditions: Tensors = {}
        self.vae: ParallelVAE | None = None  # one of ComfyUI's own
        self.vae_source: VaeSource | None = None  # where it was loaded from
        self.read_sensors = find_sensors(device)
        self.publish()

    def reply(self) -> Header:
        """Returns what each reply says: whether there is a model in use, the key of the changes to its weights, and the
        sampling whose objects it has."""
        model = self.model
        return {
            "has_model": model is not None,
            "patched": model.patched if model else "",
            "sampling": model.decoder.sampling if model else "",
        }

    def keep_model(self, model: HostModel) -> None:
        source, plan, self.model = model.source, model.mesh.plan, model
        self.loaded = {
            "model": source.model_class,
            "files": list(source.files),
            "plan": plan.to_json(),
            "weights": {},
        }
        logging.info("loaded %s (%s) under %s", source.model_class, source.dtype, plan)

    def choose_model(self, source: HostSource, plan: ParallelPlan) -> None:
        """Sets the model aside if another one is asked for, and takes up the one that is, if it was set aside.

        What is decided here is the same on all ranks of the plan. A model of a plan with another number of ranks is
        released, because some of these ranks would lack their part.
        """
        self.release([each for each in self.aside if not can_stay(each, source, plan)])
        model = self.model
        if model and model.source == source:
            return
        if model and can_stay(model, source, plan):
            # Parked weights are already in RAM. On the CPU, weights are pages of the files, which are soon read again.
            is_there = is_accelerator(self.device) and not model.parking.is_parked
            if is_there and plan.world_size not in self.crowded:
                model.hide()
                self.aside.append(model)
                self.forget_model()
        for found in [each for each in self.aside if each.source == source]:
            self.aside.remove(found)
            self.model = found

    def release(self, models: Sequence[HostModel]) -> list[str]:
        """Frees the memory of models that were set aside. Returns their names."""
        names = [each.source.name for each in models]
        self.aside[:] = [each for each in self.aside if each not in models]
        del models  # else they live until this returns
        if names:
            logging.info("released %s", ", ".join(names))
            release_memory(self.device)
        return names

    def make_way(self, ranks: AllRanks, model: HostModel, working: int, networks: int = 0) -> None:
        """Releases models that were set aside, the earliest used first, until this one fits beside the others. The
        status says which ones stay, which do not, and why. All ranks of the plan call this together, and do the same.

        working: the bytes that a forward needs beside the weights. networks: the bytes of networks to come."""
        if not self.aside:
            return
        model.working_bytes = max(model.working_bytes, working)
        gone, lacked, plan, name = [], 0, model.mesh.plan, model.source.name
        savings = sum(map(count_savings, (model, *self.aside))) - count_weights_communicator(plan)
        while self.aside and (lacking := count_lacking(ranks, model, networks)):
            gone, lacked = [*gone, *self.release(self.aside[:1])], lacked or lacking
        found = []
        if self.aside:
            said = f"Beside {name}, the devices keep {', '.join(each.source.name for each in self.aside)}."
            found.append(said)
        if gone:
            said = f"The devices released {', '.join(gone)}, because beside it {name} lacked {format_bytes(lacked)}."
            found.append(said)
            if savings >= lacked:
                said = "With weights=shared, all of them fit."
                found.append(said)
        self.loaded = {**self.loaded, BESIDE: " ".join(found), "aside": [each.source.file for each in self.aside]}

    def find_reusable_model(self, source: HostSource, plan: ParallelPlan) -> HostModel | None:
        """Returns the model if its weights are from this source and are all that this rank needs under the plan.

        All ranks of the plan get the same answer. If the plan has fewer ranks than before, sharded weights do not
        suffice, because other ranks keep a part.
        """
        model = self.model
        if model is None or model.source != source:
            return None
        before = model.mesh.plan
        if before.world_size > plan.world_size and model.fetched.store:
            return None
        return model if same_weights(before, plan) else None

    def forget_steps(self) -> None:
        """Frees what PipeFusion keeps from step to step. A sampling that goes on begins anew, with a whole step."""
        if (model := self.model) and model.parallel.pipeline.kinds:
            model.parallel.pipeline.forget(FORGOTTEN)

    def drop_model(self) -> None:
        """Frees the model's memory."""
        self.forget_model()
        self.conditions.clear()
        release_memory(self.device)

    def forget_model(self) -> None:
        self.model, self.loaded = None, {}

    def drop_all(self) -> None:
        """Releases model, VAE and conditions, and frees their memory."""
        self.vae = None
        self.aside.clear()
        self.drop_model()

    def take_conditions(self, header: Header, tensors: Tensors) -> Tensors:
        """Keeps the conditions in the request, on the device. Returns those that the header names by key, and what is
        new in each call. Raises RequestError for a key that is not known."""
        fresh = take_new(tensors)
        for key in header["drop"]:
            self.conditions.pop(key, None)
        copies = {key: tensor.to(self.device, copy=True, non_blocking=True) for key, tensor in tensors.items()}
        self.conditions.update(copies)
        unknown = [key for key in header["conditions"].values() if key not in self.conditions]
        if unknown:
            raise RequestError(f"The worker group does not hold {', '.join(unknown):.100}.", "Load the model again.")
        return {**fresh, **{name: self.conditions[key] for name, key in header["conditions"].items()}}

    def publish(self, seconds: float = 0.0) -> None:
        """Measures this rank's memory for `memory`, unless it has been measured in the last so many seconds.

        Only the thread that runs requests calls this. Another would wait in CUDA's allocator, while it holds the GIL,
        until this thread has its memory.
        """
        if seconds and time.monotonic() - self.published < seconds:
            return
        models = [each for each in (self.model, *self.aside) if each]
        weights, resident = (sum(each.weight_bytes for each in models), sum(each.resident_bytes for each in models))
        figures = {**memory_use(self.device), "weights": weights, "resident_weights": resident}
        if self.model and (bringing := self.model.bringing):
            figures["read"] = min(100, max(0, 100 * (own_bytes(self.device) - self.before) // bringing))
        self.figures, self.published = figures, time.monotonic()

    def memory(self) -> dict[str, int]:
        """Returns this process's RAM in bytes, the published figures, and what `find_sensors` tells. Any thread may
        call this.

        The figures: see `memory_use`, and the bytes of the models' weights on this rank and on its device. read: while
        weights are read, the percentage that has been read, judged by memory.
        """
        return {"resident": process_ram_bytes(), **self.figures, **self.read_sensors()}

    @property
    def is_parked(self) -> bool:
        """Whether this rank has a model or a VAE, and all of it is in host memory."""
        parkings = [part.parking for part in (self.model, self.vae) if part]
        return bool(parkings) and all(parking.is_parked for parking in parkings)


def can_stay(model: HostModel, source: HostSource, plan: ParallelPlan) -> bool:
    """Whether a model may stay beside another one: all ranks have a part of both, and it is no other form of the same
    file."""
    is_other_form = model.source != source and model.source.file == source.file
    return model.mesh.plan.world_size == plan.world_size and not is_other_form


def count_savings(model: HostModel) -> int:
    """Returns the bytes of a device that weights=shared saves, in comparison with where the weights are or, of a new
    model, will be."""
    kept, count = model.placed or model.mesh.plan, model.sizes.count_resident_bytes
    return max(count(kept)) - max(count(replace(kept, weights=SHARED, weight_blocks=0)))
