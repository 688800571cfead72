"""Test-only: nodes that make a MODEL as other packs' loaders do, which name no file, and one that changes a model."""

import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.utils
import folder_paths
import gguf
import torch

PLAIN = (None, gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)


class LoadStateDict:
    """Loads a file as KJNodes' loader does: by its tensors."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        files = folder_paths.get_filename_list("diffusion_models")
        return {"required": {"model_name": (files,)}, "optional": {"dtype": ("STRING", {})}}

    def load(self, model_name, dtype=""):
        path = folder_paths.get_full_path_or_raise("diffusion_models", model_name)
        weights, metadata = comfy.utils.load_torch_file(path, return_metadata=True)
        options = {"dtype": getattr(torch, dtype)} if dtype else {}
        return (comfy.sd.load_diffusion_model_state_dict(weights, model_options=options, metadata=metadata),)


class WriteOver:
    """Adds to the middle rows of the model's large weights, in place: their first and last numbers stay."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "change"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "amount": ("FLOAT", {"default": 0.05})}}

    def change(self, model, amount):
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


class LoadGGUF:
    """Loads a GGUF file as ComfyUI-GGUF does: with layers, tensors and a patcher of its own."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"
    CATEGORY = "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"unet_name": ("STRING", {})}}

    def load(self, unet_name):
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


NODE_CLASS_MAPPINGS = {"Test_LoadStateDict": LoadStateDict, "Test_LoadGGUF": LoadGGUF, "Test_WriteOver": WriteOver}
