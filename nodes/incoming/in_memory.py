"""The weights of a MODEL whose file ranks cannot read, in a file in memory that all ranks of this machine map."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.model_patcher
import torch

from ...worker.comfyui.model import write_detected
from ..errors import Refused
from ..weights_file import FileInMemory, Weights, form_of

# By ComfyUI's model. Models that ranks have of the same weights are keys, too, so that the file outlives the first.
_files: weakref.WeakKeyDictionary[torch.nn.Module, FileInMemory] = weakref.WeakKeyDictionary()


def keep_weights(model: comfy.model_patcher.ModelPatcher, name: str) -> tuple[Path, torch.dtype | None, bool, str]:
    """Returns the file with a MODEL's weights, without its patches, and how they are read, for `describe_host_file`.
    name: of the model.

    Raises Refused for a model that ComfyUI's own detection does not know, and if the weights have no room."""
    own, config = model.model, model.model.model_config
    try:
        detected = write_detected(config)
    except LookupError as error:
        raise Refused(f"Its model is a {error}, which ComfyUI's own detection does not know.") from error
    comfy.model_management.unload_model_and_clones(model)  # takes back what patches have put into the module
    weights = list_weights(own)
    if own not in _files or not _files[own].has(weights):
        _files[own] = FileInMemory(weights, name)
    dtype = None if config.quant_config is not None else own.get_dtype()
    return _files[own].path, dtype, bool(config.optimizations.get("fp8")), detected


def drop_weights(model: comfy.model_patcher.ModelPatcher) -> None:
    """Removes the file, of which ranks can make no model."""
    _files.pop(model.model, None)


def share_file(model: comfy.model_patcher.ModelPatcher, other: comfy.model_patcher.ModelPatcher) -> None:
    """Keeps the file of a MODEL's weights as long as another one of the same weights is there."""
    if model.model in _files:
        _files[other.model] = _files[model.model]


def list_weights(model: Any) -> Weights:
    """Returns the weights of ComfyUI's model by their names in a file, as its module has them."""
    module = model.diffusion_model
    found = {name: each for name, each in module.state_dict(keep_vars=True).items() if not each.is_meta}
    own = dict(module.named_parameters())
    if any(map(form_of, own.values())):  # ComfyUI-GGUF's layers tell nothing of their weights otherwise
        return {**found, **own}
    return model.state_dict_for_saving(found)
