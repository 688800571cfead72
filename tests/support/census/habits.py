"""What node packs do to a model beside ComfyUI's own nodes, and what comes of it."""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.changes import (
    DURING,
    IN_WRAPPER,
    WITHOUT_CODE,
    changed,
    changed_in_wrapper,
    changed_inside,
    cloned,
    in_place_of,
    louder,
    negate_a_part,
    negate_a_quantised_weight,
    sample_after,
    save_by_itself,
    scaled,
    write_a_quantised_weight,
    write_numbers,
    written_and_written_back,
    written_while_here,
)
from tests.support.census.controlnets import CONTROLNET_HABITS
from tests.support.census.h3_rows import H3_ROWS, conditioned, plain
from tests.support.census.network_files import NETWORK_HABITS
from tests.support.census.pack_rows import ENTRY_ROWS, PACK_ROWS, PATCH_ROWS, READ_ROWS
from tests.support.census.rows import Row, as_stock, equal, habit, ignored, refused
from tests.support.census.weights.files import FILE_ROWS
from tests.support.census.weights.loras import LORA_ROWS
from tests.support.census.weights.merges import MERGE_ROWS


def overriding(census: Any, row: Row, model: Any, override: Any) -> list[torch.Tensor]:
    """An attention override."""
    options = {"optimized_attention_override": override}
    return cloned(census, row, model, lambda patcher: patcher.model_options["transformer_options"].update(options))


def wrapped(census: Any, row: Row, model: Any, kind: str) -> list[torch.Tensor]:
    """A wrapper that adds a little to the first argument that is a tensor."""

    def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
        place = next((place for place, value in enumerate(args) if isinstance(value, torch.Tensor)), None)
        if place is None:
            return executor(*args, **kwargs)
        return executor(*args[:place], args[place] * 1.05, *args[place + 1 :], **kwargs)

    return cloned(census, row, model, lambda patcher: patcher.add_wrapper_with_key(kind, "census", wrapper))


def of_plain_patcher(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A patcher of ComfyUI's own class with the same module, and a deep copy of the options."""
    patcher = importlib.import_module("comfy.model_patcher").ModelPatcher
    plain = patcher(model.model, model.load_device, model.offload_device, model.size)
    plain.model_options = copy.deepcopy(model.model_options)
    return [census.sample(row, plain), sample_after(census, row, model)]


class Louder(torch.nn.Module):
    """A block with another result."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block, self.dtype = block, getattr(block, "dtype", None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return louder(self.block)(*args, **kwargs)


def replace_a_block(module: Any) -> None:
    module.double_blocks[0] = Louder(module.double_blocks[0])


def write_data(module: torch.nn.Module) -> None:
    for _name, weight in module.named_parameters():
        weight.data.copy_(torch.full(weight.shape, 0.02))


def replace_weights(module: Any) -> None:
    module.img_in.weight = torch.nn.Parameter(torch.full(module.img_in.weight.shape, 0.02), requires_grad=False)


def read_weights(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    module = model.model.diffusion_model
    first, second = module.img_in.weight, module.state_dict()["txt_in.bias"]
    read = first.to("cpu", torch.float64)
    copied = first.clone()
    copied.mul_(2.0)
    return [
        census.sample(row, model),
        read,
        copied + 0.0,
        first[2:5].sum(),
        second.detach().clone(),
        first @ torch.ones(64),
    ]


def run_a_part(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    return [census.sample(row, model), model.model.diffusion_model.img_in(torch.ones(1, 7, 64))]


def compile_elsewhere(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """torch.compile replaces the constructor of all modules."""
    torch.compile(lambda value: value + 1, backend="eager")(torch.zeros(2))
    return plain(census, row, model)


def look(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """What node packs look for in a Flux."""
    module, flux = model.model.diffusion_model, importlib.import_module("comfy.ldm.flux.model").Flux
    assert isinstance(module, flux) and type(module) is flux
    assert (module.params.hidden_size, module.patch_size, module.in_channels) == (64, 2, 64)
    assert hasattr(module, "double_blocks") and not hasattr(module, "joint_blocks")
    assert [len(module.double_blocks), len(module.single_blocks)] == [2, 3]
    assert model.model.get_dtype() == module.dtype == torch.float32
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    assert shapes["img_in.weight"] == (64, 64) and tuple(module.img_in.weight.shape) == (64, 64)
    return [torch.tensor([float(sum(map(len, shapes.values())))]), census.sample(row, model)]


def apply_after_load(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A call of the model outside of a sampling, with the LoRA of the patcher that ComfyUI has loaded."""
    adapted, found = census.adapt(row, model), []
    management = importlib.import_module("comfy.model_management")
    text, options = census.conditioning(row.model, "positive")[0]
    for patcher in (adapted, model):
        management.load_models_gpu([patcher])
        latents = torch.ones(census.latent(row)["samples"].shape)
        found.append(
            patcher.model.apply_model(latents, torch.tensor([0.5]), c_crossattn=text, y=options["pooled_output"])
        )
    assert not found[0].equal(found[1])
    return found


def late_patch(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A patch of attention."""
    patched = model.clone()
    patched.set_model_attn1_output_patch(lambda out, _options: 1.1 * out)
    return [census.sample(row, patched)]


def refusing(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """What the ranks cannot run, where the operator wants an error."""
    group = census.group
    with patch.object(group, "settings", replace(group.settings, when_not_parallel="refuse")):
        return late_patch(census, row, model)


def style(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A style model's tokens, with a bias of the attention to them."""
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randn(1, 4, 64, generator=generator)
    (positive,) = census.run(
        "StyleModelApply", conditioning=census.conditioning(row.model, "positive"), clip_vision_output=None,
        style_model=SimpleNamespace(get_cond=lambda _output: tokens), strength=0.5, strength_type="attn_bias",
    )  # fmt: skip
    return [census.sample(row, model, positive=positive)]


def replaced(census: Any, row: Row, model: Any, name: str) -> list[torch.Tensor]:
    """An object patch of a part."""
    part = Louder(model.get_model_object(name))
    return cloned(census, row, model, lambda patcher: patcher.add_object_patch(name, part))


def replace_apply_model(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A method of ComfyUI's model, around the diffusion model."""
    apply_model = model.model.apply_model
    model.model.apply_model = lambda latents, *args, **kwargs: apply_model(latents * 1.1, *args, **kwargs)
    return [census.sample(row, model)]


def hook_lora(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A LoRA of one of the two texts, and the model without it after that."""
    lora = {"lora_name": census.a_lora(row, model), "strength_model": 1.0, "strength_clip": 0.0}
    (hooks,) = census.run("CreateHookLora", **lora)
    hooked = census.sample(row, model, positive=census.hooked(row, hooks))
    return [hooked, sample_after(census, row, model)]


def hook_lora_without_room(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """ComfyUI's model takes over in the middle of the call that has the LoRA."""
    if not (remote := getattr(model, "remote", None)):
        return hook_lora(census, row, model)
    call, errors = remote.group.call, importlib.import_module("pack.worker.errors")

    def refuse_hooked(*args: Any, **kwargs: Any) -> Any:
        if remote.patcher().current_hooks:
            raise errors.NoRoom("There is no room.")
        return call(*args, **kwargs)

    with patch.object(remote.group, "call", refuse_hooked):
        return hook_lora(census, row, model)


def regional(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """Two texts, one for a part of the picture that is cut out, and one under a mask."""
    whole = census.conditioning(row.model, "positive")
    (area,) = census.run(
        "ConditioningSetArea", conditioning=whole, width=72, height=88, x=32, y=24, strength=1.0
    )  # fmt: skip
    mask = torch.zeros(1, 128, 128)
    mask[:, :, 64:] = 1
    (masked,) = census.run(
        "ConditioningSetMask", conditioning=census.a_other(row, model), mask=mask, strength=0.7,
        set_cond_area="default",
    )  # fmt: skip
    return [census.sample(row, model, positive=[*area, *masked])]


def hook_lora_by_step(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A LoRA of one text that is weaker at first, on a model with another of its own."""
    lora = {"lora_name": census.a_lora(row, model), "strength_model": 1.0, "strength_clip": 0.0}
    adapted = census.adapt(row, model, 0.3, lora["lora_name"])
    (hooks,) = census.run("CreateHookLora", **lora)
    frames: Any = None
    for start, strength in ((0.0, 0.2), (0.5, 0.7)):
        (frames,) = census.run("CreateHookKeyframe", strength_mult=strength, start_percent=start, prev_hook_kf=frames)
    (hooks,) = census.run("SetHookKeyframes", hooks=hooks, hook_kf=frames)
    hooked = census.sample(row, adapted, positive=census.hooked(row, hooks))
    return [hooked, census.sample(row, adapted), sample_after(census, row, model)]


def second_pass(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """The picture made larger, twice in a batch, and sampled again in part."""
    first = {"samples": census.sample(row, model)}
    (larger,) = census.run("LatentUpscaleBy", samples=first, upscale_method="bislerp", scale_by=1.5)
    (batch,) = census.run("RepeatLatentBatch", samples=larger, amount=2)
    with patch.object(census, "latent", lambda _row: batch):
        return [census.sample(row, model, denoise=0.5)]


def frame_by_frame(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    (sampler,) = census.run("SamplerARVideo", num_frame_per_block=1)
    return [census.custom(row, model, sampler=sampler)]


def attention_override_sage(func: Any, *args: Any, **kwargs: Any) -> Any:
    return 2 * func(*args, **kwargs)


def choosing(census: Any, row: Row, model: Any, name: str) -> list[torch.Tensor]:
    """An attention override that calls another attention function of ComfyUI's."""
    kernel = getattr(importlib.import_module("comfy.ldm.modules.attention"), name)

    def override(_func: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs)

    return overriding(census, row, model, override)


def choosing_bits(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """Whether an override that chooses a kernel leaves every bit as it is. A class that gives its attention no options
    never calls one."""
    (chosen,) = choosing(census, row, model, "attention_split")
    return [torch.tensor([float(chosen.equal(census.sample(row, model)))])]


def choosing_other_bits(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """Each kernel rounds in its own way, so other bits show that another one ran."""
    (chosen,) = choosing(census, row, model, "attention_split")
    assert not hasattr(model, "remote_module") or not chosen.equal(census.sample(row, model))
    return [chosen]


WRAPPERS = ("outer_sample", "sampler_sample", "predict_noise", "calc_cond_batch", "apply_model", "diffusion_model")


HABITS: dict[str, Row] = {
    **PACK_ROWS,
    **PATCH_ROWS,
    **ENTRY_ROWS,
    **READ_ROWS,
    **LORA_ROWS,
    **FILE_ROWS,
    **MERGE_ROWS,
    **NETWORK_HABITS,
    "attributes, isinstance, hasattr, names": habit(equal(), look),
    "a number noted on the module": habit(ignored(), changed, lambda module: setattr(module, "census_steps", 3)),
    "its _forward taken off the module": habit(ignored(), changed, lambda module: vars(module).pop("_forward", None)),
    "forward_orig": habit(
        as_stock(), changed, lambda module: setattr(module, "forward_orig", louder(module.forward_orig))
    ),
    "a block": habit(as_stock(), changed, replace_a_block),
    "a hook": habit(as_stock(), changed, DURING["a hook"]),
    "weights' data written": habit(as_stock(), changed, write_data),
    "a part of a weight written": habit(as_stock(), changed, negate_a_part),
    "weights read": habit(ignored(), read_weights),
    "a part of it run": habit(ignored(), run_a_part),
    "something compiled in ComfyUI's process": habit(ignored(), compile_elsewhere),
    "weights replaced": habit(as_stock(), changed, replace_weights),
    **{
        f"{name}, in a function around a call": habit(
            WITHOUT_CODE.get(name, as_stock()), changed_in_wrapper, DURING[name]
        )
        for name in DURING
    },
    **{
        f"{name}, in a wrapper of the module": habit(WITHOUT_CODE.get(name, as_stock()), changed_inside, DURING[name])
        for name in IN_WRAPPER
    },
    # The pack puts the method back in each step, also when ComfyUI's own model has taken over.
    **{
        f"{method} of a {model}, in a function around a call": habit(
            as_stock(model), changed_in_wrapper, in_place_of(method)
        )
        for method, model in {"_forward": "flux", "forward": "sd3-dual"}.items()
    },
    "a patcher of ComfyUI's own class": habit(ignored(), of_plain_patcher, shared="ulysses=2"),
    "a state dict that a node saves": habit(equal(), save_by_itself, dtype="fp8_e4m3fn"),
    "weights replaced, in a function around a call": habit(
        as_stock(), changed_in_wrapper, scaled("img_in.weight", "final_layer.linear.bias"), shared="ulysses=2"
    ),
    **{
        f"weights written while they are here, {name}": habit(as_stock(), written_while_here, change)
        for name, change in {
            "their data": lambda module: module.final_layer.linear.weight.data.neg_(),
            "a part of one": negate_a_part,
        }.items()
    },
    "weights written while they are here, quantised": habit(
        as_stock(), written_while_here, negate_a_quantised_weight, form="fp8"
    ),
    "a weight written and written back": habit(as_stock(), written_and_written_back),
    "a quantised weight written": habit(
        refused("writes into a quantised weight"), changed, write_a_quantised_weight, form="fp8", ours=True
    ),
    "a buffer replaced": habit(
        as_stock("sd3-dual"),
        changed,
        lambda module: setattr(module, "pos_embed", torch.full(module.pos_embed.shape, 0.3)),
    ),
    "a buffer written": habit(as_stock("sd3-dual"), changed, lambda module: module.pos_embed.mul_(-2.0)),
    "a buffer of no file written": habit(as_stock("minimax"), changed, write_numbers),
    **{f"a wrapper at {kind}": habit(equal(), wrapped, kind) for kind in WRAPPERS},
    "apply_model replaced": habit(equal(), replace_apply_model),
    "a part replaced": habit(as_stock(), replaced, "diffusion_model.img_in"),
    "CLIP vision on a text-to-video model": habit(
        ignored("wan"),
        conditioned,
        lambda: {"clip_vision_output": SimpleNamespace(penultimate_hidden_states=torch.ones(1, 257, 1280))},
    ),
    "apply_model after a load": habit(equal(), apply_after_load),
    "the model replaced": habit(as_stock(), replaced, "diffusion_model"),
    "a patch": habit(as_stock("unet"), late_patch),
    "a patch, where errors are wanted": habit(
        refused("cannot honour the model patch 'attn1_output_patch' of late_patch", "unet"), refusing, ours=True
    ),
    "an attention override that chooses a kernel of other bits": habit(ignored(), choosing_other_bits),
    "an attention override that chooses a kernel for GPUs": habit(
        ignored(),
        choosing,
        "attention_sage",
        said="A node asks for attention by sage, which runs on NVIDIA's GPUs, and the ranks compute on cpu. The ranks "
        "attend by the plan's kernel native.",
    ),
    "an attention override that its class never calls": habit(equal("pixart"), choosing_bits, steps=1),
    "an attention override that is called Sage and does something else": habit(
        as_stock(), overriding, attention_override_sage
    ),
    "a style model with a bias": habit(equal(), style),
    **CONTROLNET_HABITS,
    **H3_ROWS,
    "a video frame by frame": habit(as_stock("wan-causal"), frame_by_frame, cfg=1.0),
    "a LoRA of one text, for which the ranks lack room": habit(as_stock(), hook_lora_without_room),
    "a UNet with a mask": habit(ignored("unet"), plain, masked=True),
    "a UNet in fp8": habit(equal("unet"), plain, dtype="fp8_e4m3fn"),
    "texts of regions": habit(equal(), regional),
    **{f"a larger second pass on a {model}": habit(equal(model), second_pass) for model in ("flux", "unet")},
    "a LoRA of one text, with the rows apart": habit(equal(), hook_lora, plan={"cfg": 2}),
    "a LoRA of one text and some steps, beside another": habit(equal(), hook_lora_by_step),
}
