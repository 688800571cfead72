"""Prompts for the host's API queue, and what comes back: latents, refusals, the worker group's status."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import PACK_NAME, ComfyHost, PromptError
from parallel_backend.plan import ParallelPlan

Link = list
Patch = Callable[["Graph", Link], Link]
Plan = Mapping[str, Any] | None  # degrees by axis, and other inputs of a manual plan; None is auto
PARALLELIZE = "ParallelDiT_Parallelize"

# Of a host and its ranks: a model's file can say what ComfyUI is to detect in it, and ComfyUI looks for no garbage
# among its imports.
TINY_MODELS = {"PYTHONPATH": str(Path(__file__).parent / "site")}
STOCK = "runs as stock"  # in what ComfyUI logs of a model that the ranks do not run
NODE_PACK = "tensors"
NODE_PACKS = {NODE_PACK: (Path(__file__).parent / f"{NODE_PACK}.py").read_text()}  # by name their sources

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


def load(graph: Graph, model: str, plan: Plan = None, group: int = 1, dtype: str = "default") -> Link:
    """A model that the ranks run. model: the name of a file, or of a class-conditional DiT's folder."""
    if model.endswith(".safetensors"):
        loaded = graph.add("UNETLoader", unet_name=model, weight_dtype=dtype)
    elif model.endswith(".gguf"):
        loaded = graph.add("Test_LoadGGUF", unet_name=model)
    else:
        loaded = graph.add("ParallelDiT_LoadDiT", model_name=model)
    return parallelize(graph, loaded, plan, group)


def parallelize(graph: Graph, model: Link, plan: Plan = None, group: int = 1) -> Link:
    return graph.add(PARALLELIZE, model=model, group=group, **inputs_of(plan))


def inputs_of(plan: Plan) -> dict[str, Any]:
    return {"mode": "auto"} if plan is None else {"mode": "manual", **plan}


def bypass(prompt: dict) -> dict:
    """The prompt without Parallelize Model, which passes its MODEL on as a bypassed node does."""
    given = {key: node["inputs"]["model"] for key, node in prompt.items() if node["class_type"] == PARALLELIZE}
    return {
        key: {**node, "inputs": {name: passed_on(value, given) for name, value in node["inputs"].items()}}
        for key, node in prompt.items()
        if key not in given
    }


def passed_on(value: Any, given: Mapping[str, Link]) -> Any:
    return given.get(value[0], value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Job:
    """One KSampler run. width and height are those of the Empty Latent Image node.

    positive and negative: a class label, or the name of a .safetensors file in the input folder.
    latent: a .latent file in the input folder instead of an empty one.
    plan: degrees by axis; None is auto. seed: None takes one that was never used.
    scheduler: that of a Parallel Sampler in place of the KSampler. mask: the left half of the latent is kept. group: of
    workers; None is that of GROUPS_BY_SIZE.
    """

    model: str
    positive: str = "3"
    negative: str = ""
    width: int = 128
    height: int = 128
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


def find_node(prompt: dict, kind: str) -> dict[str, Any]:
    """The prompt's only node of a type."""
    (found,) = [node for node in prompt.values() if node["class_type"] == kind]
    return found


def write_packs(base: Path, packs: Mapping[str, str] = NODE_PACKS) -> tuple[str, ...]:
    """Writes node packs where a host with this base folder looks for them. Returns its arguments, by which it loads
    them and ours alone."""
    for name, source in packs.items():
        (base / "custom_nodes" / name).mkdir(parents=True)
        (base / "custom_nodes" / name / "__init__.py").write_text(source)
    return ("--whitelist-custom-nodes", PACK_NAME, *packs)


def write_latent(base: Path, name: str, latent: torch.Tensor) -> None:
    """Writes a file that Load Latent finds."""
    kept = {"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}
    save_file(kept, base / "input" / f"{name}.latent")


def behind(node: str, **inputs: Any) -> Patch:
    """A patch that puts a node behind the model."""
    return lambda graph, model: graph.add(node, model=model, **inputs)


def with_lora(file: str, strength: float = 0.8) -> Patch:
    return behind("LoraLoaderModelOnly", lora_name=file, strength_model=strength)


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


def cancel(host: ComfyHost, prompt: dict, at: int = 1) -> float:
    """Interrupts a prompt at a step, or after it: ComfyUI does not tell of every one. Returns the seconds from then to
    its end. Fails unless it ends so."""
    prompt_id, asked = host.queue(prompt), []

    def interrupt(event: dict) -> None:
        if event["type"] == "progress" and event["data"]["value"] >= at and not asked:
            asked.append(time.monotonic())
            host.interrupt(prompt_id)

    entry = host.wait(prompt_id, on_event=interrupt)
    took = time.monotonic() - asked[0]
    assert entry["status"]["completed"] is False
    assert [kind for kind, _ in entry["status"]["messages"]][-1] == "execution_interrupted"
    return took


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The greatest deviation, in units of the reference's greatest value; infinite where a value is not finite."""
    assert result.shape == reference.shape
    if not (result.isfinite().all() and reference.isfinite().all() and reference.any()):
        return float("inf")
    return float((result - reference).abs().max() / reference.abs().max())


def joined(samples: Any) -> torch.Tensor:
    """Latents of several parts, such as video and sound, as one tensor."""
    return torch.cat([part.flatten() for part in samples.unbind()]) if samples.is_nested else samples


def ask(host: ComfyHost, path: str, body: bytes | None = None, **request: Any) -> bytes:
    """What a route answers. Raises HTTPError for a refusal."""
    with _open(urllib.request.Request(host.url + path, body, **request), timeout=120) as answer:
        return answer.read()


def status(host: ComfyHost, group: int = 1) -> dict[str, Any]:
    """What GET /paralleldit/status answers."""
    return json.loads(ask(host, f"/paralleldit/status?group={group}"))


def log(host: ComfyHost, rank: int = 0, group: int = 1) -> str:
    """The end of a rank's log."""
    return ask(host, f"/paralleldit/logs?rank={rank}&group={group}").decode()


def groups(host: ComfyHost) -> list[dict[str, Any]]:
    """What GET /paralleldit/groups answers, as a page asks that is opened."""
    return json.loads(ask(host, "/paralleldit/groups"))["groups"]


def runs(host: ComfyHost, group: int = 1) -> list[dict[str, Any]]:
    """A group's samplings, the newest first."""
    return next(each["runs"] for each in groups(host) if each["group"] == group)


def ask_error(host: ComfyHost, run: int, exact: int, group: int = 1) -> float:
    """The relative error of two of a group's runs, as Compare plans asks for it."""
    return json.loads(ask(host, f"/paralleldit/error?group={group}&run={run}&exact={exact}"))["error"]


def post(host: ComfyHost, path: str, headers: Mapping[str, str] | None = None) -> None:
    """An empty POST. Raises HTTPError for a refusal."""
    ask(host, path, method="POST", headers=dict(headers or {}))


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
