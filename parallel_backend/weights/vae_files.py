"""Loads an AutoencoderKL from a VAE file, a checkpoint that holds one, or a diffusers folder.

A file says what it is by its names and shapes; nothing is looked up elsewhere. Two layouts are known: diffusers' own
names, and the original ones of latent diffusion (https://github.com/CompVis/latent-diffusion), in which SD, SDXL, SD3
and Flux VAEs are published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelFileError, is_out_of_memory
from .loading import Check, ModelSource, build_transformer, go_on, loaded_dtype

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

PREFIXES = ("first_stage_model.", "vae.", "")
# No file tells the number of groups; all VAEs of this class that are published have this.
NORM_GROUPS = 32
PICKLE_SUFFIXES = (".ckpt", ".pt", ".pt2", ".bin", ".pth", ".pkl")
# Autoencoders that are taken for this one, by a name that only they have.
OTHERS = {
    "taesd_decoder.1.weight": "a TAESD, a small approximation",
    "bn.running_mean": "Flux 2's VAE, whose latents are normed and packed",
    "vquantizer.codebook.weight": "Stable Cascade's VQGAN",
    "decoder.mid.block_1.mix_factor": "Stable Video Diffusion's temporal VAE",
}
PARTS = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")
# Names of attention in files from before diffusers 0.17.
OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Layout:
    """Where a layout of names has what tells the config. down: a pattern of a resnet's level and index.

    down_resnet, down_conv: templates of a level's resnet and of the convolution to the next level.
    """

    down: str
    down_resnet: str
    down_conv: str
    mid_attention: str

    def levels(self, shapes: Shapes) -> int:
        return len({found[1] for name in shapes if (found := re.match(self.down, name))})


LDM = Layout(
    down=r"encoder\.down\.(\d+)\.block\.(\d+)\.",
    down_resnet="encoder.down.{}.block.{}.conv1.weight",
    down_conv="encoder.down.{}.downsample.conv.weight",
    mid_attention="decoder.mid.attn_1.q.weight",
)
DIFFUSERS = Layout(
    down=r"encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.",
    down_resnet="encoder.down_blocks.{}.resnets.{}.conv1.weight",
    down_conv="encoder.down_blocks.{}.downsamplers.0.conv.weight",
    mid_attention="decoder.mid_block.attentions.0.to_q.weight",
)


@dataclass(frozen=True)
class VAEDescription:
    """An AutoencoderKL on disk, by its headers.

    config: of the diffusers class. files: safetensors that together hold the weights. prefix: of its names there.
    original: whether the names are latent diffusion's own.
    """

    config: dict[str, Any]
    files: tuple[str, ...]
    prefix: str = ""
    original: bool = False


def describe_vae(path: str) -> VAEDescription:
    """What the VAE at `path` is, from names and shapes, or a folder's config.json; no weight is read.

    path: a safetensors file, or a diffusers folder of a VAE or of a pipeline. Raises ModelFileError for what holds no
    AutoencoderKL.
    """
    if Path(path).is_dir():
        return describe_folder(Path(path))
    shapes = read_shapes(Path(path))
    name = Path(path).name
    prefix = next((prefix for prefix in PREFIXES if f"{prefix}decoder.conv_in.weight" in shapes), None)
    if prefix is None:
        kind = next((kind for key, kind in OTHERS.items() if key in shapes), "no VAE of that kind")
        raise ModelFileError(
            f"{name} is {kind}, and only an AutoencoderKL can be split.", "Use ComfyUI's own VAE Loader."
        )
    held = {current_name(key.removeprefix(prefix)): shape for key, shape in shapes.items() if key.startswith(prefix)}
    original = any(re.match(LDM.down, key) for key in held)
    return VAEDescription(config_of(held, LDM if original else DIFFUSERS, name), (path,), prefix, original)


def describe_folder(folder: Path) -> VAEDescription:
    """Reads a diffusers folder, of a pipeline or of a VAE alone. Raises ModelFileError."""
    folder = folder / "vae" if (folder / "model_index.json").exists() else folder
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{folder / 'config.json'} cannot be read ({error}).", "Download the VAE again."
        ) from error
    if not isinstance(config, dict) or config.get("_class_name") != "AutoencoderKL":
        kind = config.get("_class_name") if isinstance(config, dict) else None
        raise ModelFileError(f"{folder} holds {kind or 'no model'}, and only an AutoencoderKL can be split over ranks.")
    # Folders may hold the same weights in another dtype beside these.
    whole = folder / "diffusion_pytorch_model.safetensors"
    files = [whole] if whole.exists() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelFileError(f"{folder} holds no safetensors file.", "Download the VAE's safetensors again.")
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    return VAEDescription(config, tuple(str(file) for file in files))


def config_of(shapes: Shapes, layout: Layout, file: str) -> dict[str, Any]:
    """The diffusers config that weights of these names and shapes fit. Raises ModelFileError."""
    kind = next((kind for key, kind in OTHERS.items() if key in shapes), None)
    if kind is None and len(shapes["decoder.conv_in.weight"]) != 4:
        kind = "a video VAE"
    if kind:
        raise ModelFileError(
            f"{file} is {kind}, and only an AutoencoderKL can be split.", "Use ComfyUI's own VAE Loader."
        )
    levels = range(layout.levels(shapes))
    needed = ["encoder.conv_in.weight", "decoder.conv_out.weight"]
    needed += [layout.down_resnet.format(level, 0) for level in levels]
    needed += [layout.down_conv.format(level) for level in levels[:-1]]
    missing = [name for name in needed if name not in shapes]
    if missing or not levels:
        raise ModelFileError(
            f"{file} is no AutoencoderKL or only a part of one (it has no {(missing or ['encoder blocks'])[0]}).",
            "Use a file with encoder and decoder.",
        )
    widths = [shapes[layout.down_resnet.format(level, 0)][0] for level in levels]
    if any(width % NORM_GROUPS for width in widths):
        raise ModelFileError(
            f"{file} has levels of {', '.join(map(str, widths))} channels, which norms of {NORM_GROUPS} groups do not "
            "divide.",
            "Load it from a diffusers folder, whose config.json tells the groups.",
        )
    resnets = [name for name in shapes if name.endswith(".conv1.weight") and re.match(layout.down, name)]
    return {
        "in_channels": shapes["encoder.conv_in.weight"][1],
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "latent_channels": shapes["decoder.conv_in.weight"][1],
        "block_out_channels": widths,
        "down_block_types": ["DownEncoderBlock2D"] * len(widths),
        "up_block_types": ["UpDecoderBlock2D"] * len(widths),
        "layers_per_block": len(resnets) // len(widths),
        "norm_num_groups": NORM_GROUPS,
        "mid_block_add_attention": layout.mid_attention in shapes,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
    }


def load_vae(path: str, dtype: str, check: Check = go_on) -> AutoencoderKL:
    """The model at `path` on the CPU, its weights cast to `dtype`, a key of DTYPES.

    Raises ModelFileError, or what `check` does.
    """
    described = describe_vae(path)
    source = ModelSource("AutoencoderKL", described.config, described.files, dtype)
    vae: Any = build_transformer(source)
    tensors, wanted = read_weights(described, check), vae.state_dict()
    for name in {**wanted, **tensors}:
        fits, found = ("none" if name not in held else str(tuple(held[name].shape)) for held in (wanted, tensors))
        if fits != found:
            raise ModelFileError(
                f"{Path(path).name} is no whole AutoencoderKL: of {name} it has {found}, and {fits} is what its other "
                "weights call for; the file is incomplete or of another kind of VAE."
            )
    # A copy even in the same dtype: what is read lies in the mapped file, which may be replaced.
    cast = {}
    for name in wanted:
        check()
        cast[name] = tensors[name].to(loaded_dtype(vae, name, source), copy=True)
    vae.load_state_dict(cast, assign=True)
    return vae.requires_grad_(False)


def read_weights(described: VAEDescription, check: Check = go_on) -> dict[str, torch.Tensor]:
    """The VAE's tensors under diffusers' names, in the shapes of its class.

    Raises ModelFileError, or what `check` does.
    """
    tensors = {}
    for path in described.files:
        try:
            with safe_open(path, framework="pt") as file:
                for stored in file.keys():  # noqa: SIM118 (not a dict)
                    name = current_name(stored.removeprefix(described.prefix))
                    check()
                    if stored.startswith(described.prefix) and name.startswith(PARTS):
                        tensors[name] = file.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            if is_out_of_memory(error):
                raise
            raise broken(Path(path).name, error) from error
    if described.original:
        from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

        converted = convert_ldm_vae_checkpoint(tensors, described.config)
        if len(converted) < len(tensors):
            raise ModelFileError(
                f"{Path(described.files[0]).name} has {len(tensors) - len(converted)} weights that no AutoencoderKL "
                "has, and only that can be split over ranks.",
                "Use ComfyUI's own VAE Loader.",
            )
        tensors = converted
    # Attention was made of 1×1 convolutions once.
    return {
        name: tensor.flatten(1) if ".attentions." in name and tensor.ndim == 4 else tensor
        for name, tensor in tensors.items()
    }


def current_name(name: str) -> str:
    """A name that an old release or a converter gave, as it is called now; other names as they are."""
    if name.startswith(("decoder.post_quant_conv.", "encoder.quant_conv.")):
        return name.partition(".")[2]
    head, _, last = name.rpartition(".")
    parent, _, part = head.rpartition(".")
    return f"{parent}.{OLD_ATTENTION[part]}.{last}" if ".attentions." in name and part in OLD_ATTENTION else name


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file. Raises ModelFileError."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise ModelFileError(
            f"{path.name} is a pickle checkpoint, and loading one can run any code; it is refused.",
            "Use the VAE's safetensors file, or convert it.",
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise broken(path.name, error) from error


def broken(name: str, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{name} is not a whole safetensors file ({error}); it was cut short or damaged.", "Download it again."
    )
