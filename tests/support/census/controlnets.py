"""ControlNets beside a model, as habits of the census."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from tests.support.census.changes import requests, wrapped
from tests.support.census.rows import Row, as_stock, equal, habit, ignored, refused

SEED, ADAPTER = 7, "a T2I adapter"
NO_FILE, OF_A_PACK, LOCKED = "no file", "a pack's class", "a lock in it"
# ComfyUI's, whose loader takes their own names: module, class, config, and whether it begins with the model's.
CONTROLNETS: Mapping[str, tuple[str, str, dict[str, Any], bool]] = {
    "flux": ("comfy.ldm.flux.controlnet", "ControlNetFlux", {"depth_single_blocks": 0}, True),
    "flux, 5 and 10 blocks": (
        "comfy.ldm.flux.controlnet", "ControlNetFlux", {"depth": 5, "depth_single_blocks": 10}, True
    ),
    "qwen": ("comfy.ldm.qwen_image.controlnet", "QwenImageControlNetModel", {}, True),
    "qwen fun": (
        "comfy.ldm.qwen_image.controlnet", "QwenImageFunControlNetModel",
        {"control_in_features": 132, "inner_dim": 64, "num_attention_heads": 4, "attention_head_dim": 16}, False,
    ),
    "sd35": (
        "comfy.cldm.dit_embedder", "ControlNetEmbedder",
        {"img_size": None, "patch_size": 2, "in_chans": 16, "attention_head_dim": 64, "num_attention_heads": 4,
         "adm_in_channels": 2048, "num_layers": 2, "main_model_double": 4, "double_y_emb": False}, False,
    ),
    **{kind: ("comfy.cldm.cldm", "ControlNet", {"hint_channels": 3}, True) for kind in ("unet", "sd15")},
}  # fmt: skip


# What ControlNets returned in ComfyUI's process.
RESIDUALS = re.compile(r"\w+\.\d+\.kwargs\.control\.(previous\.)*(input|middle|output)\b")


def controlled(
    census: Any, row: Row, model: Any, *kinds: str, change: Callable[[Any], Any] = lambda model: model
) -> list[torch.Tensor]:
    """ControlNets of ComfyUI's, one after the other, that start after some steps. kinds: see `a_controlnet`. change: of
    the model."""
    positive, negative = census.apply_controlnets(row, model, kinds)
    changed = change(model)
    with requests(census, "call") as sent:
        sampled = census.sample(row, changed, positive=positive, negative=negative)
    if getattr(model, "remote", None) is not None:
        is_sent = any(RESIDUALS.match(path) for tensors in sent for path in tensors)
        must_be = change is read or not {OF_A_PACK, LOCKED, ADAPTER}.isdisjoint(kinds)
        assert is_sent == must_be, "the ranks compute those of ComfyUI's classes"
    return [sampled]


def beside(census: Any, row: Row, model: Any, habit_name: str, kind: str) -> list[torch.Tensor]:
    """A ControlNet of a model that a pack changes, too."""
    (changed,) = census.run("ModelHabit", model=model, habit=habit_name, moment="begin")
    return controlled(census, row, model, kind, change=lambda _model: changed)


def looped(
    census: Any, row: Row, model: Any, *kinds: str, cfg: float = 3.0, asked: str = "ulysses=2"
) -> list[torch.Tensor]:
    """ControlNets under the Parallel Sampler, and with stock's Euler over the same noise levels. asked: the plan that
    ours runs under."""
    positive, negative = census.apply_controlnets(row, model, kinds)
    sampling = model.get_model_object("model_sampling")
    shift = math.exp(sampling.shift)
    if getattr(model, "remote", None) is None:
        left = [1 - step / row.steps for step in range(row.steps)]
        sigmas = [*(shift * each / (1 + (shift - 1) * each) for each in left), 0.0]
        return [
            census.run(
                "SamplerCustom", model=model, add_noise=True, noise_seed=SEED, cfg=cfg, positive=positive,
                negative=negative, sampler=census.run("KSamplerSelect", sampler_name="euler")[0],
                sigmas=torch.tensor(sigmas), latent_image=census.latent(row),
            )[0]["samples"]
        ]  # fmt: skip
    node = importlib.import_module("pack.nodes.parallel_sampler")
    schedule = node.choose_schedule(model)
    call = node.SamplerCall("model's own", steps=row.steps, guidance=cfg, seed=SEED, **schedule)
    found = node.run_sampler(model, positive, negative, census.latent(row), node.LoopSampler(call))
    assert str(model.remote.planned.plan) == asked
    return [found]


def read(model: Any) -> Any:
    """A node's function around a call reads what the ControlNets return."""

    def wrapper(apply_model: Any, given: dict[str, Any]) -> Any:
        control = given["c"].get("control") or {}
        assert not control or any(each.abs().max() > 0 for kind in control.values() for each in kind)
        return apply_model(given["input"], given["timestep"], **given["c"])

    return wrapped(model, wrapper)


def take_over(model: Any) -> Any:
    """A node's function around a call puts a patch into it that cannot go to the ranks."""

    def wrapper(apply_model: Any, given: dict[str, Any]) -> Any:
        options = given["c"]["transformer_options"]
        patches = {**options.get("patches", {}), "attn1_output_patch": [lambda out, _options: 1.1 * out]}
        given["c"]["transformer_options"] = {**options, "patches": patches}
        return apply_model(given["input"], given["timestep"], **given["c"])

    return wrapped(model, wrapper)


def in_two_samplings(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The ranks keep its network for the second sampling, although the first step does without it."""
    positive, negative = census.apply_controlnets(row, model, ["flux"])
    found, kept = [], []
    for _ in range(2):
        found.append(census.sample(row, model, positive=positive, negative=negative))
        if hasattr(model, "remote_module"):
            kept.append(len(census.remote.inside.encoder.kept))
    assert kept in ([], [0, 1]), kept
    return found


def sent_once(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The hint, which is the same in all steps, goes to the ranks with the first one."""
    positive, negative = census.apply_controlnets(row, model, ["flux"], 0.0)
    with requests(census, "call") as sent:
        found = census.sample(row, model, positive=positive, negative=negative)
    hints = [sum(each.ndim == 4 and each.shape[1] == 3 for each in tensors.values()) for tensors in sent]
    assert not hasattr(model, "remote_module") or hints == [1, 0], hints
    return [found]


CONTROLNET_HABITS = {
    "a ControlNet whose hint is sent once": habit(equal(), sent_once),
    "a ControlNet and a pack's block": habit(equal(), beside, "a replaced block", "flux", shared="ulysses=2"),
    "a ControlNet from 30 % on": habit(equal(), in_two_samplings),
    "a ControlNet after one of no file": habit(equal(), controlled, NO_FILE, "flux"),
    "a ControlNet after one that cannot be described": habit(equal(), controlled, LOCKED, "flux"),
    "a ControlNet after one of a pack's class": habit(equal(), controlled, OF_A_PACK, "flux"),
    "a ControlNet that a node reads": habit(equal(), partial(controlled, change=read), "flux"),
    "a ControlNet after one of a pack's class as stock": habit(
        as_stock(), partial(controlled, change=take_over), OF_A_PACK, "flux"
    ),
    "a ControlNet of Qwen-Image": habit(equal("qwen"), controlled, "qwen"),
    "a Fun ControlNet of Qwen-Image": habit(equal("qwen"), controlled, "qwen fun"),
    # It takes an embedding from the model's own weights.
    "a ControlNet of Stable Diffusion 3.5": habit(equal("sd35"), controlled, "sd35"),
    "two ControlNets under the Parallel Sampler": habit(
        equal(), partial(looped, cfg=1.0), "flux", "flux, 5 and 10 blocks"
    ),
    "a ControlNet under PipeFusion": habit(
        equal(), partial(looped, asked="cfg=2"), "flux", plan={"pipefusion": 2}, less="cfg=2"
    ),
    "a ControlNet of a pack's class under the Parallel Sampler": habit(
        refused("ComfyUI's device computes in each step"), looped, OF_A_PACK, ours=True
    ),
    "a ControlNet and a T2I adapter of a UNet": habit(equal("sd15"), controlled, "sd15", ADAPTER, shared="ulysses=2"),
    "a T2I adapter of another UNet": habit(ignored("unet"), controlled, ADAPTER, shared="ulysses=2"),
    "two ControlNets of a UNet": habit(equal("unet"), controlled, "unet", "unet", shared="ulysses=2"),
}
