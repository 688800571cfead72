"""A node pack of the tests' own: pictures as numbers, a random state, a VAE that something has changed."""

from __future__ import annotations

import copy
import os
import types

import folder_paths
import torch
from safetensors.torch import load_file


class Node:
    FUNCTION, CATEGORY = "run", "test"

    def __init_subclass__(cls, returns, **inputs):
        """inputs: their types by name."""
        cls.RETURN_TYPES = (returns,)
        required = {name: (kind, {}) for name, kind in inputs.items()}
        cls.INPUT_TYPES = staticmethod(lambda: {"required": required})


class Pictures(Node, returns="IMAGE", name="STRING"):
    """The tensor "pictures" (frames, height, width, channels) of a file in the input folder."""

    def run(self, name):
        return (load_file(os.path.join(folder_paths.get_input_directory(), name))["pictures"],)


class Numbers(Node, returns="LATENT", pictures="IMAGE,AUDIO"):
    """Pictures, or a sound, as what Save Latent saves, which rounds nothing."""

    def run(self, pictures):
        return ({"samples": pictures["waveform"] if isinstance(pictures, dict) else pictures},)


class Seeded(Node, returns="LATENT", samples="LATENT", vae="VAE", seed="INT"):
    """The latent, and a random state for what comes next: after the VAE is made, which may draw, too."""

    @classmethod
    def IS_CHANGED(cls, **_inputs):
        return float("nan")

    def run(self, samples, vae, seed):
        torch.manual_seed(seed)
        return (samples,)


class Drawn(Node, returns="LATENT", pictures="IMAGE"):
    """What is drawn after a picture was made."""

    def run(self, pictures):
        return ({"samples": torch.cat([pictures.flatten(), torch.randn(4)])},)


def out_of_memory(*_given):
    raise torch.OutOfMemoryError


def wrap_around(layer, given, weight, bias):
    padded = torch.nn.functional.pad(given, layer._reversed_padding_repeated_twice, mode="circular")
    return torch.nn.functional.conv2d(padded, weight, bias, layer.stride)


class ChangedVAE(Node, returns="VAE", vae="VAE", how="STRING"):
    def run(self, vae, how):
        vae = copy.copy(vae)
        if how == "memory":
            vae.memory_used_decode = out_of_memory
        if how == "patch":
            vae.patcher = vae.patcher.clone()
            vae.patcher.add_patches({next(iter(vae.patcher.model.state_dict())): (torch.zeros(1),)})
        elif how == "nameless":
            vae.patcher = vae.patcher.clone()
            vae.patcher.cached_patcher_init = None
        elif how != "memory":
            vae.first_stage_model = copy.deepcopy(vae.first_stage_model)
        if how == "hook":
            vae.first_stage_model.decoder.register_forward_hook(lambda _part, _given, found: 0.5 * found)
        if how == "method":
            decode = vae.first_stage_model.decode
            vae.first_stage_model.decode = lambda *given: 0.5 * decode(*given)
        if how == "convolution":  # as packs do that make pictures without seams
            for part in vae.first_stage_model.modules():
                if isinstance(part, torch.nn.Conv2d):
                    part._conv_forward = types.MethodType(wrap_around, part)
        if how == "weights":
            for weight in vae.first_stage_model.parameters():
                weight.data *= 0.9
        return (vae,)


NODE_CLASS_MAPPINGS = {f"Test_{each.__name__}": each for each in (Pictures, Numbers, Seeded, Drawn, ChangedVAE)}
