"""The transformer of a diffusers pipeline folder, as the engine loads it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import ModelFileError
from .loading import ModelSource

WEIGHTS = "diffusion_pytorch_model.safetensors"
# Folders saved before diffusers 0.30 name one class for both; diffusers tells them apart by the norm, and so do we.
OLD_CLASS = "Transformer2DModel"
CLASS_BY_NORM = {"ada_norm_zero": "DiTTransformer2DModel", "ada_norm_single": "PixArtTransformer2DModel"}
# An index names files beside itself. It comes from who made the model, and leads nowhere else.
SHARD = re.compile(r"[^/\\\0]+\.safetensors")


def transformer_source(folder: str | Path, dtype: str = "fp32") -> ModelSource:
    """What to load from `folder`/transformer, weights in one safetensors file or in several with an index.

    dtype: what the weights are cast to; a key of DTYPES. Raises ModelFileError for a folder that is something else.
    """
    transformer = Path(folder) / "transformer"
    config = read_json(transformer / "config.json")
    index = transformer / f"{WEIGHTS}.index.json"
    names = shard_names(index) if index.exists() else [WEIGHTS]
    fields = {key: value for key, value in config.items() if not key.startswith("_")}
    return ModelSource(model_class(config), fields, tuple(str(transformer / name) for name in names), dtype)


def shard_names(index: Path) -> list[str]:
    """The files that an index names. Raises ModelFileError for an index of another kind, or that leads away."""
    weight_map = read_json(index).get("weight_map")
    names: list[Any] = list(weight_map.values()) if isinstance(weight_map, dict) else [None]
    for name in names:
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise ModelFileError(
                f"{index} names {name!r} where a safetensors file of its own folder has to be; it is refused.",
                "Download the model again, from somebody whom you trust.",
            )
    return sorted(set(names))


def model_class(config: dict[str, Any]) -> str:
    """The diffusers class that a config is of."""
    name = config.get("_class_name", "")
    return CLASS_BY_NORM.get(config.get("norm_type", ""), name) if name == OLD_CLASS else name


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelFileError for a file that is gone, broken, or something else."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{path} cannot be read ({error}); it takes the folder of a diffusers pipeline whose denoiser is a "
            "transformer, downloaded whole."
        ) from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is no JSON object.", "Download the model again.")
    return content
