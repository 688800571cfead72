"""Test-only node pack: CONDITIONING from a file, a LATENT of any shape, a foreign MODEL; pictures as numbers, a random
state, a VAE that something has changed."""

from __future__ import annotations

import copy
import os
from types import MethodType, SimpleNamespace

import folder_paths
import torch
from comfy.nested_tensor import NestedTensor
from safetensors.torch import load_file


class Node:
    FUNCTION, CATEGORY = "run", "test"

    def __init_subclass__(cls, returns, **inputs):
        """inputs: their types by name."""
        cls.RETURN_TYPES = (returns,)
        required = {name: (kind, {}) for name, kind in inputs.items()}
        cls.INPUT_TYPES = staticmethod(lambda: {"required": required})


class LoadConditioning(Node, returns="CONDITIONING", name="STRING"):
    """Tensors "conditioning" and "pooled", and others by the names of options.

    Those of "list" options are in any order, those of "string" options are bytes. Those of "unclip" options are
    embeddings of images.
    """

    @classmethod
    def IS_CHANGED(cls, name):
        return os.stat(os.path.join(folder_paths.get_input_directory(), name)).st_mtime_ns

    def run(self, name):
        tensors = load_file(os.path.join(folder_paths.get_input_directory(), name))
        text = tensors.pop("conditioning")
        options = {"pooled_output": tensors.pop("pooled", None)}
        for name, value in tensors.items():
            *kind, name = name.split()
            if "image" in kind:
                value = SimpleNamespace(penultimate_hidden_states=value)
            elif "unclip" in kind:
                image = SimpleNamespace(image_embeds=value)
                value = [{"clip_vision_output": image, "strength": 1.0, "noise_augmentation": 0.1}]
            elif "list" in kind:
                value = [*options.get(name, []), value]
            elif "string" in kind:
                value = bytes(value.tolist()).decode()
            elif value.ndim == 0:
                value = value.item()
            options[name] = value
        return ([[text, {name: value for name, value in options.items() if value is not None}]],)


class NoConditioning(Node, returns="CONDITIONING"):
    def run(self):
        return ([],)


class EmptyLatent(Node, returns="LATENT", shape="STRING"):
    def run(self, shape):
        parts = [torch.zeros([int(size) for size in part.split()]) for part in shape.split("|")]
        return ({"samples": parts[0] if len(parts) == 1 else NestedTensor(parts)},)


class FirstFrameMask(Node, returns="LATENT", samples="LATENT"):
    def run(self, samples):
        mask = torch.ones_like(samples["samples"][:, :1])
        mask[:, :, 0] = 0
        return ({**samples, "noise_mask": mask},)


class Zeros(torch.nn.Module):
    dtype = torch.float32

    def forward(self, x, timesteps, **_options):
        return torch.zeros_like(x)


class ForeignModel(Node, returns="MODEL", model="MODEL"):
    def run(self, model):
        patcher = model.clone()
        patcher.model = copy.copy(model.model)
        patcher.model._modules = {**model.model._modules, "diffusion_model": Zeros()}
        return (patcher,)


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
                    part._conv_forward = MethodType(wrap_around, part)
        if how == "weights":
            for weight in vae.first_stage_model.parameters():
                weight.data *= 0.9
        return (vae,)


# As ComfyUI-GGUF does, whose folders are those of diffusion_models, too.
folder_paths.folder_names_and_paths["unet_gguf"] = ([os.path.join(folder_paths.models_dir, "unet_gguf")], {".gguf"})

NODE_CLASS_MAPPINGS = {f"Test_{each.__name__}": each for each in Node.__subclasses__()}
