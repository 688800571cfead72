"""How a ControlNet's call goes to the ranks, in place of what it returns: an argument of the model, as a dict."""

from __future__ import annotations

import re
from typing import Any

from ..wire.tensors import Tensors
from .patched_options import GRAPH, LEVEL, OPTIONS

CONTROL = "control"  # among the arguments of ComfyUI's models
# The fields: ComfyUI's ControlNet, described; the arguments of its network; its strength; and what the ControlNets
# before it return, which is another such dict, or tensors, or None.
NETWORK, GIVEN, STRENGTH, PREVIOUS = "network", "given", "strength", "previous"
# Beside these in loop mode, where one call stands for all steps: the model's timesteps between which the ControlNet is
# at work, and how many of the latents' channels it gets. The arguments lack LATENTS and TIMESTEPS, which are each
# step's.
RANGE, CHANNELS = "range", "channels"
LATENTS, TIMESTEPS = "x", "timesteps"
# The paths of tensors that change with each call of a model, see `WorkerGroup.call`: its own arguments, the noise level
# among its options, what ControlNets return, and what their networks get of the step. Those of nodes' objects are sent
# only when they change. All other tensors may have been sent before.
OF_ALL_STEPS = rf"(?:{PREVIOUS}\.)*{GIVEN}\.(?!(?:{LATENTS}|{TIMESTEPS})$)"
OF_A_CALL = rf"{OPTIONS}\.(?:{LEVEL}$|{GRAPH}\.)|{CONTROL}\.(?!{OF_ALL_STEPS})"
NEW_EACH_CALL = re.compile(rf"\w+\.\d+\.(?:args|kwargs\.(?:{OF_A_CALL}))")


def take_new(tensors: Tensors) -> Tensors:
    """Takes out of a request's tensors, by path, those of which neither side keeps copies."""
    return {path: tensors.pop(path) for path in list(tensors) if NEW_EACH_CALL.match(path)}


def is_network_call(control: Any) -> bool:
    """Whether it is such a dict, and not the tensors that a ControlNet returns."""
    return isinstance(control, dict) and NETWORK in control
