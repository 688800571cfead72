"""Counts what a forward of one of ComfyUI's models costs, by running its own code on tensors without memory."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from comfy.ldm.modules.attention import attention_pytorch

from ...parallel_backend.compat import tree_map_only
from ...parallel_backend.costs.forward import META, ForwardCost, count_forward
from ...parallel_backend.models import spec_of

TEXT = 512  # tokens, while the text is unknown
# Arguments that a class needs beside latents and timestep. The values are unknown yet; the model gives their width.
TEXT_NAMES, COUNT_NAMES = ("context", "encoder_hidden_states"), ("num_tokens",)
# Options; and arguments at whose values HiDream O1 looks, so that a forward with them cannot be counted. A step without
# them computes as much.
LEFT_OUT = ("transformer_options", "vinput_mask", "ref_pixel_values")
# The argument at whose values MiniMax H3 looks, and with which a forward is counted. It looks at the timestep, too; any
# value will do.
READ = "minimax_payload"
# Classes whose latents are a video and its sound. Samplers have them packed into one row of numbers, and memory is
# estimated by that row.
PACKED = ("LTXAVModel", "MiniMaxH3Model")


def count_call_forward(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], rows: int, peak: float
) -> ForwardCost | None:
    """Counts a call of the class with these arguments; only their shapes matter. If the class keeps something from call
    to call, counts a later call. Returns None if the class's code looks at values, or if its weights are kept in a form
    that cannot be counted."""
    own, spec = copy.copy(module), spec_of(type(module))
    counted = {name: value for name, value in kwargs.items() if name not in LEFT_OUT}
    given = {name: value if name == READ else move_to_meta(value) for name, value in counted.items()}
    latents, timestep, *others = map(move_to_meta, args)
    if READ in inspect.signature(type(module).forward).parameters:
        timestep = torch.ones_like(timestep, device="cpu")
    # Attention is as in the ranks, whatever ComfyUI's own process is set to use.
    attend = lambda _own, *args, **kwargs: attention_pytorch(*args, **kwargs)  # noqa: E731
    given["transformer_options"] = {"optimized_attention_override": attend}
    run = functools.partial(type(module).forward, own, latents, timestep, *others, **given)
    size = tuple(args[0].shape[1:]) if isinstance(args[0], torch.Tensor) else ()
    try:
        if spec and spec.drops:  # what a model keeps, it computes in the first step only
            count_forward(module, run, rows, peak=peak, size=size)
        return count_forward(module, run, rows, peak=peak, size=size)
    except Exception as error:  # the class's own code may raise anything
        logging.debug("[ParallelDiT] a forward of %s cannot be counted: %s", type(module).__name__, error)
        return None


def count_latents_forward(
    module: torch.nn.Module, latents: Sequence[int], dtype: torch.dtype, peak: float
) -> ForwardCost | None:
    """Counts a call for latents of this shape and a text of usual length. May return None, as `count_call_forward`."""
    with META:
        sample, timestep = torch.empty(*latents, dtype=dtype), torch.empty(latents[0], dtype=dtype)
        values: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(type(module).forward).parameters.items())[3:]:
            if name in TEXT_NAMES:
                values[name] = torch.empty(latents[0], TEXT, 1, dtype=dtype)
            elif name in COUNT_NAMES:
                values[name] = TEXT
            elif name == "y" and getattr(module, "num_classes", None) is not None:
                values[name] = torch.empty(latents[0], 1, dtype=dtype)
            elif name == "guidance":
                values[name] = torch.empty(latents[0], dtype=dtype)
            elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                return None
    return count_call_forward(module, (sample, timestep), values, latents[0], peak)


def packed_shape(module: torch.nn.Module, latents: Sequence[int]) -> list[int]:
    """Returns the shape of these latents as ComfyUI samples them. If their sound is unknown, it is left out."""
    return [latents[0], 1, math.prod(latents[1:])] if type(module).__name__ in PACKED else [*latents]


def move_to_meta(value: Any) -> Any:
    """Returns the value with its tensors on the meta device: shapes and dtypes, without memory."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=META) if tensor.is_floating_point() else tensor.to(META)

    return tree_map_only(torch.Tensor, move, value)
