"""A worker group without a ComfyUI: what tests of the ranks alone share. The ranks run ComfyUI's classes as ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.passes import Pass
from tests.support.cases.families import FAMILIES, Family
from worker.comfyui.call_keys import NEW_EACH_CALL
from worker.comfyui.source import HostSource
from worker.host.client import WorkerGroup
from worker.settings import Settings
from worker.wire.operations import CALL, FORWARD, SAMPLE
from worker.wire.protocol import Header
from worker.wire.sampler_call import SamplerCall
from worker.wire.tensors import Tensors
from worker.wire.tree import pack

SHORT = SamplerCall(scheduler="DDIM", steps=3)
# One for all plans, as ranks that imported ComfyUI with other arguments would have to restart.
ARGUMENTS = ("--cpu", "--use-pytorch-cross-attention")
DIT = FAMILIES["dit"]
# In proportions that ComfyUI detects.
FLUX = replace(
    FAMILIES["flux-dev"],
    config={
        **FAMILIES["flux-dev"].config,
        **{"in_channels": 64, "num_attention_heads": 2, "attention_head_dim": 128, "axes_dims_rope": (16, 56, 56)},
    },
    channels=16,
)
# By diffusers' class: ComfyUI's, its names of the conditions, and the factor from a scheduler's timestep to its own.
HOST_CLASSES = {
    "DiTTransformer2DModel": ("DiT", {"class_labels": "class_labels"}, 1.0),
    "FluxTransformer2DModel": (
        "Flux",
        {"encoder_hidden_states": "context", "pooled_projections": "y", "guidance": "guidance"},
        0.001,
    ),
}


def go_on() -> None:
    """The check of who waits as long as it takes."""


def source_of(family: Family, folder: Path) -> HostSource:
    """The family's tiny model, saved in the folder, for ComfyUI's class: all of it of a DiT, else the file with the
    weights."""
    family.save(folder)
    host_class, _, _ = HOST_CLASSES[family.model_class]
    source = HostSource(os.environ["COMFYUI_PATH"], ARGUMENTS, str(folder), host_class, "float32", "")
    if family.model_class == "DiTTransformer2DModel":
        return source
    return replace(source, file=str(folder / "diffusion_pytorch_model.safetensors"))


def kwargs_of(family: Family, conditions: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A family's conditions as ComfyUI's class takes them."""
    _, names, _ = HOST_CLASSES[family.model_class]
    return {"transformer_options": {}, **{names[name]: value for name, value in conditions.items()}}


def pass_of(family: Family, conditions: Mapping[str, torch.Tensor], branch: int = 0) -> dict[str, Any]:
    return Pass((branch,), kwargs_of(family, conditions))._asdict()


def call_request(family: Family) -> tuple[Header, Tensors]:
    """A request for a forward of one row, and its tensors."""
    latents, timestep, conditions = family.inputs(1, 8, 8)
    tensors: Tensors = {}
    packed = pack({"args": (latents, timestep), "kwargs": kwargs_of(family, conditions)}, "forward.0", tensors)
    keys = {path: path for path in tensors if not NEW_EACH_CALL.match(path)}
    return CALL.header(method=FORWARD, calls=[packed], conditions=keys, drop=[]), tensors


def sample_request(family: Family, steps: int) -> tuple[Header, Tensors]:
    """A request for a sampling of one row, and its tensors."""
    noise, _, conditions = family.inputs(1, 8, 8)
    tensors: Tensors = {}
    given = pack(pass_of(family, conditions), "passes.0", tensors)
    call = asdict(replace(SHORT, steps=steps))
    header = SAMPLE.header(call=call, passes=[given], conditions={path: path for path in tensors}, drop=[])
    return header, {"noise": noise, **tensors}


class Layer(NamedTuple):
    """A weight of ComfyUI's class, by its name there."""

    name: str
    shape: tuple[int, ...]


FLUX_LAYER = Layer("double_blocks.0.img_attn.qkv.weight", (768, 256))


@dataclass(frozen=True)
class DirectGroup:
    """A running group, and a tiny model of a family for it."""

    group: WorkerGroup
    family: Family
    source: HostSource
    plan: ParallelPlan

    def load(self, check: Callable[[], None] = go_on) -> None:
        self.group.load(self.source.to_json(), self.plan.to_json(), self.plan.world_size, check)

    def in_memory(self) -> DirectGroup:
        """The same model, whose weights are cast: so they are not in the file's pages, which stay when a rank parks."""
        return replace(self, source=replace(self.source, dtype="bfloat16", cast="float32"))

    def park(self) -> None:
        """Parks the ranks as on GPUs: on the CPU, nothing would be won by it."""
        with pytest.MonkeyPatch.context() as patch:
            take_for_gpus(patch, self.group)
            self.group.park()
        assert self.group.status()["state"] == "parked"

    def under(self, **plan: Any) -> DirectGroup:
        """The same group and model, loaded under another plan."""
        changed = replace(self, plan=ParallelPlan(**plan))
        changed.load()
        return changed

    def forward(self, *sizes: int, rows: int = 2) -> torch.Tensor:
        return self.call(*self.family.inputs(rows, *sizes))

    def call(
        self,
        latents: torch.Tensor,
        timestep: torch.Tensor,
        conditions: Mapping[str, torch.Tensor],
        check: Callable[[], None] = go_on,
        **kwargs: Any,
    ) -> torch.Tensor:
        """kwargs: further arguments of ComfyUI's class."""
        call = (latents, timestep), {**kwargs_of(self.family, conditions), **kwargs}
        ((prediction,),) = self.group.call([call], check)
        return prediction

    def patch(self, layer: Layer, scale: float) -> None:
        """Adds random numbers times the scale to a weight; without a scale, the weights are those of the file."""
        name, shape = f"diffusion_model.{layer.name}", layer.shape

        def build() -> tuple[dict, dict[str, torch.Tensor]]:
            patches, tensors = {}, {}
            if scale:
                difference = torch.randn(shape, generator=torch.Generator().manual_seed(1))
                patches[name] = [[scale, "", pack((difference,), name, tensors), 1.0, None, False]]
            return {"patches": patches, "files": []}, tensors

        self.group.patch(f"{name} {scale}" if scale else "", build, go_on)

    def sample(self, *sizes: int, call: SamplerCall = SHORT, check: Callable[[], None] = go_on) -> torch.Tensor:
        """A whole sampler call of a batch of two."""
        noise, _, conditions = self.family.inputs(2, *sizes)
        call = replace(call, timestep_scale=HOST_CLASSES[self.family.model_class][2])
        return self.group.sample(call, {"noise": noise}, [pass_of(self.family, conditions)], check, lambda *_: check())

    def pids(self) -> list[int]:
        return self.group.status()["pids"]


def direct_on(group: WorkerGroup, folder: Path, family: Family, **degrees: int) -> DirectGroup:
    """The group with the family's tiny model, which is saved in the folder, under this plan."""
    direct = DirectGroup(group, family, source_of(family, folder), ParallelPlan(**degrees))
    direct.load()
    return direct


@contextmanager
def direct_group(
    folder: Path, family: Family, settings: Settings | None = None, **degrees: int
) -> Iterator[DirectGroup]:
    """A group of its own with the family's tiny model under this plan; ask for `own_ranks`."""
    group = WorkerGroup("cpu", folder / "logs", settings)
    try:
        yield direct_on(group, folder / "model", family, **degrees)
    finally:
        group.stop()


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def take_for_gpus(patch: pytest.MonkeyPatch, group: WorkerGroup) -> None:
    """Lets the group take its ranks' devices for GPUs, on which parking is worth it."""
    patch.setattr(group, "device", "cuda")
