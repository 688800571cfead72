"""ControlNets beside a model, as habits of the census."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from tests.support.census.rows import Row, as_stock, equal, habit, refused

SEED = 7
# ComfyUI's, whose loader takes their own names: module, class, config, and whether it begins with the model's.
CONTROLNETS: Mapping[str, tuple[str, str, dict[str, Any], bool]] = {
    "flux": ("comfy.ldm.flux.controlnet", "ControlNetFlux", {"depth_single_blocks": 0}, True),
    "flux, 5 and 10 blocks": (
        "comfy.ldm.flux.controlnet",
        "ControlNetFlux",
        {"depth": 5, "depth_single_blocks": 10},
        True,
    ),
    "qwen": ("comfy.ldm.qwen_image.controlnet", "QwenImageControlNetModel", {}, True),
    "qwen fun": (
        "comfy.ldm.qwen_image.controlnet",
        "QwenImageFunControlNetModel",
        {"control_in_features": 132, "inner_dim": 64, "num_attention_heads": 4, "attention_head_dim": 16},
        False,
    ),
    "sd35": (
        "comfy.cldm.dit_embedder",
        "ControlNetEmbedder",
        {
            "img_size": None,
            "patch_size": 2,
            "in_chans": 16,
            "attention_head_dim": 64,
            "num_attention_heads": 4,
            "adm_in_channels": 2048,
            "num_layers": 2,
            "main_model_double": 4,
            "double_y_emb": False,
        },
        False,
    ),  # fmt: skip
    "unet": ("comfy.cldm.cldm", "ControlNet", {"hint_channels": 3}, True),
}


def controlled(*kinds: str, change: Callable[[Any], Any] = lambda model: model) -> Callable[..., list[torch.Tensor]]:
    """ControlNets of ComfyUI's, one after the other, that start after some steps. kinds: see `a_controlnet`. change: of
    the model."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        positive, negative = census.apply_controlnets(row, model, kinds)
        changed = change(model)
        sampled = census.sample(row, changed, positive=positive, negative=negative)
        if getattr(model, "remote", None) is not None:
            is_sent = census.group.runs.kept[0].residuals > 0
            assert is_sent == ("no file" in kinds or change is read), "the ranks compute those of files"
        return [sampled]

    return does


def beside(habit_name: str, kind: str) -> Callable[..., list[torch.Tensor]]:
    """A ControlNet of a model that a pack changes, too."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        (changed,) = census.run("ModelHabit", model=model, habit=habit_name, moment="begin")
        return controlled(kind, change=lambda _model: changed)(census, row, model)

    return does


def looped(*kinds: str, cfg: float = 3.0, asked: str = "ulysses=2") -> Callable[..., list[torch.Tensor]]:
    """ControlNets under the Parallel Sampler, and with stock's Euler over the same noise levels. asked: the plan that
    ours runs under."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
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
        schedule, scale = node.choose_schedule(model)
        call = node.SamplerCall(
            "model's own", schedule.config, schedule.default, schedule.linear_sigmas, row.steps, guidance=cfg,
            seed=SEED, timestep_scale=scale,
        )  # fmt: skip
        found = node.run_sampler(model, positive, negative, census.latent(row), node.LoopSampler(call))
        assert str(model.remote.plan) == asked
        return [found]

    return does


def wrapped(model: Any, wrapper: Callable[[Any, dict[str, Any]], Any]) -> Any:
    changed = model.clone()
    changed.set_model_unet_function_wrapper(wrapper)
    return changed


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


def overwritten(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The file of a ControlNet is overwritten after ComfyUI loaded it."""
    network = census.a_controlnet("flux", row, model)
    file = census.base / "models" / "controlnet" / "flux.safetensors"
    whole = file.read_bytes()
    try:
        weights = load_file(file)
        file.unlink()
        save_file(
            {name: 2 * weight if weight.is_floating_point() else weight for name, weight in weights.items()}, file
        )
        positive, negative = census.run(
            "ControlNetApplyAdvanced", positive=census.conditioning(row.model, "positive"),
            negative=census.conditioning(row.model, "negative"), control_net=network,
            image=census.a_image(row, model), strength=0.7, start_percent=0.0, end_percent=1.0, vae=None,
        )  # fmt: skip
        found = census.sample(row, model, positive=positive, negative=negative)
    finally:
        file.unlink()
        file.write_bytes(whole)
    assert getattr(model, "remote", None) is None or census.group.runs.kept[0].residuals > 0
    return [found]


def sent_once(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The hint, which is the same in all steps, goes to the ranks with the first one."""
    positive, negative = (census.conditioning(row.model, name) for name in ("positive", "negative"))
    positive, negative = census.run(
        "ControlNetApplyAdvanced", positive=positive, negative=negative,
        control_net=census.a_controlnet("flux", row, model), image=census.a_image(row, model), strength=0.7,
        start_percent=0.0, end_percent=1.0, vae=None,
    )  # fmt: skip
    sent, request = [], census.group._request

    def noted(header: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if header["op"] == "call":
            sent.append(sum(each.ndim == 4 and each.shape[1] == 3 for each in tensors.values()))
        return request(header, tensors, *args, **kwargs)

    with patch.object(census.group, "_request", noted):
        found = census.sample(row, model, positive=positive, negative=negative)
    assert not hasattr(model, "stand_in") or sent == [1, 0], sent
    return [found]


CONTROLNET_HABITS = {
    "a ControlNet whose hint is sent once": habit(equal(), sent_once),
    "a ControlNet and a pack's block": habit(replace(equal(), shared="ulysses=2"), beside("a replaced block", "flux")),
    "a ControlNet and a pack's patch of a UNet's attention": habit(
        replace(equal("unet"), shared="ulysses=2"), beside("attention's output", "unet")
    ),
    "a ControlNet from 30 % on": habit(equal(), controlled("flux")),
    "a ControlNet under auto": replace(habit(equal(), controlled("flux")), plan={}),
    "a ControlNet of rows": replace(habit(equal(), controlled("flux")), plan={"cfg": 2}),
    "a ControlNet of no file": habit(equal(), controlled("no file")),
    "two ControlNets": habit(equal(), controlled("flux", "flux")),
    "a ControlNet after one of no file": habit(equal(), controlled("no file", "flux")),
    "a ControlNet before one of no file": habit(equal(), controlled("flux", "no file")),
    "a ControlNet that a node reads": habit(equal(), controlled("flux", change=read)),
    "a ControlNet whose file is overwritten": habit(equal(), overwritten),
    "a ControlNet after one of no file that a node reads": habit(equal(), controlled("no file", "flux", change=read)),
    "a ControlNet after one of no file as stock": habit(as_stock(), controlled("no file", "flux", change=take_over)),
    "a ControlNet as stock": habit(as_stock(), controlled("flux", change=take_over)),
    "a ControlNet of Qwen-Image": habit(equal("qwen"), controlled("qwen")),
    "a Fun ControlNet of Qwen-Image": habit(equal("qwen"), controlled("qwen fun")),
    # It takes an embedding from the model's own weights.
    "a ControlNet of Stable Diffusion 3.5": habit(equal("sd35"), controlled("sd35")),
    "a ControlNet of Stable Diffusion 3.5 that a node reads": habit(equal("sd35"), controlled("sd35", change=read)),
    "a ControlNet under the Parallel Sampler": habit(equal(), looped("flux")),
    "two ControlNets under the Parallel Sampler": habit(equal(), looped("flux", "flux, 5 and 10 blocks", cfg=1.0)),
    "a ControlNet under the Parallel Sampler with a batch": habit(
        replace(equal(), plan={"cfg": 2}), looped("flux", asked="cfg=2")
    ),
    "a ControlNet under the Parallel Sampler on one rank": habit(
        replace(equal(), plan={"cfg": 1}), looped("flux", asked="one rank")
    ),
    "a ControlNet under PipeFusion": habit(
        replace(equal(), plan={"pipefusion": 2}, less="cfg=2"), looped("flux", asked="cfg=2")
    ),
    "a ControlNet under PipeFusion and a stock sampler": habit(
        replace(equal(), plan={"pipefusion": 2}, less="cfg=2"), controlled("flux")
    ),
    "a Fun ControlNet of Qwen-Image under the Parallel Sampler": habit(equal("qwen"), looped("qwen fun")),
    "a ControlNet of no file under the Parallel Sampler": habit(
        replace(refused("ComfyUI's device computes in each step"), ours=True), looped("no file")
    ),
    "a ControlNet of a UNet": habit(replace(equal("unet"), shared="ulysses=2"), controlled("unet")),
    "two ControlNets of a UNet": habit(replace(equal("unet"), shared="ulysses=2"), controlled("unet", "unet")),
}
