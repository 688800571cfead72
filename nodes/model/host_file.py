"""A model file that ComfyUI's own class runs: what ComfyUI takes it for, without reading its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import comfy.cli_args
import comfy.model_base
import torch

from ...parallel_backend.errors import ModelFileError
from ...parallel_backend.plan import ParallelPlan
from ...worker.comfyui.model import META, build_empty, choose_dtypes, detect, dtype_name, load_weights
from ...worker.comfyui.source import HostSource

SHAREABLE = "use_pytorch_cross_attention"
# ComfyUI's arguments for how it attends.
ATTENTION = (
    SHAREABLE,
    *("use_split_cross_attention", "use_quad_cross_attention", "use_sage_attention", "use_flash_attention"),
    *("disable_xformers", "force_upcast_attention", "dont_upcast_attention"),
)


@dataclass(frozen=True)
class HostFile:
    """path: of the file. model: ComfyUI's, its diffusion model on the meta device. dtype, cast: see `choose_dtypes`.

    weight_bytes: of the weights in the file.
    """

    path: Path
    model: comfy.model_base.BaseModel
    dtype: torch.dtype | None
    cast: torch.dtype | None
    weight_bytes: int

    @property
    def module(self) -> torch.nn.Module:
        return self.model.diffusion_model

    @property
    def model_class(self) -> str:
        return type(self.module).__name__

    def source(self, plan: ParallelPlan, on_cpu: bool) -> HostSource:
        """What the ranks load, with those of ComfyUI's arguments that change what is computed.

        Tokens can be shared where torch computes attention; one rank alone does as ComfyUI.
        """
        own = comfy.cli_args.args
        arguments = [*(["--cpu"] if on_cpu else [])]
        chosen = [SHAREABLE] if plan.world_size > 1 else [name for name in ATTENTION if getattr(own, name, False)]
        arguments += [f"--{name.replace('_', '-')}" for name in chosen]
        if features := sorted(feature.value for feature in own.fast):
            arguments += ["--fast", *features]
        return HostSource(
            comfyui=str(Path(comfy.model_base.__file__).resolve().parents[1]),
            arguments=tuple(arguments),
            file=str(self.path),
            model_class=self.model_class,
            dtype=dtype_name(self.dtype),
            cast=dtype_name(self.cast),
        )


def describe_host_file(path: Path, dtype: torch.dtype | None = None) -> HostFile | None:
    """What ComfyUI detects in a file; None where it knows no such diffusion model. dtype: instead of its own choice.

    Raises ModelFileError for weights that do not fit what it is taken for.
    """
    try:
        config, weights, beside = detect(path)
    except (KeyError, RuntimeError):  # some names and shapes of a known model without the rest of it
        return None
    if config is None:
        return None
    weight_bytes = sum(tensor.nbytes for tensor in weights.values())
    chosen, cast = choose_dtypes(config, weights, dtype)
    model = build_empty(config, weights, beside, chosen, cast)
    # What nodes read off the model itself: buffers of its own, such as SeedVR2's texts.
    read = {name for name, _ in model.diffusion_model.named_buffers(recurse=False)}
    # A quantised layer has its weight, by which nodes ask for changes of it, only once it is loaded.
    try:
        load_weights(
            model,
            {name: one if is_note(name) or name in read else one.to(META) for name, one in weights.items()},
        )
    except RuntimeError as error:
        raise ModelFileError(
            f"ComfyUI takes {path.name} for its {type(model.diffusion_model).__name__}, and the weights do not fit it: "
            f"{error}",
            "Download it again.",
        ) from error
    return HostFile(path, model, chosen, cast, weight_bytes)


def is_note(name: str) -> bool:
    """Whether a tensor is what a file says of a layer, in words."""
    return name.endswith(".comfy_quant")
