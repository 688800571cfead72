"""Test-only node pack: CONDITIONING from a file, a LATENT of any shape, a foreign MODEL; pictures as numbers, a random
state, a VAE that something has changed; nodes that wait; MODELs as other packs' loaders make them, which name no file.
"""

from __future__ import annotations

import copy
import json
import os
import time
import urllib.request
from types import MethodType, SimpleNamespace

import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.utils
import folder_paths
import gguf
import torch
from comfy.nested_tensor import NestedTensor
from safetensors.torch import load_file
from server import PromptServer

PLAIN = (None, gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)


class Node:
    FUNCTION, CATEGORY = "run", "test"

    def __init_subclass__(cls, returns, **inputs):
        """inputs: their types by name; of a class without INPUT_TYPES of its own."""
        cls.RETURN_TYPES = (returns,)
        required = {name: (kind, {}) for name, kind in inputs.items()}
        if "INPUT_TYPES" not in vars(cls):
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


class Wait(Node, returns="*", value="*", seconds="FLOAT"):
    """Conditioning or a MODEL that takes its time."""

    def run(self, value, seconds):
        time.sleep(seconds)
        return (value,)


class WaitForRanks(Node, returns="MODEL", model="MODEL", group="INT"):
    """Goes on once the ranks of a group start or run. Raises TimeoutError if they do not."""

    def run(self, model, group):
        url = f"http://127.0.0.1:{PromptServer.instance.port}/paralleldit/status?group={group}"
        for _ in range(300):
            with urllib.request.urlopen(url) as answer:
                if json.load(answer)["state"] in ("starting", "ready"):
                    return (model,)
            time.sleep(0.1)
        raise TimeoutError(f"No ranks of group {group} start.")


class LoadStateDict(Node, returns="MODEL"):
    """Loads a file as KJNodes' loader does: by its tensors."""

    @classmethod
    def INPUT_TYPES(cls):
        files = folder_paths.get_filename_list("diffusion_models")
        return {"required": {"model_name": (files,)}, "optional": {"dtype": ("STRING", {})}}

    def run(self, model_name, dtype=""):
        path = folder_paths.get_full_path_or_raise("diffusion_models", model_name)
        weights, metadata = comfy.utils.load_torch_file(path, return_metadata=True)
        options = {"dtype": getattr(torch, dtype)} if dtype else {}
        return (comfy.sd.load_diffusion_model_state_dict(weights, model_options=options, metadata=metadata),)


class WriteOver(Node, returns="MODEL", model="MODEL", amount="FLOAT"):
    """Adds to the middle rows of the model's large weights, in place: their first and last numbers stay."""

    def run(self, model, amount):
        generator = torch.Generator().manual_seed(3)
        for weight in model.model.diffusion_model.parameters():
            if weight.numel() < 1 << 12:
                continue
            rows = weight.data[len(weight) // 3 : len(weight) - len(weight) // 3]
            rows += amount * torch.randn(rows.shape, generator=generator).to(rows)
        return (model,)


class GGMLTensor(torch.Tensor):
    """A weight in GGUF's blocks, as bytes. It says the weight's shape as its own."""

    def __new__(cls, data, **_given):
        return super().__new__(cls, data)

    def __init__(self, _data, *, tensor_type, tensor_shape, patches=()):
        super().__init__()
        self.tensor_type, self.tensor_shape, self.patches = tensor_type, tensor_shape, [*patches]

    def to(self, *given, **options):
        found = super().to(*given, **options)
        found.tensor_type, found.tensor_shape, found.patches = self.tensor_type, self.tensor_shape, [*self.patches]
        return found

    def clone(self, *_given, **_options):
        return self

    def detach(self):
        return self

    @property
    def shape(self):
        return getattr(self, "tensor_shape", None) or self.size()


def unpack(weight, dtype):
    """Returns a weight's numbers."""
    if weight is None:
        return None
    kind, data = getattr(weight, "tensor_type", None), weight.as_subclass(torch.Tensor)
    if kind in PLAIN:
        return data.to(dtype)
    return torch.from_numpy(gguf.dequantize(data.numpy(), kind)).view(weight.shape).to(dtype)


class GGMLLayer(torch.nn.Module):
    comfy_cast_weights = True
    dequant_dtype = patch_dtype = None

    def is_packed(self):
        return any(getattr(each, "tensor_type", None) not in PLAIN for each in (self.weight, self.bias))

    def _load_from_state_dict(self, state, prefix, metadata, strict, missing, unexpected, errors):
        for name in ("weight", "bias"):
            if (value := state.get(prefix + name)) is not None:
                setattr(self, name, torch.nn.Parameter(value, requires_grad=False))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        if not self.is_packed():
            return super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in (("weight", self.weight), ("bias", self.bias)):
            if value is not None:
                destination[prefix + name] = torch.zeros(value.shape, device="meta")

    def forward_comfy_cast_weights(self, input, *_given, **_options):
        weight = unpack(self.weight, input.dtype)
        for patches, key in getattr(self.weight, "patches", ()):
            weight = comfy.lora.calculate_weight(patches, weight, key)
        return torch.nn.functional.linear(input, weight, unpack(self.bias, input.dtype))


class GGMLOps(comfy.ops.manual_cast):
    class Linear(GGMLLayer, comfy.ops.manual_cast.Linear):
        def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features, self.weight, self.bias = in_features, out_features, None, None


class GGUFModelPatcher(comfy.model_patcher.ModelPatcher):
    patch_on_device = False

    def patch_weight_to_device(self, key, device_to=None, inplace_update=False):
        weight = comfy.utils.get_attr(self.model, key)
        if key in self.patches and getattr(weight, "tensor_type", None) not in PLAIN:
            weight.patches = [(self.patches[key], key)]
        else:
            super().patch_weight_to_device(key, device_to, inplace_update)

    def unpatch_model(self, device_to=None, unpatch_weights=True):
        if unpatch_weights:
            for weight in self.model.parameters():
                if getattr(weight, "patches", None):
                    weight.patches = []
        return super().unpatch_model(device_to, unpatch_weights)

    def clone(self, *given, **options):
        own, self.__class__ = self.__class__, GGUFModelPatcher
        found = super().clone(*given, **options)
        self.__class__ = own
        return found


class LoadGGUF(Node, returns="MODEL", unet_name="STRING"):
    """Loads a GGUF file as ComfyUI-GGUF does: with layers, tensors and a patcher of its own."""

    def run(self, unet_name):
        weights = {}
        reader = gguf.GGUFReader(folder_paths.get_full_path_or_raise("diffusion_models", unet_name), "c")
        for each in reader.tensors:
            field = reader.get_field(f"comfy.gguf.orig_shape.{each.name}")
            shape = torch.Size(field.contents() if field else reversed(each.shape.tolist()))
            data = torch.from_numpy(each.data)
            data = data.view(shape) if each.tensor_type in PLAIN else data
            weight = GGMLTensor(data, tensor_type=each.tensor_type, tensor_shape=shape)
            is_layers = len(shape) == 2 and each.name.endswith(".weight")  # converters pack these alone
            weights[each.name] = weight if is_layers else unpack(weight, torch.float32)
        text = [gguf.GGUFValueType.STRING]
        texts = {name: field.contents() for name, field in reader.fields.items() if field.types == text}
        options = {"custom_operations": GGMLOps}
        model = comfy.sd.load_diffusion_model_state_dict(weights, model_options=options, metadata=texts)
        return (GGUFModelPatcher.clone(model),)


# As ComfyUI-GGUF does, whose folders are those of diffusion_models, too.
folder_paths.folder_names_and_paths["unet_gguf"] = ([os.path.join(folder_paths.models_dir, "unet_gguf")], {".gguf"})

NODE_CLASS_MAPPINGS = {f"Test_{each.__name__}": each for each in Node.__subclasses__()}
