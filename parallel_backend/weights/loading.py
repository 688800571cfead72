"""Loads a diffusers transformer from a config and safetensors files. It reads only the tensors that the model needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from ..compat import kept_in_fp32
from ..errors import ModelFileError, is_out_of_memory
from .read_ahead import read_ahead

if TYPE_CHECKING:
    from diffusers import ModelMixin

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Check = Callable[[], None]  # called before each tensor is read; raises to give up


def go_on() -> None:
    """A check that never gives up."""


@dataclass(frozen=True)
class ModelSource:
    """A transformer on disk. model_class and config: the diffusers class and its configuration. files: the safetensors
    files that together hold the weights. dtype: the dtype to cast weights to; a key of DTYPES."""

    model_class: str
    config: Mapping[str, Any]
    files: tuple[str, ...]
    dtype: str = "fp32"


def build_transformer(source: ModelSource) -> ModelMixin:
    """Builds the model without its weights. Parameters are on the meta device, in the dtype to load; buffers are real.
    Raises ModelFileError."""
    import diffusers
    from diffusers.models.modeling_utils import no_init_weights

    try:
        with no_init_weights():
            model = getattr(diffusers, source.model_class).from_config(dict(source.config)).eval()
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelFileError(f"{source.model_class} refuses the model's config: {error}") from error
    for path, parameter in list(model.named_parameters()):
        owner, _, name = path.rpartition(".")
        empty = torch.empty_like(parameter, dtype=loaded_dtype(model, path, source), device="meta")
        setattr(model.get_submodule(owner), name, torch.nn.Parameter(empty, requires_grad=False))
    return model


def loaded_dtype(model: torch.nn.Module, name: str, source: ModelSource) -> torch.dtype:
    """Returns the dtype that a parameter or buffer is loaded in."""
    in_fp32 = kept_in_fp32(model)
    return torch.float32 if any(part in in_fp32 for part in name.split(".")) else DTYPES[source.dtype]


def load_weights(
    model: torch.nn.Module,
    source: ModelSource,
    device: torch.device,
    but: Collection[str] = (),
) -> None:
    """Reads the model's weights, and no others, onto `device`. Raises ModelFileError. but: names of parameters that
    have their values already."""
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in but}
    tensors = read_tensors(source, {name: tensor.shape for name, tensor in wanted.items()})
    for name in read_ahead(list(tensors), lambda name: [tensors[name]]):
        tensors[name] = tensors[name].to(device, loaded_dtype(model, name, source))
    model.load_state_dict(tensors, strict=not but, assign=True)
    torch.nn.Module.to(model, device).requires_grad_(False)


def read_tensors(source: ModelSource, wanted: dict[str, torch.Size]) -> dict[str, torch.Tensor]:
    """Reads the wanted tensors by parameter name. They are views of the files' pages, which ranks share.

    wanted: the shapes of the parameters.
    Raises ModelFileError if a tensor is missing or has another shape.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in source.files:
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if name in wanted}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            if is_out_of_memory(error):
                raise
            raise ModelFileError(f"{path} cannot be read as safetensors ({error}).", "Download it again.") from error
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
