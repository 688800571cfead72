"""The diffusers folder of a class-conditional DiT: its configs, and the names of its classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import ModelFileError
from ...wire.json_object import parse_object
from ..source import weights_folder

# Folders saved before diffusers 0.30 have the second class. The norm tells what it is, as in diffusers.
CLASS_NAME, OLD_CLASS, NORM = "DiTTransformer2DModel", "Transformer2DModel", "ada_norm_zero"
REQUIRED = (
    *("in_channels", "num_attention_heads", "attention_head_dim"),
    *("patch_size", "num_layers", "num_embeds_ada_norm"),
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_dit(folder: Path) -> bool:
    """Whether a folder is of a class-conditional DiT."""
    try:
        config = read_config(folder)
    except ModelFileError:
        return False
    name = config.get("_class_name")
    return name == CLASS_NAME or (name, config.get("norm_type")) == (OLD_CLASS, NORM)


def read_folder(folder: Path, tensors: int) -> tuple[dict[str, Any], dict[str, Any], dict[int, str]]:
    """Reads the folder of a pipeline or of a transformer alone. Returns the configs of the transformer and of its
    scheduler, which is empty without one, and the names of classes by number. tensors: how many its files have. Raises
    ModelFileError if its configs are broken."""
    config = read_config(folder)
    for key in REQUIRED:
        if not isinstance(value := config.get(key), int) or value < 1:
            raise ModelFileError(f"The config of {folder} has {key}={value!r}.", "Download the model again.")
    if config["num_layers"] > tensors:  # each layer has tensors; a module of a million would never be made
        raise ModelFileError(
            f"The config of {folder} has num_layers={config['num_layers']}, but its files have only {tensors} tensors.",
            "Download the model again.",
        )
    index, scheduler = folder / "model_index.json", folder / "scheduler" / "scheduler_config.json"
    names = read_json(index).get("id2label", {}) if index.exists() else {}
    class_names = {int(number): name for number, name in names.items()}
    return config, read_json(scheduler) if scheduler.exists() else {}, class_names


def read_config(folder: Path) -> dict[str, Any]:
    """Raises ModelFileError if the transformer has no config."""
    return read_json(weights_folder(folder) / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """Raises ModelFileError if the file is missing, or is no JSON object."""
    try:
        return parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read ({error}).", "Download the model again, whole.") from error


def explain_no_weights(folder: Path) -> ModelFileError:
    """Returns the error for a folder without safetensors. The advice depends on whether it has pickled weights."""
    place = weights_folder(folder)
    if not any(path.suffix in PICKLES for path in place.iterdir()):
        return ModelFileError(f"{folder} holds no safetensors file.", "Download the model again.")
    return ModelFileError(
        f"{folder} has pickled weights and no safetensors file. Loading a pickle can run any code, so it is refused.",
        f'Download the safetensors files, or convert a model that you trust: python -c "from diffusers import '
        f'{CLASS_NAME} as M; f={str(place)!r}; M.from_pretrained(f, use_safetensors=False).save_pretrained(f)"',
    )
