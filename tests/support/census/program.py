"""`census.program COMFYUI BASE [NODE...]`:
runs ComfyUI's nodes on models without and with *Parallelize Model*, in one process, and tells what came of each.

The rows of `rows`; without names, all of them.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from aiohttp.web import RouteTableDef
from safetensors.torch import load_file, save_file

from parallel_backend.plan import ParallelPlan
from tests.support.cases.host.base import of_comfyui
from tests.support.cases.host.networks import SPOKEN
from tests.support.census.habits import HABITS
from tests.support.census.loaders import DETECTOR_ROWS, NODE_ROWS
from tests.support.census.loading import as_node, is_ours
from tests.support.census.networks import GivenNetworks
from tests.support.census.pack_rows import HABIT_NODE, PACK, PATCH_NODE
from tests.support.census.rows import NEWER_ROWS, ROWS, Given, Row, equal
from tests.support.files.adapters import make_lora
from tests.support.host.graphs import joined, relative_error
from tests.support.host.mounted import mount
from tests.support.host.stock_prompts import ALL

SEED = 7
Outputs = list[torch.Tensor]


class Census(GivenNetworks):
    """ComfyUI in this process, its nodes, one worker group, and models with and without *Parallelize Model*."""

    def __init__(self, comfyui: str, base: str, *arguments: str) -> None:
        mount(comfyui, "--base-directory", base, *arguments)
        for name in [name for name in sys.modules if name == "nodes" or name.startswith("nodes.")]:
            del sys.modules[name]
        self.nodes = importlib.import_module("nodes")
        asyncio.run(self.nodes.init_builtin_extra_nodes())
        self.base = Path(base)
        self.load_pack()
        module = importlib.import_module("pack.worker.host.client")
        self.group = module.WorkerGroup("cpu", self.base / "group")
        self.models: dict[tuple, Any] = {}
        self.plain_latents: dict[tuple, torch.Tensor] = {}
        self.remote: Any = None  # of the last model that was made parallel
        self.why: list[str] = []
        self.plans: list[str] = []  # of this row's calls
        self.said: list[str] = []  # on the node, of this row's attention
        self.taken = False  # whether ComfyUI's own model has taken over from the ranks
        self.watch(importlib.import_module("pack.nodes.model.stock_model").StockModel)
        gc.freeze()  # what has been imported is not looked through for each row
        gc.set_threshold(20_000)  # new objects; 700 took 7 % of the time

    def load_pack(self) -> None:
        """Loads the pack of habits as ComfyUI loads one of its packs."""
        server: Any = importlib.import_module("server").PromptServer
        server.instance = SimpleNamespace(routes=RouteTableDef())
        try:
            assert asyncio.run(self.nodes.load_custom_node(str(self.base / "custom_nodes" / PACK.name)))
        finally:
            del server.instance

    def watch(self, kind: type) -> None:
        take_over = kind.take_over

        def watched(stock: Any, reasons: Any, *args: Any, **kwargs: Any) -> None:
            self.taken, self.why = True, list(reasons)
            take_over(stock, reasons, *args, **kwargs)

        kind.take_over = watched
        importlib.import_module("pack.nodes.model.sampling").warn = lambda text: self.said.append(text)
        call = self.group.call

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.plans.append(str(self.remote.planned.plan))
            return call(*args, **kwargs)

        self.group.call = noted

    def model_nodes(self) -> list[str]:
        """The names of ComfyUI's own nodes that take a MODEL."""
        found = []
        for name, node in self.nodes.NODE_CLASS_MAPPINGS.items():
            if name in (HABIT_NODE, PATCH_NODE):
                continue
            inputs = node.INPUT_TYPES()
            given = {**inputs.get("required", {}), **inputs.get("optional", {})}
            if any(kind_of(value) == "MODEL" for value in given.values()):
                found.append(name)
        return sorted(found)

    def loaded(self, row: Row, ours: bool) -> Any:
        """A row's MODEL, of the loader, for all that leave it whole."""
        key = (row.model, row.dtype, row.form, ours, *((row.last, *row.plan.items()) if ours else ()))
        if key not in self.models:
            self.models[key] = self.load(row, ours)
        return self.models[key]

    @cache  # noqa: B019
    def conditioning(self, name: str, which: str) -> list:
        """A case's text as CONDITIONING."""
        tensors = load_file(self.base / "input" / f"{name} {which}.safetensors")
        text = tensors.pop("conditioning")
        options: dict[str, Any] = {"pooled_output": tensors.pop("pooled", None)}
        for key, value in tensors.items():
            *kind, own = key.split()
            options[own] = [*options.get(own, []), value] if "list" in kind else value
        return [[text, {key: value for key, value in options.items() if value is not None}]]

    def latent(self, row: Row) -> dict[str, Any]:
        shape: Any = row.latent or ALL[row.model].latent
        if isinstance(shape[0], tuple):
            nested = importlib.import_module("comfy.nested_tensor").NestedTensor
            return {"samples": nested([torch.zeros(part) for part in shape])}
        samples = torch.zeros(shape)
        mask = torch.linspace(0, 1, samples.shape[-1]).expand(samples.shape[-2:])
        return {"samples": samples, "noise_mask": mask} if row.masked else {"samples": samples}

    def inputs(self, node: Any, row: Row, model: Any) -> dict[str, Any]:
        """What a node gets: the row's inputs, what the case has, and the node's own defaults."""
        kinds = node.INPUT_TYPES()
        found: dict[str, Any] = {}
        for group in ("required", "optional"):
            for name, value in kinds.get(group, {}).items():
                if name in row.inputs:
                    found[name] = self.value(row, row.inputs[name], model)
                elif kind_of(value) == "MODEL":
                    found[name] = self.adapt(row, model) if name == "model2" else model
                elif group == "required":
                    found[name] = self.default(row, name, value, model)
        return found

    def adapt(self, row: Row, model: Any, strength: float = 1.0, lora: str = "") -> Any:
        """The model with a LoRA, by its file's name; one for the blocks' matrices without one."""
        name = lora or self.a_lora(row, model)
        return self.run("LoraLoaderModelOnly", model=model, lora_name=name, strength_model=strength)[0]

    def hooked(self, row: Row, hooks: Any) -> list:
        """The positive text with hooks."""
        text = {"cond_NEW": self.conditioning(row.model, "positive"), "strength": 1.0, "set_cond_area": "default"}
        return self.run("ConditioningSetProperties", **text, hooks=hooks)[0]

    def texts_with(self, row: Row, make: Callable[[], dict[str, Any]]) -> dict[str, list]:
        """Both texts, with more options."""
        found = {}
        for which in ("positive", "negative"):
            ((text, given),) = self.conditioning(row.model, which)
            found[which] = [[text, {**given, **make()}]]
        return found

    def default(self, row: Row, name: str, value: Any, model: Any) -> Any:
        kind, options = value[0], value[1] if len(value) > 1 else {}
        if kind == "FLOAT" and row.numbers is not None:
            return row.numbers
        if "default" in options:
            return options["default"]
        if isinstance(kind, list) or kind == "COMBO":
            return (kind if isinstance(kind, list) else options["options"])[0]
        if kind == "CONDITIONING":
            return self.conditioning(row.model, "negative" if "negative" in name or "empty" in name else "positive")
        return self.value(row, Given(kind), model)

    def value(self, row: Row, value: Any, model: Any) -> Any:
        if not isinstance(value, Given):
            return value
        kind = value.lower()
        return GIVEN[kind](self, row, model) if kind in GIVEN else getattr(self, f"a_{kind}")(row, model)

    def a_other(self, row: Row, _model: Any) -> Any:
        return [[-text, options] for text, options in self.conditioning(row.model, "positive")]

    def a_vae(self, row: Row, _model: Any) -> Any:
        """One that sees nothing in an image."""
        stage = SimpleNamespace(gaussians_per_point=32, gs=SimpleNamespace(model_channels=8))
        return SimpleNamespace(
            first_stage_model=stage,
            vae_dtype=torch.float32,
            encode=lambda _image: torch.zeros(ALL[row.model].latent),
            decode=lambda _latent: self.a_image(row, None),
            spacial_compression_encode=lambda: 8,
            temporal_compression_decode=lambda: 4,
        )

    def a_lora_model(self, row: Row, _model: Any) -> dict[str, torch.Tensor]:
        """A LoRA for the matrices of the blocks."""
        weights = load_file(self.base / "models" / "diffusion_models" / f"{row.model}.safetensors")
        return make_lora({name: each for name, each in weights.items() if each.ndim == 2 and "blocks." in name})

    def a_lora(self, row: Row, model: Any) -> str:
        return self.written("loras", self.a_lora_model(row, model))

    def a_hypernetwork(self, _row: Row, _model: Any) -> str:
        layers = {
            f"linear.{layer}.{part}": torch.full(shape, 0.1)
            for layer in (0, 1)
            for part, shape in {"weight": (24, 24), "bias": (24,)}.items()
        }
        return self.written("hypernetworks", {24: [layers, layers], "activation_func": "linear"})

    def a_difference(self, _row: Row, _model: Any) -> str:
        config = {name: value for name, value in ALL["unet"].config.items() if name != "out_channels"}
        network = of_comfyui("comfy.cldm.cldm.ControlNet", **config, hint_channels=3)
        weights = {f"control_model.{name}": torch.zeros(tensor.shape) for name, tensor in network.state_dict().items()}
        return self.written("controlnet", {**weights, "difference": torch.ones(1)})

    def written(self, kind: str, value: dict) -> str:
        """The name of a file that ComfyUI finds."""
        folder, suffix = self.base / "models" / kind, ".pt" if kind == "hypernetworks" else ".safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        if suffix == ".pt":
            torch.save(value, folder / f"census{suffix}")
        else:
            save_file(value, folder / f"census{suffix}")
        return f"census{suffix}"

    def a_sigmas(self, row: Row, model: Any) -> Any:
        return self.run("BasicScheduler", model=model, scheduler="simple", steps=row.steps, denoise=1.0)[0]

    def a_sampler(self, _row: Row, _model: Any) -> Any:
        return self.run("KSamplerSelect", sampler_name="euler")[0]

    def a_noise(self, _row: Row, _model: Any) -> Any:
        return self.run("RandomNoise", noise_seed=SEED)[0]

    def a_image(self, _row: Row, _model: Any) -> Any:
        return torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(2))

    def placed(self, row: Row, model: Any) -> Any:
        """The model that is sampled, with the row's node right before the sampler if it stands there."""
        return self.parallelize(row, model) if self.places_node else model

    def sample(self, row: Row, model: Any, denoise: float = 1.0, **texts: Any) -> torch.Tensor:
        """texts: others than the model's."""
        model = self.placed(row, model)
        positive, negative = (
            texts.get(which) or self.conditioning(row.model, which) for which in ("positive", "negative")
        )
        (result,) = self.run(
            "KSampler", model=model, seed=SEED, steps=row.steps, cfg=row.cfg, sampler_name="euler", scheduler="simple",
            positive=positive, negative=negative, latent_image=self.latent(row), denoise=denoise,
        )  # fmt: skip
        return joined(result["samples"])

    def custom(self, row: Row, model: Any, guider: Any = None, sampler: Any = None) -> torch.Tensor:
        """A guider's or a sampler's latents."""
        model = model if guider else self.placed(row, model)
        guider = guider or self.run(
            "CFGGuider", model=model, cfg=row.cfg, positive=self.conditioning(row.model, "positive"),
            negative=self.conditioning(row.model, "negative"),
        )[0]  # fmt: skip
        sampler, sigmas = sampler or self.a_sampler(row, model), self.a_sigmas(row, model)
        given = {"sampler": sampler, "sigmas": sigmas, "latent_image": self.latent(row)}
        result = self.run("SamplerCustomAdvanced", noise=self.a_noise(row, model), guider=guider, **given)[0]
        return joined(result["samples"])

    def outputs(self, name: str, row: Row, ours: bool) -> Outputs:
        """What comes of a node behind the loader: numbers, the latents that its MODEL, GUIDER or SAMPLER gives, and all
        bytes of the files that it writes."""
        torch.manual_seed(SEED)
        self.places_node = ours and row.last
        model = self.load(row, ours) if row.does else self.loaded(row, ours)
        self.taken = ours and not self.places_node and not is_ours(model)  # a model that is not sampled from
        if row.does:
            return row.does(self, row, model)
        if is_ours(model):
            model.remote_module.stock.give_back(model)  # from ComfyUI's own model, if the row before left it there
        node = self.nodes.NODE_CLASS_MAPPINGS[name]
        before = set((self.base / "output").rglob("*.safetensors"))
        results = self.run(name, **self.inputs(node, row, model))
        found: Outputs = []
        for file in sorted(set((self.base / "output").rglob("*.safetensors")) - before):
            found.append(torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8).float())
        for kind, value in zip(node.RETURN_TYPES, results, strict=False):
            if kind == "MODEL":
                found.append(self.sample(row, value))
            elif kind == "GUIDER":
                found.append(self.custom(row, model, guider=value))
            elif kind == "SAMPLER":
                found.append(self.custom(row, model, sampler=value))
            elif kind == "CONDITIONING":
                found += [value[0][0]]
            elif kind == "LATENT":
                found.append(value["samples"])
            else:
                found += numbers_in(value)
        return found

    def plain(self, row: Row) -> torch.Tensor:
        """The latents of stock's model alone, which rows of one model share."""
        key = (row.model, row.masked, row.latent, row.cfg, row.steps)
        if key not in self.plain_latents:
            self.plain_latents[key] = self.sample(row, self.loaded(replace(row, dtype="default", form=""), False))
        return self.plain_latents[key]

    def outcome(self, name: str, row: Row) -> dict[str, Any]:
        """error: of ours against stock's, of all outputs. effect: of the node on stock's. raised: by ours. stock
        raised: by the stock loader's. as stock: whether ComfyUI's own model took over. replaced: what the node says of
        a plan in place of the one that was asked for."""
        started, found, self.taken, self.plans, self.said = time.monotonic(), {}, False, [], []
        with torch.inference_mode(), as_node() as replaced:
            try:
                is_plain = row.costly or row.ours  # as an error of ours alone is compared with nothing
                stock = [self.plain(row)] if is_plain else self.outputs(name, row, ours=False)
                plain = self.plain(row) if row.samples else stock[0].new_empty(0)
                found["effect"] = relative_error(stock[0], plain) if stock[0].shape == plain.shape else 1.0
            except Exception as error:
                stock, found["stock raised"] = [], f"{type(error).__name__}: {error}"
            try:
                ours = self.outputs(name, row, ours=True)
                found["errors"] = [
                    0.0 if a.equal(b) else relative_error(a, b) for a, b in zip(ours, stock, strict=True)
                ]
                found["error"] = max(found["errors"])
            except Exception as error:
                found["raised"] = f"{type(error).__name__}: {error}"
                found["trace"] = traceback.format_exc()[-3000:]
            found |= {"as stock": self.taken, "plan": self.plans[0] if self.plans else "", "said": self.said}
            found |= {"why": self.why if self.taken else [], "replaced": replaced}
        found["seconds"] = round(time.monotonic() - started, 2)
        return found


# By the kind of a value, what makes it for a row and its model. Others are methods of the census.
GIVEN: dict[str, Callable[[Census, Row, Any], Any]] = {
    "positive": lambda census, row, _: census.conditioning(row.model, "positive"),
    "negative": lambda census, row, _: census.conditioning(row.model, "negative"),
    "boolean": lambda *_: False,
    "operation": lambda census, *_: census.run("LatentOperationTonemapReinhard", multiplier=1.0)[0],
    "mask": lambda *_: torch.ones(1, 64, 64),
    "audio": lambda *_: {"waveform": torch.zeros(1, 2, 1000), "sample_rate": 44100},
    "audio_vae": lambda *_: SimpleNamespace(encode=lambda _sound: torch.ones(1, 8, 4, 16)),
    "image_vae": lambda census, *_: census.a_tiny_vae("taesd", "TAESD", 16),
    "video_vae": lambda census, *_: census.a_tiny_vae("taehv", "TAEHV", 16),
    "clip_vision_output": lambda *_: SimpleNamespace(
        all_hidden_states=torch.zeros(1, 24, 5, 8), penultimate_hidden_states=torch.zeros(1, 5, 8)
    ),
    "adapted": lambda census, row, model: census.adapt(row, model),
    "latent": lambda census, row, _: census.latent(row),
    "diffsynth": lambda census, *_: census.a_network("QwenImageBlockWiseControlNet", num_layers=3, dim=64),
    "multitalk": lambda census, *_: census.a_network("MultiTalkModelPatch", **SPOKEN),  # whose attention has 40 heads
    "spoken": lambda *_: {"encoded_audio_all_layers": [torch.zeros(1, 50, 768)] * 13},
}


def numbers_in(value: Any) -> Outputs:
    """The tensors and numbers in what a node returns, if they are in dicts and lists."""
    if isinstance(value, (dict, list, tuple)):
        return [one for each in (value.values() if isinstance(value, dict) else value) for one in numbers_in(each)]
    return [torch.as_tensor(value, dtype=torch.float32)] if isinstance(value, (torch.Tensor, float, int)) else []


def kind_of(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value


def order(row: Row) -> tuple[Any, ...]:
    """Rows of one group follow each other, and within them those of one model under one plan. A group of two ranks is
    not started by a row under auto, whose first plan can be of one rank: others would need another group."""
    is_of_one = bool(row.plan) and ParallelPlan(**row.plan).world_size == 1
    return is_of_one, row.model, not row.plan, sorted(row.plan)


def main(comfyui: str, base: str, *names: str) -> dict[str, Any]:
    census = Census(comfyui, base)
    nodes = census.model_nodes()
    every = {**ROWS, **HABITS, **DETECTOR_ROWS, **NODE_ROWS}
    every |= {name: row for name, (_, row) in NEWER_ROWS.items() if name in nodes}
    unknown = sorted({*nodes} - {row.node or name for name, row in every.items()})
    results: dict[str, Any] = {"nodes": nodes, "unknown": unknown, "rows": {}}
    rows = [(name, row) for name, row in every.items() if not names or name in names]
    rows += [(name, equal()) for name in unknown]  # of a newer ComfyUI: by their own defaults
    try:
        for name, row in sorted(rows, key=lambda item: order(item[1])):
            try:
                results["rows"][name] = census.outcome(row.node or name, row)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                results["rows"][name] = {"stock": said, "trace": traceback.format_exc()[-3000:]}
    finally:
        census.group.stop()
    return results
