"""LoRAs that change what ComfyUI reads from the patched module, and other kinds of patches."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file

from tests.support.census.changes import sample_after, wrapped
from tests.support.census.rows import Row, as_stock, equal, habit
from tests.support.census.weights.merges import OTHER, is_ours, other, write_other

RANK = 4
KEY = "diffusion_model.img_in.weight"
LAYERS = ("double_blocks.0.img_attn.qkv", "single_blocks.0.linear1")


def control_lora(census: Any, row: Row) -> str:
    """A LoRA in the layout of Flux' Canny and Depth tools."""
    weights = load_file(census.base / "models" / "diffusion_models" / f"{row.model}.safetensors")
    generator = torch.Generator().manual_seed(5)
    found = {}
    for layer in ("img_in", *LAYERS):
        rows, columns = weights[f"{layer}.weight"].shape
        columns *= 2 if layer == "img_in" else 1
        found[f"{layer}.lora_A.weight"] = 0.3 * torch.randn(RANK, columns, generator=generator)
        found[f"{layer}.lora_B.weight"] = 0.3 * torch.randn(rows, RANK, generator=generator)
        found[f"{layer}.lora_B.bias"] = 0.1 * torch.randn(rows, generator=generator)
    for name, weight in weights.items():
        if "_norm." in name:  # newer ComfyUI names them weight
            scale = name.rpartition(".")[0] + ".scale"
            found[scale] = 1 + 0.2 * torch.randn(weight.shape, generator=generator)
    return census.written("loras", found)


def reading(model: Any, found: list[torch.Tensor]) -> Any:
    """The model with a wrapper that reads shapes and values of the patched module, and of its state dict."""

    def wrapper(apply_model: Any, given: dict[str, Any]) -> Any:
        module = model.model.diffusion_model
        weight, norm = module.img_in.weight, module.double_blocks[0].img_attn.norm.key_norm.weight
        read = module.state_dict()["img_in.weight"]
        found.extend([torch.tensor(weight.shape) + 0.0, weight + 0.0, weight[:, -3:].sum() + 0.0, norm.clone() + 0.0])
        found.extend([torch.tensor(read.shape) + 0.0, read + 0.0, module.txt_in.weight + 0.0])
        return apply_model(given["input"], given["timestep"], **given["c"])

    return wrapped(model, wrapper)


def controlled(census: Any, row: Row, model: Any, has_latent: bool) -> list[torch.Tensor]:
    """The latents with such a LoRA, what nodes read of its weights, and the model without it before and after that."""
    latent = torch.randn(1, 16, 14, 22, generator=torch.Generator().manual_seed(3))
    texts = census.texts_with(row, lambda: {"concat_latent_image": latent}) if has_latent else {}
    adapted = census.adapt(row, model, 0.9, control_lora(census, row))
    read: list[torch.Tensor] = []
    copied = model.model.diffusion_model.img_in.weight.clone()
    found = [census.sample(row, model, **texts), census.sample(row, reading(adapted, read), **texts)]
    keys = adapted.get_key_patches("diffusion_model.img_in.")
    found += [copied + 0.0, keys[KEY][0][0] + 0.0, torch.tensor(float(len(keys[KEY])))]
    found += [census.sample(row, model, **texts), census.sample(row, adapted)]
    return [found[1], *found, *read, sample_after(census, row, model)]


def widened(census: Any, row: Row, model: Any, layer: str) -> list[torch.Tensor]:
    """A LoRA that widens a layer to 20 inputs more, and the model without it."""
    weight = model.model.diffusion_model.get_parameter(f"{layer}.weight")
    rows, columns, *sizes = weight.shape
    generator, shape = torch.Generator().manual_seed(6), (rows, columns + 20, *sizes)
    name = f"diffusion_model.{layer}"
    lora = {
        f"{name}.lora_A.weight": 0.3 * torch.randn(RANK, *shape[1:], generator=generator),
        f"{name}.lora_B.weight": 0.3 * torch.randn(rows, RANK, *[1] * len(sizes), generator=generator),
        f"{name}.reshape_weight": torch.tensor(shape),
    }
    lora_name, latent = census.written("loras", lora), torch.ones(1, 16, *census.latent(row)["samples"].shape[2:])
    adapted = census.adapt(row, model, 0.8, lora_name)
    positive = census.texts_with(row, lambda: {"concat_latent_image": latent})["positive"]
    return [census.sample(row, adapted, positive=positive), sample_after(census, row, model)]


def model_as_lora(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """Another model's difference to this one for one of the two texts, beside a LoRA of the model's own, and the model
    without both."""
    adapted, positive = census.adapt(row, model, 0.4), with_another(census, row)
    found = [census.sample(row, each, positive=positive) for each in (model, adapted)]
    return [*found, census.sample(row, adapted), sample_after(census, row, model)]


def model_as_lora_alone(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """In fp8, stock rounds a model's own LoRA, and then a hook's."""
    return [census.sample(row, model, positive=with_another(census, row)), sample_after(census, row, model)]


def with_another(census: Any, row: Row) -> Any:
    """A text with another model as LoRA."""
    sd = importlib.import_module("comfy.sd")
    if not (census.base / "models" / "diffusion_models" / f"{other(row, OTHER)}.safetensors").exists():
        write_other(census, row, other(row, OTHER))
    source = census.load(replace(row, model=other(row, OTHER)), False)
    with patch.object(sd, "load_checkpoint_guess_config", lambda *_args, **_options: (source, None, None)):
        (hooks,) = census.run("CreateHookModelAsLoraModelOnly", ckpt_name="another", strength_model=0.7)
    return census.hooked(row, hooks)


def adapter_of_a_pack() -> Any:
    """A change of a weight by a pack's own class."""
    weight_adapter = importlib.import_module("comfy.weight_adapter")

    class Adding(weight_adapter.WeightAdapterBase):
        name = "adding"

        def __init__(self, loaded_keys: set[str], weights: Any) -> None:
            self.loaded_keys, self.weights = loaded_keys, weights

        def calculate_weight(self, weight: torch.Tensor, _key: str, strength: float, *_args: Any) -> torch.Tensor:
            return weight + strength * self.weights[0]

    return Adding(set(), (0.05 * torch.randn(64, 64, generator=torch.Generator().manual_seed(8)),))


def patched(census: Any, row: Row, model: Any, make: Any, why: str) -> list[torch.Tensor]:
    """A patch that ranks do not know, and the model without it."""
    adapted = model.clone()
    adapted.add_patches({KEY: make()}, 0.7)
    found = [census.sample(row, adapted)]
    assert not is_ours(model) or why in census.why[0], census.why
    found.append(sample_after(census, row, model))
    assert not is_ours(model) or not model.remote_module.stock.is_active, "the ranks should have it again"
    return found


PLANS: dict[str, dict[str, Any]] = {"tokens": {"ulysses": 2}, "rows": {"cfg": 2}}
LORA_ROWS: dict[str, Row] = {
    "a LoRA that widens the first layer, with a control latent": habit(equal(), controlled, True),
    "a LoRA that widens the first layer, without one": habit(equal(), controlled, False, plan={"cfg": 2}),
    **{
        f"a model as LoRA of one text, by {name}": habit(equal(), model_as_lora, plan=plan)
        for name, plan in PLANS.items()
    },
    # Hooks change also what ComfyUI does not patch otherwise: a table of positions, and weights of parts with parts.
    "a model as LoRA of one text, on sd35": habit(as_stock("sd35"), model_as_lora),
    "a model as LoRA of one text, on wan": habit(as_stock("wan"), model_as_lora),
    "a LoRA that widens the first layer, on wan": habit(equal("wan"), widened, "patch_embedding"),
    "a model as LoRA of one text, in fp8": habit(equal(), model_as_lora_alone, dtype="fp8_e4m3fn"),
    "an adapter of a pack": habit(as_stock(), patched, adapter_of_a_pack, "Adding"),
    "a kind of patch that nobody knows": habit(
        as_stock(), patched, lambda: ("census", (torch.ones(64, 64),)), "census", ignored=True
    ),
}
