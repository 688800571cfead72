"""The keys of what goes to the ranks among the arguments of a call: options for what nodes put inside of the model, and
the calls of ControlNets."""

from __future__ import annotations

import re
from typing import Any

from ..wire.tensors import Tensors

# Names in the options that go to the ranks.
NODE_FUNCTIONS = "paralleldit_functions"  # encoded functions, in three parts: PATCHES, REPLACED, OTHER_OPTIONS
SAMPLING = "paralleldit_sampling"  # the sampling during which objects live
GRAPH = "paralleldit_graph"  # which networks of the sampling before stay, and changes of the objects
MODEL_CHANGES = "paralleldit_changes"  # of the model
COMPILED = "paralleldit_compiled"  # arguments of `torch.compile` for its blocks
FACTS = "paralleldit_facts"  # by which the plan is chosen; they stay in ComfyUI's process
KERNEL = "paralleldit_kernel"  # the name of the attention kernel that a node chose
ALL_TOKENS = "paralleldit_all_tokens"  # there if code between the blocks needs all tokens
OVERRIDE = "optimized_attention_override"  # in ComfyUI's own options: a function in place of each attention function
PATCHES, REPLACED, OTHER_OPTIONS = "patches", "patches_replace", "others"  # the parts of NODE_FUNCTIONS
OPTIONS = "transformer_options"  # among the arguments of a call
SCHEDULE = "sample_sigmas"  # in ComfyUI's own options: the noise level before the first step, and after each
LEVEL = "sigmas"  # likewise: the noise level of this call, for each row
CONTROL = "control"  # among the arguments of ComfyUI's models
# A ControlNet's call goes in place of what it returns, as a dict. Its fields: ComfyUI's ControlNet, described; the
# arguments of its network; its strength; and what those before it return: another such dict, tensors, or None.
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
