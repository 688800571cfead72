"""Prompts for the host's API queue, and what comes back: latents, refusals, the worker group's status."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from demo.host import ComfyHost, PromptError
from parallel_backend.plan import ParallelPlan
from tests.support.loaders import load

Link = list
Patch = Callable[["Graph", Link], Link]

# Of a host and its ranks: a model's file can say what ComfyUI is to detect in it, and ComfyUI looks for no garbage
# among its imports.
TINY_MODELS = {"PYTHONPATH": str(Path(__file__).parent / "site")}
STOCK = "runs as stock"  # in what ComfyUI logs of a model that the ranks do not run
NODE_PACK = "test_tensors"
NODE_PACK_SOURCE = '''"""Test-only: CONDITIONING from a file, a LATENT of any shape, a foreign MODEL; looks inside."""

import copy
import os
from types import SimpleNamespace

import comfy.ldm.flux.model
import comfy.ldm.modules.attention
import folder_paths
import torch
from comfy.nested_tensor import NestedTensor
from safetensors.torch import load_file


class Node:
    FUNCTION, CATEGORY = "run", "test"

    def __init_subclass__(cls, returns, **inputs):
        """inputs: their types by name."""
        cls.RETURN_TYPES = (returns,)
        required = {name: (kind, {}) for name, kind in inputs.items()}
        cls.INPUT_TYPES = staticmethod(lambda: {"required": required})


class LoadConditioning(Node, returns="CONDITIONING", name="STRING"):
    """Tensors "conditioning" and "pooled", and others by the names of options.

    Those of "list" options are in any order, those of "string" options are bytes. Those of "unclip" options are
    embeddings of images.
    """

    @classmethod
    def IS_CHANGED(cls, name):
        return os.stat(os.path.join(folder_paths.get_input_directory(), name)).st_mtime_ns

    def run(self, name):
        tensors = load_file(os.path.join(folder_paths.get_input_directory(), name))
        text = tensors.pop("conditioning")
        options = {"pooled_output": tensors.pop("pooled", None)}
        for name, value in tensors.items():
            *kind, name = name.split()
            if "image" in kind:
                value = SimpleNamespace(penultimate_hidden_states=value)
            elif "unclip" in kind:
                image = SimpleNamespace(image_embeds=value)
                value = [{"clip_vision_output": image, "strength": 1.0, "noise_augmentation": 0.1}]
            elif "list" in kind:
                value = [*options.get(name, []), value]
            elif "string" in kind:
                value = bytes(value.tolist()).decode()
            elif value.ndim == 0:
                value = value.item()
            options[name] = value
        return ([[text, {name: value for name, value in options.items() if value is not None}]],)


class NoConditioning(Node, returns="CONDITIONING"):
    def run(self):
        return ([],)


class EmptyLatent(Node, returns="LATENT", shape="STRING"):
    def run(self, shape):
        parts = [torch.zeros([int(size) for size in part.split()]) for part in shape.split("|")]
        return ({"samples": parts[0] if len(parts) == 1 else NestedTensor(parts)},)


class FirstFrameMask(Node, returns="LATENT", samples="LATENT"):
    def run(self, samples):
        mask = torch.ones_like(samples["samples"][:, :1])
        mask[:, :, 0] = 0
        return ({**samples, "noise_mask": mask},)


class Zeros(torch.nn.Module):
    dtype = torch.float32

    def forward(self, x, timesteps, **_options):
        return torch.zeros_like(x)


class ForeignModel(Node, returns="MODEL", model="MODEL"):
    def run(self, model):
        patcher = model.clone()
        patcher.model = copy.copy(model.model)
        patcher.model._modules = {**model.model._modules, "diffusion_model": Zeros()}
        return (patcher,)


class LookInside(Node, returns="MODEL", model="MODEL"):
    """What node packs look for in ComfyUI's own Flux."""

    def run(self, model):
        module = model.model.diffusion_model
        assert isinstance(module, comfy.ldm.flux.model.Flux)
        assert (module.params.hidden_size, module.patch_size, module.in_channels) == (256, 2, 64)
        assert hasattr(module, "double_blocks") and len(module.single_blocks) == 2
        assert module.state_dict()["img_in.weight"].shape == (256, 64)
        assert model.model.get_dtype() == module.dtype == torch.float32
        return (model,)


class ChangeInside(Node, returns="MODEL", model="MODEL", how="STRING"):
    def run(self, model, how):
        model, module = model.clone(), model.model.diffusion_model

        def around(apply_model, given):
            forward = module.forward_orig
            module.forward_orig = lambda *args, **kwargs: 1.1 * forward(*args, **kwargs)
            try:
                return apply_model(given["input"], given["timestep"], **given["c"])
            finally:
                del module.forward_orig

        def attention(function, *args, **kwargs):
            return 1.1 * function(*args, **kwargs)

        kernel = getattr(comfy.ldm.modules.attention, how, None)

        def chosen(_function, *args, **kwargs):
            return kernel(*args, **kwargs)

        if kernel:
            attention = chosen
        if how == "for the length of a call":
            model.set_model_unet_function_wrapper(around)
        else:
            model.model_options["transformer_options"]["optimized_attention_override"] = attention
        return (model,)


# As ComfyUI-GGUF does, whose folders are those of diffusion_models, too.
folder_paths.folder_names_and_paths["unet_gguf"] = ([os.path.join(folder_paths.models_dir, "unet_gguf")], {".gguf"})

NODE_CLASS_MAPPINGS = {
    "Test_LoadConditioning": LoadConditioning,
    "Test_NoConditioning": NoConditioning,
    "Test_EmptyLatent": EmptyLatent,
    "Test_FirstFrameMask": FirstFrameMask,
    "Test_ForeignModel": ForeignModel,
    "Test_LookInside": LookInside,
    "Test_ChangeInside": ChangeInside,
}
'''

# By a plan's ranks, the worker group that serves such plans where a job leaves the choice open. In one group for all,
# one rank after several, which attend otherwise, would be a new group, many seconds later.
GROUPS_BY_SIZE = {2: 1, 1: 2, 4: 3}

# The host caches a node's result by its inputs; a seed of its own makes a sampler run.
_seeds = itertools.count(1000)
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Graph:
    """A prompt in API format, built node by node."""

    def __init__(self) -> None:
        self.prompt: dict[str, dict] = {}

    def add(self, class_type: str, **inputs: Any) -> Link:
        """Adds a node; returns the link to its first output."""
        node_id = str(len(self.prompt) + 1)
        self.prompt[node_id] = {"class_type": class_type, "inputs": inputs}
        return [node_id, 0]


@dataclass(frozen=True)
class Job:
    """One KSampler run. width and height are those of the Empty Latent Image node; 0 is the least that the model takes.

    positive and negative: a class label, or the name of a .safetensors file in the input folder.
    latent: a .latent file in the input folder instead of an empty one.
    plan: degrees by axis; None is auto. seed: None takes one that was never used.
    scheduler: that of a Parallel Sampler in place of the KSampler. mask: the left half of the latent is kept. group: of
    workers; None is that of GROUPS_BY_SIZE.
    """

    model: str
    positive: str = "3"
    negative: str = ""
    width: int = 0
    height: int = 0
    batch: int = 1
    latent: str | None = None
    plan: Mapping[str, int] | None = None
    seed: int | None = None
    steps: int = 4
    cfg: float = 2.0
    sampler: str = "euler"
    denoise: float = 1.0
    mask: bool = False
    scheduler: str | None = None
    group: int | None = 1

    def __post_init__(self) -> None:
        for side in ("width", "height"):
            least = 512 if "pixart" in self.model else 128  # ComfyUI's PixArt rounds latents to multiples of 64
            object.__setattr__(self, side, getattr(self, side) or least)

    @property
    def name(self) -> str:
        """The model's, without .safetensors."""
        return self.model.removesuffix(".safetensors")

    @property
    def worker_group(self) -> int:
        """The number of the group that serves it. An automatic plan has two ranks."""
        if self.group is not None:
            return self.group
        return GROUPS_BY_SIZE[2 if self.plan is None else ParallelPlan(**self.plan).world_size]

    def under(self, plan: Mapping[str, int]) -> Job:
        return replace(self, plan=plan)

    def prompt(self, patch_model: Patch | None = None, patch_positive: Patch | None = None) -> dict:
        """The prompt; the patches put nodes behind the model and behind the positive conditioning."""
        graph = Graph()
        loaded = load(graph, self.model, self.plan, self.worker_group)
        positive = conditioning(graph, loaded, self.positive)
        negative = conditioning(graph, loaded, self.negative)
        if self.latent:
            latent = graph.add("LoadLatent", latent=self.latent)
        else:
            latent = graph.add("EmptyLatentImage", width=self.width, height=self.height, batch_size=self.batch)
        if self.mask:
            latent = graph.add("SetLatentNoiseMask", samples=latent, mask=right_half(graph, self.width, self.height))
        common = {
            "model": patch_model(graph, loaded) if patch_model else loaded,
            "positive": patch_positive(graph, positive) if patch_positive else positive,
            "negative": negative,
            "latent_image": latent,
            "seed": next(_seeds) if self.seed is None else self.seed,
            "steps": self.steps,
            "cfg": self.cfg,
            "denoise": self.denoise,
        }
        if self.scheduler:
            sampled = graph.add("ParallelDiT_Sampler", scheduler=self.scheduler, **common)
        else:
            sampled = graph.add("KSampler", sampler_name=self.sampler, scheduler="simple", **common)
        graph.add("SaveLatent", samples=sampled, filename_prefix="test")
        return graph.prompt


def right_half(graph: Graph, width: int, height: int) -> Link:
    """A mask that is 1 in the right half."""
    whole = graph.add("SolidMask", value=1.0, width=width, height=height)
    left = graph.add("SolidMask", value=0.0, width=width // 2, height=height)
    return graph.add("MaskComposite", destination=whole, source=left, x=0, y=0, operation="multiply")


def conditioning(graph: Graph, model: Link, what: str) -> Link:
    if what.endswith(".safetensors"):
        return graph.add("Test_LoadConditioning", name=what)
    return graph.add("ParallelDiT_ClassLabel", model=model, label=what)


def latents(host: ComfyHost, prompt: dict, as_stock: bool = False, **wait: Any) -> torch.Tensor:
    """Runs a prompt; returns the latents (B, C, H, W) that its Save Latent node wrote. Fails if one of our models runs
    as stock, unless as_stock."""
    before = host.log.stat().st_size
    found = saved_latents(host, host.run(prompt, **wait))
    said = [line for line in host.log.read_bytes()[before:].decode(errors="replace").splitlines() if STOCK in line]
    assert as_stock or not said, said
    return found


def saved_latents(host: ComfyHost, entry: dict) -> torch.Tensor:
    """What the Save Latent node wrote, by the prompt's entry in the history."""
    (saved,) = [file for output in entry["outputs"].values() for file in output.get("latents", [])]
    return load_file(host.output_file(saved))["latent_tensor"]


def queue_as_another_client(host: ComfyHost, prompt: dict) -> str:
    """Queues a prompt beside those of the host's own client; its id."""
    body = json.dumps({"prompt": prompt, "client_id": "another"}).encode()
    request = urllib.request.Request(f"{host.url}/prompt", body, {"Content-Type": "application/json"})
    with _open(request, timeout=30) as response:
        return json.loads(response.read())["prompt_id"]


def history(host: ComfyHost, prompt_id: str) -> dict | None:
    """The prompt's entry in the history; None until it has ended."""
    with _open(f"{host.url}/history/{prompt_id}", timeout=30) as response:
        return json.loads(response.read()).get(prompt_id)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The greatest deviation, in units of the reference's greatest value; infinite where a value is not finite."""
    assert result.shape == reference.shape
    if not (result.isfinite().all() and reference.isfinite().all() and reference.any()):
        return float("inf")
    return float((result - reference).abs().max() / reference.abs().max())


def joined(samples: Any) -> torch.Tensor:
    """Latents of several parts, such as video and sound, as one tensor."""
    return torch.cat([part.flatten() for part in samples.unbind()]) if samples.is_nested else samples


def status(host: ComfyHost, group: int = 1) -> dict[str, Any]:
    """What GET /paralleldit/status answers."""
    with _open(f"{host.url}/paralleldit/status?group={group}", timeout=30) as response:
        return json.loads(response.read())


def log(host: ComfyHost, rank: int = 0, group: int = 1) -> str:
    """The end of a rank's log."""
    with _open(f"{host.url}/paralleldit/logs?rank={rank}&group={group}", timeout=30) as response:
        return response.read().decode()


def groups(host: ComfyHost, listener: str = "") -> list[dict[str, Any]]:
    """What GET /paralleldit/groups answers, as a page asks that is opened, and listens from then on."""
    with _open(f"{host.url}/paralleldit/groups?listener={listener}", timeout=30) as response:
        return json.loads(response.read())["groups"]


def runs(host: ComfyHost, group: int = 1) -> list[dict[str, Any]]:
    """A group's samplings, the newest first."""
    return next(each["runs"] for each in groups(host) if each["group"] == group)


def ask_error(host: ComfyHost, run: int, exact: int, group: int = 1) -> float:
    """The relative error of two of a group's runs, as Compare plans asks for it."""
    with _open(f"{host.url}/paralleldit/error?group={group}&run={run}&exact={exact}", timeout=60) as answer:
        return json.loads(answer.read())["error"]


def post(host: ComfyHost, path: str, headers: Mapping[str, str] | None = None) -> None:
    """An empty POST. Raises HTTPError for a refusal."""
    _open(urllib.request.Request(host.url + path, method="POST", headers=dict(headers or {})), timeout=120).close()


def ranks(host: ComfyHost, group: int = 1) -> list[int]:
    """The process ids of the ranks, rank 0 first. Raises KeyError where no group runs."""
    return status(host, group)["pids"]


def worker_processes(host: ComfyHost, group: int | None = None) -> set[psutil.Process]:
    """Every process below the host, or of a group that runs: the torchrun agent, the ranks, and what they started."""
    if group is None:
        return set(psutil.Process(host.process.pid).children(recursive=True))
    agent = psutil.Process(psutil.Process(ranks(host, group)[0]).ppid())
    return {agent, *agent.children(recursive=True)}


def alive(process: psutil.Process) -> bool:
    """True unless the process has ended; a zombie that nobody has waited for has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def refusal(host: ComfyHost, prompt: dict, good: Job) -> str:
    """The error that the prompt ends with. Fails unless the ranks that were there before then serve `good`."""
    found = status(host, good.worker_group)
    if found["state"] != "ready" or len(found["pids"]) < 2:  # of another test's plan of one rank
        latents(host, good.prompt())
    before = ranks(host, good.worker_group)
    with pytest.raises(PromptError) as caught:
        host.run(prompt)
    assert latents(host, good.prompt()).isfinite().all()
    assert ranks(host, good.worker_group) == before, "the refusal cost the group its ranks"
    return caught.value.message
