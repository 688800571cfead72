"""Says why PipeFusion cannot cut the work of a sampling into patches, before auto chooses a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...parallel_backend.models import spec_of
from ...parallel_backend.models.checks import patch_of
from ...parallel_backend.sampling.schedulers import explain_whole_steps
from ...worker.comfyui.controls import CONTROL
from ...worker.host.call_batcher import ModelCall
from ...worker.wire.sampler_call import SamplerCall


def explain_whole_calls(module: torch.nn.Module, calls: Sequence[ModelCall]) -> str:
    """Says why the calls of a step cannot be cut; empty if they can."""
    if any(call.kwargs.get(CONTROL) is not None for call in calls):
        return "a ControlNet adds to all blocks"
    return next(filter(None, (explain_whole(module, call.args[0]) for call in calls)), "")


def explain_whole(module: torch.nn.Module, latents: torch.Tensor | Sequence[torch.Tensor]) -> str:
    """Says why latents (B, C, …) cannot be cut; empty if they can."""
    spec = spec_of(type(module))
    parts = [latents] if isinstance(latents, torch.Tensor) else latents
    if len(parts) > 1:
        return "the latents have several parts"
    sizes = parts[0].shape[2:]
    sides = patch_of(module, spec, len(sizes)) if spec else ()
    if any(size % side for size, side in zip(sizes, sides, strict=False)):
        return f"the latents measure {'×'.join(map(str, sizes))}, and a token is {'×'.join(map(str, sides))} of them"
    return ""


def explain_whole_loop(module: torch.nn.Module, latents: torch.Tensor, call: SamplerCall) -> str:
    """Says why a loop of these latents cannot run patch by patch; empty if it can."""
    return explain_whole(module, latents) or explain_whole_steps(call.scheduler, call.config, call.default)


def count_steps(options: Mapping[str, Any]) -> int:
    """Returns the number of steps of a stock sampler; 0 if it is not known."""
    sigmas = options.get("sample_sigmas")
    return len(sigmas) - 1 if isinstance(sigmas, torch.Tensor) else 0
