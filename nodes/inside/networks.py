"""What the ranks need of networks that run inside of the model or beside it, of ControlNets and of VAEs. Weights are in
files in memory, which the ranks map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import comfy.controlnet
import comfy.model_base
import comfy.model_patcher
import comfy.sd
import torch

from ...worker.inside.encoder import Needed
from ...worker.inside.object_graph import MODEL
from ...worker.wire.tensors import UnsendableError
from ..errors import Refused
from ..weights_file import keep_file

SHARED = "paralleldit"  # attribute of a VAE that ranks share
PATCHER = "patcher"  # attribute of ComfyUI's VAE
# The attributes of a ControlNet that count in the ranks: ComfyUI's process prepares the arguments of its network.
OF_CONTROLNETS = (
    *("control_model_wrapped", "control_model", "extra_args", "global_average_pooling", "strength_type"),
    "manual_cast_dtype",
)
OF_ONE_CONTROLNET = {"previous_controlnet": None, "timestep_percent_range": (0.0, 1.0)}


def needed_of_network(patcher: comfy.model_patcher.ModelPatcher) -> Needed:
    """Raises UnsendableError for a network with patches."""
    if patcher.patches or patcher.object_patches or patcher.hook_patches:
        raise UnsendableError("A network was changed after it was loaded.")
    return None, {MODEL: patcher.model}


def needed_of_controlnet(control: comfy.controlnet.ControlNet) -> Needed:
    return type(control), {name: getattr(control, name) for name in OF_CONTROLNETS} | OF_ONE_CONTROLNET


def needed_of_vae(vae: comfy.sd.VAE) -> Needed:
    attributes = {name: value for name, value in vars(vae).items() if name != SHARED}
    return comfy.sd.VAE if SHARED in vars(vae) else type(vae), {PATCHER: vae.patcher, **attributes}


NEEDED: Mapping[type, Callable[[Any], Needed] | None] = {
    comfy.model_patcher.ModelPatcher: needed_of_network,
    comfy.sd.VAE: needed_of_vae,
    comfy.controlnet.ControlNet: needed_of_controlnet,
    comfy.model_base.BaseModel: None,
}


def share_weights(network: torch.nn.Module) -> dict[int, tuple[str, str]]:
    """Puts the weights of a network into a file in memory, if it is not there. Returns each tensor's file and its name
    there, by id. Raises UnsendableError if they have no room."""
    weights = {
        name: weight
        for name, weight in (*network.named_parameters(), *network.named_buffers())
        if type(weight) in (torch.Tensor, torch.nn.Parameter) and not weight.is_meta
    }
    try:
        path = str(keep_file(network, weights, "network"))
    except Refused as error:
        raise UnsendableError(str(error)) from error
    return {id(weight): (path, name) for name, weight in weights.items()}
