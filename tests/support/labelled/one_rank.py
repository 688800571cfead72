"""A step of one rank, from ComfyUI's node to rank 0 and back, in one process: what it does that stock does not do.

The product's own code does all of it: the stand-in for ComfyUI's module, and then a `WholeWay`. What a rank's process
would do runs where ComfyUI's would wait for it, so that both can be told apart.
"""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from parallel_backend.groups.mesh import build_mesh
from parallel_backend.parallel_model import ParallelModel, moved
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host import CASES
from tests.support.host.mounted import packages
from tests.support.ranks.host_ranks import calls_of
from worker.comfyui.source import HostSource
from worker.host.runs import RunPlan

from .tensors import off_gpu
from .whole_way import WholeWay

STEPS = 20
NODES = "pack.nodes.model"
WAITING = ("remote_module", "planned_module")  # modules that call ComfyUI's check for an interrupt


@dataclass(frozen=True)
class Size:
    """A tiny model of a class, with patches so large that big latents are few tokens. row: of the equality table.
    config: in place of a part of the row's. latents: their shape."""

    row: str
    config: dict[str, Any]
    latents: tuple[int, ...]

    def build(self) -> torch.nn.Module:
        case = CASES[self.row]
        return replace(case, config={**case.config, **self.config}).build()

    def inputs(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Latents, and arguments of one image."""
        ((_, kwargs),) = calls_of(CASES[self.row], 1)
        latents = torch.randn(self.latents, generator=torch.Generator().manual_seed(1))
        return latents, {name: value[:1] for name, value in kwargs.items() if isinstance(value, torch.Tensor)}


UNET = {
    "num_res_blocks": [1, 1, 1], "channel_mult": [1, 1, 1], "transformer_depth": [0, 0, 1],
    "transformer_depth_output": [0, 0, 0, 0, 1, 1], "transformer_depth_middle": 1,
}  # fmt: skip
SIZES = {
    "Flux, 256×256": Size("flux-dev", {}, (1, 16, 32, 32)),
    "Flux, 1024×1024": Size("flux-dev", {"patch_size": 8}, (1, 16, 128, 128)),
    "SDXL, 1024×1024": Size("sdxl-odd", UNET, (1, 4, 128, 128)),
    "Wan, 480×832, 81 frames": Size("wan-t2v", {"patch_size": (1, 8, 8)}, (1, 16, 21, 60, 104)),
    "Wan, 720×1280, 81 frames": Size("wan-t2v", {"patch_size": (1, 10, 10)}, (1, 16, 21, 90, 160)),
}


class OneRank:
    """Makes steps of a model, by stock and by one rank. ComfyUI's folder is in COMFYUI_PATH.

    rank: a context in which a rank's process would work.
    """

    def __init__(self, way: WholeWay, size: Size, device: torch.device, rank: Callable[[], Any]) -> None:
        self.way, self.device, self.rank = way, device, rank
        with off_gpu():
            model = size.build()
            latents, kwargs = size.inputs()
            with torch.device("meta"):
                stand_in = size.build().to("meta")
        self.stock = size.build().to(device)
        self.latents, self.kwargs = moved((latents, kwargs), device)
        self.sigmas = torch.linspace(1, 0, STEPS + 1).to(device)
        mesh = build_mesh(ParallelPlan(), device, link_groups=True, timeline=way.timeline)
        self.model = model.to(device)
        way.hold(ParallelModel(self.model, mesh, torch.float32))
        self.remote = self.make_remote(stand_in, size)
        self.way.session.known.model = (self.remote.source, ParallelPlan().to_json())

    def make_remote(self, module: torch.nn.Module, size: Size) -> Any:
        sys.path.insert(0, os.environ["COMFYUI_PATH"])  # whose `nodes` is another than this repository's
        for name, package in packages().items():
            sys.modules.setdefault(name, package)
        remote, costs, sizes, plan = (
            importlib.import_module(f"pack.{name}")
            for name in (
                "nodes.model.remote_module",
                "nodes.costs.plans",
                "parallel_backend.weights.sizes",
                "parallel_backend.plan",
            )
        )
        os.environ["PARALLELDIT_MEASURED"] = str(self.way.group.folder)
        found = costs.ModelCosts(module, sizes.sizes_of_model(module), torch.float32, lambda _shape: 0.0, {})
        source = HostSource(str(self.way.group.folder), (), "", type(module).__name__, "float32", "")
        return remote.RemoteModule(self.way.group, source, plan.ParallelPlan(), found)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """A sampling of which the following steps are."""
        group, modules = self.way.group, [importlib.import_module(f"{NODES}.{name}") for name in WAITING]
        check = self.way.once_sent(self.serve)
        self.remote.begin_sampling()
        with group.runs.run(None, "model", RunPlan("one rank", {})), torch.inference_mode():
            patches = [patch.object(module, "check_interrupt", check) for module in modules]
            for each in patches:
                each.start()
            try:
                yield
            finally:
                for each in patches:
                    each.stop()

    def serve(self) -> None:
        with self.rank():
            self.way.answer_one()

    def given(self, step: int) -> tuple[Sequence[torch.Tensor], dict[str, Any]]:
        """A step's arguments, new as ComfyUI makes them."""
        sigma = self.sigmas[step % STEPS].expand(1).clone()
        options = {
            "sample_sigmas": self.sigmas, "sigmas": sigma, "cond_or_uncond": [0], "uuids": [uuid.uuid4()],
            "wrappers": {}, "callbacks": {}, "patches": {}, "prefetch_dynamic_vbars": False,
        }  # fmt: skip
        kwargs = {name: value.clone() for name, value in self.kwargs.items()}
        return (self.latents.clone(), sigma.clone()), {**kwargs, "transformer_options": options}

    def of_stock(self, given: Any) -> torch.Tensor:
        args, kwargs = given
        return self.stock(*args, **kwargs)

    def of_ranks(self, given: Any) -> torch.Tensor:
        args, kwargs = given
        return self.remote.module(*args, **kwargs)
