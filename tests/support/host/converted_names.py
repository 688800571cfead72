"""Compares ComfyUI's classes, with the weights of diffusers' by ComfyUI's names, with diffusers' own. A program: prints
JSON: by case the relative error, or what went wrong; by published model what ComfyUI takes it for."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import diffusers
import torch

from tests.support.cases.files.converted_cases import CONVERTED, ConvertedCase
from tests.support.cases.files.published_folders import PUBLISHED_FOLDERS
from tests.support.cases.references import relative_error
from tests.support.host.mounted import mount


def compare(case: ConvertedCase, converted: dict[str, torch.Tensor], model: torch.nn.Module) -> float:
    import comfy.ops

    module, _, name = f"comfy.ldm.{case.host_class}".rpartition(".")
    made = getattr(importlib.import_module(module), name)(
        **case.config, device="cpu", dtype=torch.float32, operations=comfy.ops.disable_weight_init
    )
    missing, unexpected = made.load_state_dict(converted, strict=False)
    if set(missing) - case.absent or unexpected:
        raise ValueError(f"missing: {missing}, unexpected: {unexpected}")
    latents, timestep, conditions = case.family.inputs(*case.shape)
    right = case.family.reference(model, latents, timestep, conditions)
    args, keywords = case.call(latents, timestep, conditions)
    return relative_error(made.eval()(*args, **keywords), right)


def compare_all(names: Any) -> dict[str, float | str]:
    import comfy.model_management  # noqa: F401 (before what imports it in a circle)

    found = {}
    for name in CONVERTED:
        case = CONVERTED[name]
        model = case.family.build()
        converted = names.convert_names(case.family.model_class, model.config, model.state_dict())
        try:
            found[name] = compare(case, converted, model)
        except (RuntimeError, ValueError, TypeError) as error:
            found[name] = str(error)
    return found


def detect(names: Any, model_class: str, config: dict[str, Any]) -> dict[str, Any]:
    """What ComfyUI takes the weights for, and in what they differ from those of its class."""
    import comfy.model_detection

    with torch.device("meta"):
        model = getattr(diffusers, model_class)(**config)
    converted = names.convert_names(model_class, model.config, model.state_dict())
    settings = names.read_settings(model_class, model.config)
    model_config = comfy.model_detection.model_config_from_unet(converted, "")
    if model_config is None:
        return {"class": None}
    model_config.unet_config.update(settings)
    model_config.set_inference_dtype(torch.float32, None)
    made = model_config.get_model(dict(converted), "", device=torch.device("meta")).diffusion_model
    own = {name: list(tensor.shape) for name, tensor in made.state_dict().items()}
    given = {name: list(tensor.shape) for name, tensor in model_config.process_unet_state_dict(dict(converted)).items()}
    return {
        "class": type(model_config).__name__,
        "different": {
            name: (own.get(name), given.get(name))
            for name in own.keys() | given.keys()
            if own.get(name) != given.get(name)
        },
    }


@torch.no_grad()
def main(comfyui: str) -> None:
    mount(comfyui)
    names = importlib.import_module("pack.worker.comfyui.diffusers_names")
    detected = {
        name: detect(names, model_class, config) for name, (model_class, config, _) in PUBLISHED_FOLDERS.items()
    }
    print(json.dumps({"errors": compare_all(names), "detected": detected}))


if __name__ == "__main__":
    main(sys.argv[1])
