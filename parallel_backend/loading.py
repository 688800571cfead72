"""Loads a diffusers transformer from a config and safetensors files, reading only what the model asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelFileError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TensorSlice:
    """Where a parameter lies in a file: a tensor's name and, for fused tensors, `length` rows of it from `start`."""

    name: str
    start: int = 0
    length: int | None = None


@dataclass(frozen=True)
class ModelSource:
    """A transformer on disk.

    model_class and config: the diffusers class and its configuration.
    files: safetensors files that together hold the weights.
    dtype: what the weights are cast to; a key of DTYPES.
    names: parameter to its place in the files, where the files do not use diffusers' own names.
    """

    model_class: str
    config: Mapping[str, Any]
    files: tuple[str, ...]
    dtype: str = "fp32"
    names: Mapping[str, TensorSlice] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ModelSource:
        names = fields["names"] and {name: TensorSlice(**place) for name, place in fields["names"].items()}
        return cls(**{**fields, "files": tuple(fields["files"]), "names": names})


def build_transformer(source: ModelSource) -> torch.nn.Module:
    """The model without its weights: memory is claimed, and touched by nobody. Raises ModelFileError."""
    import diffusers
    from diffusers.models.modeling_utils import no_init_weights

    try:
        with no_init_weights():
            return getattr(diffusers, source.model_class).from_config(dict(source.config)).eval()
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelFileError(f"{source.model_class} refuses the model's config: {error}") from error


def load_weights(model: torch.nn.Module, source: ModelSource, device: torch.device) -> None:
    """Reads the weights that the model has, and no others, onto `device`. Raises ModelFileError."""
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = read_tensors(source, wanted)
    keep_fp32 = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, tensor in tensors.items():
        kept = any(part in keep_fp32 for part in name.split("."))
        tensors[name] = tensor.to(device, torch.float32 if kept else DTYPES[source.dtype])
    model.load_state_dict(tensors, assign=True)
    torch.nn.Module.to(model, device).requires_grad_(False)


def read_tensors(source: ModelSource, wanted: dict[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Reads the wanted tensors, by parameter name. Raises ModelFileError for what is missing or of another shape."""
    tensors: dict[str, torch.Tensor] = {}
    for path in source.files:
        try:
            with safe_open(path, framework="pt") as file:
                held = set(file.keys())
                for name in wanted:
                    place = source.names[name] if source.names else TensorSlice(name)
                    if place.name in held:
                        tensors[name] = read_slice(file, place)
        except (SafetensorError, OSError) as error:
            raise ModelFileError(f"{path} cannot be read as safetensors ({error}); download it again.") from error
    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(wanted)} weights of {source.model_class} are not in {', '.join(source.files)}, "
            f"the first is {missing[0]}; the file is incomplete or of another model."
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name]:
            raise ModelFileError(
                f"{name} has shape {tuple(tensor.shape)} in the file and {tuple(wanted[name])} by the config; "
                "config and weights are of different models."
            )
    return tensors


def read_slice(file: Any, place: TensorSlice) -> torch.Tensor:
    """Reads one tensor, or the rows of it that `place` names."""
    if place.length is None:
        return file.get_tensor(place.name)
    return file.get_slice(place.name)[place.start : place.start + place.length]
