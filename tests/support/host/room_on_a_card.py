"""`host.room_on_a_card COMFYUI MODEL`:
ComfyUI's own accounting, with our MODEL and others on a 16 GB card.

The card, and the worker group on it, are pretended; what frees them and when is ComfyUI's. Returns by what was
done, how the group was asked to park (with unload or without), and the GB that each model is then said to hold; and of
prompts whose text encoder and model do not fit together, what both hold from step to step, and the least that was free.
"""

from __future__ import annotations

import gc
import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from parallel_backend.device import Card
from tests.support.host.mounted import mount

CARD = torch.device("meta")
GIGABYTE = 1 << 30
OURS, ENCODER, TOTAL = 10 * GIGABYTE, 12 * GIGABYTE, 16 * GIGABYTE


class PretendedGroup:
    """A WorkerGroup as far as the nodes see it between requests."""

    device, is_on_comfyuis_card = "cuda", True

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.loaded: tuple | None = None
        self.resident: object | None = None
        self.kept, self.weights = 0, OURS
        self.told: dict[str, Any] = {}
        self.others: dict[str, Any] = {}
        self.asked: list[bool] = []
        self.asks = 0  # of the ranks, for their status

    def start_ahead(self, ranks: int, source: dict[str, Any]) -> None:
        pass

    def used_device_bytes(self, status: dict[str, Any] | None = None) -> int:
        status or self.status()
        return self.kept

    def status(self) -> dict[str, Any]:
        self.asks += 1
        return {"weights": self.told, **self.others}

    def trim(self) -> int:
        freed, self.kept = self.kept - self.weights, self.weights
        return freed

    def park(self, unload: bool = False) -> None:
        self.asked.append(unload)
        self.kept = 0
        if unload:
            self.loaded = None


class Scene:
    """ComfyUI's memory management, a loaded model of ours, and another model of 8 GB."""

    def __init__(self, comfyui: str, model: str) -> None:
        mount(comfyui)
        self.management = importlib.import_module("comfy.model_management")
        self.helpers = importlib.import_module("comfy.sampler_helpers")
        self.patches = importlib.import_module("comfy.model_patcher")
        self.management.get_torch_device = lambda: CARD
        self.management.get_free_memory = self.free
        self.loader = importlib.import_module("pack.nodes.parallelize")
        self.files, self.path = importlib.import_module("pack.nodes.model.host_file"), Path(model)
        self.plan = importlib.import_module("pack.nodes.parallel_plan")
        self.sizes = importlib.import_module("pack.parallel_backend.weights.sizes")
        room = importlib.import_module("pack.nodes.workers.room")
        room.available_ram_bytes = self.free
        room.list_plan_cards, room.list_rank_contexts = lambda _plan: [Card(0, "", TOTAL)], lambda: {"0": 0}
        self.settings = importlib.import_module("pack.worker.settings").Settings()
        self.begin()

    def begin(self, **settings: str) -> None:
        """Our model is on the card, and has sampled; nothing else is."""
        self.ours = self.other = None
        self.group = PretendedGroup(replace(self.settings, **settings))
        gc.collect()
        self.management.current_loaded_models.clear()
        self.loader.worker_group = lambda _number: self.group
        self.ours = self.load("fp32")
        self.other = self.patches.ModelPatcher(torch.nn.Identity(), CARD, torch.device("cpu"), size=8 * GIGABYTE)
        self.sample(self.ours)

    def begin_beside(self, gigabytes: int, ready: int = 0) -> None:
        """Another model of that size is loaded after ours. ready: GB that the ranks keep beside the weights."""
        self.begin()
        self.group.kept += ready * GIGABYTE
        self.other.size = gigabytes * GIGABYTE
        self.management.load_models_gpu([self.other])

    def load(self, dtype: str) -> Any:
        file = self.files.describe_host_file(self.path, *self.files.WEIGHT_DTYPES[dtype])
        patcher = self.loader.load_described(file, "tiny", None, 1)
        patcher.remote.planned.costs.sizes = self.sizes.WeightSizes(OURS)
        patcher.model.to = lambda _device: None  # the little that is in this process cannot go to a pretended card
        return patcher

    def sample(self, patcher: Any) -> None:
        self.management.load_models_gpu([patcher])
        patcher.pre_run()
        remote = patcher.remote.planned
        self.group.loaded = (remote.source.to_json(), remote.plan.to_json())
        self.group.kept = self.group.weights = remote.weight_bytes(self.group.status())
        patcher.cleanup()

    def prepare(self, patcher: Any, gigabytes: float) -> None:
        """What ComfyUI does before it samples: here latents for which rank 0 needs so much beside the weights."""
        shape = [1, 4, 8, 8]
        of_one = type(patcher.model).memory_required(patcher.model, shape)  # its row; the other is rank 1's
        shape[-1] *= round(gigabytes * GIGABYTE / of_one)
        options = self.patches.create_model_options_clone(patcher.model_options)
        self.helpers.prepare_model_patcher(patcher, {}, options)
        self.helpers.prepare_sampling(patcher, shape, {}, options)
        fits = patcher.model.memory_required([2, *shape[1:]]) == 0
        assert fits, "cond and uncond go in one batch, which the ranks share out"

    def prompts(self, sizes: Any) -> dict[str, Any]:
        """Two prompts after one another: the text is encoded, by a model of 12 GB, and the latents are sampled with
        ours, of these sizes, which need 1 GB beside."""
        self.begin()
        self.management.unload_all_models()
        self.group.asked.clear()
        self.ours.remote.planned.costs.sizes, self.other.size = sizes, ENCODER
        clip = importlib.import_module("comfy.sd").CLIP(no_init=True)
        clip.patcher, clip.cond_stage_model = self.other, self.other.model
        held: list[list[float]] = []
        for _ in range(2):
            clip.load_model()
            held.append(self.held())
            self.prepare(self.ours, 1)
            held.append(self.held())
            self.sample(self.ours)
            held.append(self.held())
        return {"held": held, "asked": list(self.group.asked), "whole": sizes.total / GIGABYTE}

    def held(self) -> list[float]:
        """GB of the card: of the encoder, of the ranks, and free."""
        found = (self.other.loaded_size(), self.group.kept, self.free())
        return [round(each / GIGABYTE, 1) for each in found]

    def free(self, _device: Any = None, torch_free_too: bool = False) -> Any:
        free = TOTAL - self.group.kept - (self.other.loaded_size() if self.other else 0)
        return (free, 0) if torch_free_too else free

    def outcome(self) -> dict[str, Any]:
        models = {"ours": self.ours, "other": self.other}
        held = {name: patcher.loaded_size() / GIGABYTE for name, patcher in models.items() if patcher}
        return {"asked": list(self.group.asked), **held}


def main(comfyui: str, model: str) -> dict[str, Any]:
    scene = Scene(comfyui, model)
    management, found = scene.management, {}
    found["sampled"] = scene.outcome()
    management.load_models_gpu([scene.other])
    found["another model needs the room"] = scene.outcome()
    scene.sample(scene.ours)
    found["sampled again"] = scene.outcome()
    management.unload_all_models()
    found["freed"] = scene.outcome()

    scene.begin_beside(2)
    scene.prepare(scene.ours, 2)
    found["a sampling has room beside it"] = scene.outcome()
    scene.prepare(scene.ours, 5)
    found["a sampling needs the room of another"] = scene.outcome()

    scene.begin_beside(2)
    network = scene.patches.ModelPatcher(torch.nn.Identity(), CARD, torch.device("cpu"), size=3 * GIGABYTE)
    patched = scene.ours.clone()
    patched.set_model_double_block_patch(SimpleNamespace(models=lambda: [network]))
    scene.prepare(patched, 2)
    found["a sampling has a network in the ranks"] = scene.outcome()

    scene.begin_beside(1, ready=3)
    scene.prepare(scene.ours, 3)
    found["the ranks keep ready what a sampling needs"] = scene.outcome()

    scene.begin_beside(4, ready=3)
    found["another model has room in what the ranks only keep ready"] = scene.outcome()

    scene.begin()
    scene.group.loaded = ({"another": "model"}, {})
    management.load_models_gpu([scene.other])
    found["the group holds another"] = scene.outcome()

    for held, aside in ((3, ()), (8, ()), (3, (scene.ours.remote.planned.source.file,))):
        scene.begin_beside(2)
        scene.group.loaded, scene.group.kept = ({"another": "model"}, {}), held * GIGABYTE
        scene.group.others = {"memory": [{"resident_weights": held * GIGABYTE}], "aside": aside}
        scene.prepare(scene.load("bf16"), 1)
        found[f"{held} GB of another{', ours among them' * len(aside)}"] = scene.outcome()

    asks = []
    for loaded in (scene.group.loaded, ({"another": "model"}, {})):
        scene.group.loaded, scene.group.asks = loaded, 0
        scene.ours.model_size()
        asks.append(scene.group.asks)
    found["asks"] = asks

    scene.begin()
    scene.ours = None
    gc.collect()
    management.load_models_gpu([scene.other])
    found["the node is gone"] = scene.outcome()

    whole = scene.sizes.WeightSizes(GIGABYTE, (GIGABYTE,) * 9)
    scene.begin()
    remote = scene.ours.remote.planned
    remote.decided.choice = remote.decided.choice._replace(plan=replace(remote.plan, weights="host"))
    remote.costs.sizes = whole
    scene.sample(scene.ours)
    management.load_models_gpu([scene.other])
    scene.prepare(scene.ours, 1)
    found["the model's weights wait in RAM"] = scene.outcome()
    larger = replace(whole, blocks=(GIGABYTE,) * 24)
    found["prompts"] = {"fits": scene.prompts(whole), "does not": scene.prompts(larger)}

    scene.begin()
    scene.ours.remote.planned.costs.sizes = larger
    scene.group.kept = 0
    found["parked"] = {}
    for told in ({"kind": "whole"}, {"kind": "host", "blocks": 20}, {}):
        scene.group.told = told
        found["parked"][json.dumps(told)] = scene.ours.model_size() / GIGABYTE

    for choice in ("unload", "keep"):
        scene.begin(on_free=choice)
        management.unload_all_models()
        found[f"freed, to {choice}"] = scene.outcome()
    return found
