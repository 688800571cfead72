"""Tiny networks that ComfyUI's nodes run inside of a model. Their file says of which class they are, and how large."""

import importlib
import json

import comfy.model_management
import comfy.model_patcher
import comfy.ops
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
