"""Finds the transformer of a diffusers pipeline folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import ModelFileError
from .loading import ModelSource

WEIGHTS_FILE = "diffusion_pytorch_model.safetensors"
# Folders saved before diffusers 0.30 name one class for both. The norm tells them apart, here as in diffusers.
OLD_CLASS = "Transformer2DModel"
CLASS_BY_NORM = {"ada_norm_zero": "DiTTransformer2DModel", "ada_norm_single": "PixArtTransformer2DModel"}
# An index may only name files in its own folder, because whoever made the model wrote it.
SHARD = re.compile(r"[^/\\\0]+\.safetensors")


def transformer_source(folder: str | Path, dtype: str = "fp32", name: str = "transformer") -> ModelSource:
    """Describes the weights in `folder`/`name`: one safetensors file, or several with an index. dtype: the dtype to
    cast weights to; a key of DTYPES. Raises ModelFileError if the folder is something else."""
    transformer = Path(folder) / name
    config = read_json(transformer / "config.json")
    index = transformer / f"{WEIGHTS_FILE}.index.json"
    names = shard_names(index) if index.exists() else [WEIGHTS_FILE]
    fields = {key: value for key, value in config.items() if not key.startswith("_")}
    return ModelSource(model_class(config), fields, tuple(str(transformer / name) for name in names), dtype)


def shard_names(index: Path) -> list[str]:
    """Lists the files that an index names. Raises ModelFileError if it is no index, or names a file elsewhere."""
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
    """Returns the name of the config's diffusers class."""
    name = config.get("_class_name", "")
    return CLASS_BY_NORM.get(config.get("norm_type", ""), name) if name == OLD_CLASS else name


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises ModelFileError if the file is missing, broken, or something else."""
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
