"""Describes the file of a model that ComfyUI's own class runs, as ComfyUI detects it. It reads no weights."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path

import comfy.cli_args
import comfy.model_base
import comfy.model_patcher
import folder_paths
import torch
from comfy.ldm.modules import attention

from ...parallel_backend.errors import ModelFileError
from ...parallel_backend.weights.loading import DTYPES
from ...parallel_backend.weights.sizes import WeightSizes, weight_sizes_of
from ...worker.comfyui.model import (
    META,
    Weights,
    build,
    cast_weights,
    choose_dtypes,
    detect,
    dtype_name,
    is_gguf,
    load_weights,
)
from ...worker.comfyui.source import HostSource, weight_files
from ...worker.wire.file_marks import mark_files
from ..costs.plans import ModelCosts
from ..inside.references import COMFYUI

PICKLE_SUFFIXES = (".ckpt", ".pt", ".pt2", ".bin", ".pth", ".pkl")
DETECTORS = ("RT_DETR_v4", "SAM3", "SAM31", "DepthAnything3")  # of ComfyUI's supported models
SHAREABLE = "use_pytorch_cross_attention"
# ComfyUI's arguments that choose the attention.
ATTENTION = (
    SHAREABLE,
    *("use_split_cross_attention", "use_quad_cross_attention", "use_sage_attention", "use_flash_attention"),
    "use_ck_attention",
    *("disable_xformers", "force_upcast_attention", "dont_upcast_attention"),
)
# ComfyUI's other arguments that change the result.
RESULT = (
    *("deterministic", "force_channels_last", "supports_fp8_compute"),
    *("enable_triton_backend", "disable_triton_backend"),
)
# ComfyUI's arguments that choose how much of a model is on its device.
MEMORY = (
    *("gpu_only", "highvram", "lowvram", "novram", "disable_smart_memory"),
    *("disable_async_offload", "disable_pinned_memory"),
)
MEMORY_SIZES = ("reserve_vram", "async_offload")


# By the names of the stock Load Diffusion Model node, as far as it has them: the dtype that weights are cast to, and
# whether fp8 weights are multiplied as they are. Without a dtype, ComfyUI chooses.
WEIGHT_DTYPES: dict[str, tuple[torch.dtype | None, bool]] = {
    "default": (None, False),
    "fp8_e4m3fn": (torch.float8_e4m3fn, False),
    "fp8_e4m3fn_fast": (torch.float8_e4m3fn, True),
    "fp8_e5m2": (torch.float8_e5m2, False),
    **{name: (dtype, False) for name, dtype in DTYPES.items()},
}


@dataclass(frozen=True)
class HostFile:
    """source: that the ranks load, but for ComfyUI's arguments.
    model: ComfyUI's model, with its diffusion model on the meta device.
    sizes: of its weights as loaded."""

    source: HostSource
    model: comfy.model_base.BaseModel
    sizes: WeightSizes

    @property
    def module(self) -> torch.nn.Module:
        return self.model.diffusion_model

    @functools.cached_property
    def costs(self) -> ModelCosts:
        """The costs of its plans. They have a copy of the model: node packs change the model during samplings, and the
        plan may not depend on that."""
        config = self.model.model_config  # has any attribute, which misleads `copy`; nobody changes it
        model = copy.deepcopy(self.model, {id(config): config})
        return ModelCosts(model, self.sizes)


def list_rank_arguments(shares: bool, on_cpu: bool) -> tuple[str, ...]:
    """Returns those of ComfyUI's arguments that change the result of the ranks, or where they keep weights. shares:
    whether the ranks may share tokens, which they can if torch computes attention. Else they attend as ComfyUI does."""
    own = comfy.cli_args.args
    arguments = [*(["--cpu"] if on_cpu else [])]
    chosen = [name for name in ATTENTION if getattr(own, name, False)]
    is_torchs = not on_cpu and attention.optimized_attention is attention.attention_pytorch
    if shares or is_torchs and not chosen:  # one name for all, because ranks with other arguments would have to restart
        chosen = [SHAREABLE]
    chosen += [name for name in RESULT if getattr(own, name, False)]
    chosen += [] if on_cpu else [name for name in MEMORY if getattr(own, name, False)]
    arguments += [format_flag(name) for name in chosen]
    for name in () if on_cpu else MEMORY_SIZES:
        if (size := getattr(own, name, None)) is not None:
            arguments += [format_flag(name), str(size)]
    if features := sorted(feature.value for feature in own.fast):
        arguments += ["--fast", *features]
    return tuple(arguments)


def format_flag(name: str) -> str:
    """Returns an argument of ComfyUI's command line by its Python name."""
    return f"--{name.replace('_', '-')}"


def describe_host_file(
    path: Path, dtype: torch.dtype | None = None, fast_fp8: bool = False, detected: str = ""
) -> HostFile:
    """Returns the model that ComfyUI detects in a file, or that of a class-conditional DiT's folder. dtype: of its
    weights; None for ComfyUI's choice. fast_fp8, detected: see HostSource. Raises ModelFileError if the file is
    broken, if ComfyUI finds no model in it or one that is not sampled from, or if its weights do not fit the detected
    model."""
    mark = mark_files(weight_files(path))
    try:
        config, weights, others, _ = detect(path, detected)
    except ModelFileError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if path.is_dir():
            raise wrong_config_error(path, error) from error
        config, weights, others = None, {}, {}  # some names and shapes of a known model, without the rest
    if config is None:
        raise unknown_model_error(path)
    if type(config).__name__ in DETECTORS:
        raise ModelFileError(
            f"{path.name} holds a detector ({type(config).__name__}), which has no steps that ranks could share."
        )
    chosen, cast = choose_dtypes(config, weights, dtype)
    try:
        model = build(config, weights, others, chosen, cast, META, fast_fp8)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if path.is_dir():
            raise wrong_config_error(path, error) from error
        raise
    fill_module(model, weights, path.name, cast or chosen)
    source = HostSource(
        comfyui=str(COMFYUI),
        arguments=(),
        file=str(path),
        model_class=type(model.diffusion_model).__name__,
        dtype=dtype_name(chosen),
        cast=dtype_name(cast),
        fast_fp8=fast_fp8,
        keeps_small=has_dynamic_vram(),
        packs=tuple(folder_paths.get_folder_paths("custom_nodes")),
        mark=mark,
        detected=detected,
    )
    return HostFile(source, model, weight_sizes_of(model.diffusion_model))


def fill_module(model: comfy.model_base.BaseModel, weights: Weights, file: str, dtype: torch.dtype | None) -> None:
    """Gives a model the weights of a file, without numbers. dtype: that it computes in; None for each weight's own.
    Raises ModelFileError if they do not fit the model."""
    # Nodes read some of the model's own buffers, such as SeedVR2's texts.
    read = {name for name, _ in model.diffusion_model.named_buffers(recurse=False)}
    # Nodes change a quantised layer by its weight, which the layer has only after it was loaded.
    try:
        seen = {name: strip_tensor(name, one, name in read, dtype) for name, one in weights.items()}
        dtypes = load_weights(model, seen, has_dynamic_vram(), file)
        cast_weights(model.diffusion_model, dtypes)
    except RuntimeError as error:
        first, *more = str(error).split("\n\t")[1:] or [str(error)]  # one line per weight
        raise ModelFileError(
            f"ComfyUI detects {file} as its {type(model.diffusion_model).__name__}, but the weights do not fit: "
            f"{first}{f' And {len(more)} more.' if more else ''}",
            "Download it again.",
        ) from error


def wrong_config_error(folder: Path, error: Exception) -> ModelFileError:
    """Returns the error for a folder of whose config no model can be made."""
    return ModelFileError(
        f"No model can be made of the config of {folder} ({type(error).__name__}: {error}).",
        "Download the model again.",
    )


def unknown_model_error(path: Path) -> ModelFileError:
    """Returns the error for a file without a diffusion model that ComfyUI knows. Many GGUF files are text encoders."""
    kind = ""
    if is_gguf(path):
        from ...worker.comfyui.gguf_file import ARCHITECTURE, read_gguf

        kind = f" (architecture {read_gguf(path)[1].get(ARCHITECTURE) or 'unknown'!r})"
    return ModelFileError(
        f"{path.name} is not a diffusion model that ComfyUI knows{kind}.",
        "Choose a diffusion model, or a checkpoint that has one; text encoders and VAEs have nodes of their own.",
    )


def has_dynamic_vram() -> bool:
    """Whether ComfyUI's own loader uses DynamicVRAM, which it does on NVIDIA's cards."""
    return comfy.model_patcher.CoreModelPatcher is not comfy.model_patcher.ModelPatcher


def strip_tensor(name: str, tensor: torch.Tensor, is_read: bool, dtype: torch.dtype | None) -> torch.Tensor:
    """Returns a tensor of a file without its numbers, as ComfyUI's process needs it. Tensors keep their numbers if
    nodes read them, or if they say how a layer is stored."""
    if is_read:
        return tensor.to(dtype or tensor.dtype, copy=True)
    return tensor if name.endswith(".comfy_quant") else tensor.to(META)
