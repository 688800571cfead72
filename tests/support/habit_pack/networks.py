"""Tiny networks that ComfyUI's nodes run inside of a model. Their file says of which class they are, and how large."""

import importlib
import json
import uuid

import comfy.model_management
import comfy.model_patcher
import comfy.ops
import comfy.utils
import torch
from comfy.ldm.lumina.controlnet import ZImage_Control
from safetensors import safe_open


class PackControl(ZImage_Control):
    """A class of the pack's own, which may do anything."""


def load_network(file):
    with safe_open(file, "pt") as opened:
        asked = opened.metadata()
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 it is no dict
    module, _, name = asked["class"].rpartition(".")
    network = getattr(importlib.import_module(module, __package__), name)(
        **json.loads(asked["config"]), operations=comfy.ops.manual_cast
    )
    network.load_state_dict(weights)
    management = comfy.model_management
    devices = management.get_torch_device(), management.unet_offload_device()
    return comfy.model_patcher.ModelPatcher(network.eval(), *devices)


class NetworkLoader:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"file": ("STRING",)}}

    RETURN_TYPES = ("MODEL_PATCH",)
    FUNCTION = "load"
    CATEGORY = "tests"

    def load(self, file):
        patcher = load_network(file)
        patcher.cached_patcher_init = (load_network, (file,))
        return (patcher,)


class Beside(torch.nn.Module):
    """A class of torch's parts, as packs write theirs."""

    def __init__(self, width, inner):
        super().__init__()
        self.down, self.up = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens):
        return self.up(torch.nn.functional.silu(self.down(self.norm(tokens))))


class BesideBlock:
    """A block with a network beside it, in the patcher that its loader gave."""

    KEY = uuid.uuid4()

    def __init__(self, patcher):
        self.patcher, self.key, self.weights = patcher, uuid.uuid4(), {self.KEY: 0.2}

    def __call__(self, given, extra):
        found = extra["original_block"](given)
        weight = self.weights[type(self).KEY] if self.key != type(self).KEY else 0.0
        weight = comfy.sampler_helpers.prepare_mask(torch.full((8, 8), weight), (1, 1, 8, 8), "cpu").mean()
        return {**found, "img": found["img"] + weight * self.patcher.model(found["img"])}


def run_beside(model, network):
    patched, management = model.clone(), comfy.model_management
    devices = management.get_torch_device(), management.unet_offload_device()
    patcher = comfy.model_patcher.ModelPatcher(network, *devices)
    management.load_models_gpu([patcher])
    patched.set_model_patch_replace(BesideBlock(patcher), "dit", "double_block", 0)
    return patched


def fill_network(network, file):
    """Its loader notes no file."""
    network.load_state_dict(comfy.utils.load_torch_file(file, safe_load=True))
    return network
