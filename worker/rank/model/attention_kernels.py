"""ComfyUI's attention functions as kernels of the ranks, for nodes that choose how attention is computed.

Shapes: B batch, h local heads, R query tokens, K key tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from parallel_backend.errors import RequestError
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.kernels.backends import NATIVE, Backend, backend_named

from ...comfyui.call_keys import OVERRIDE

CONTAINERS = "container_function"
PRECISE_BY_TORCH = "sage"  # whose function leaves calls that need precision to torch's kernel
AUTO = "auto"  # the plan's `attention` that leaves the choice to a node


@dataclass(frozen=True)
class HostKernel(Backend):
    """A function of ComfyUI by the name under which ComfyUI has registered it.

    is_torchs: whether it computes with torch's operations alone, on any device.
    engines: the same kernel as the engine calls it, if that computes shared attention in its place.
    """

    is_torchs: bool = False
    engines: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The kernel of shared attention."""
        return self.engines or self

    @cached_property
    def function(self) -> Callable[..., torch.Tensor]:
        from comfy.ldm.modules.attention import REGISTERED_ATTENTION_FUNCTIONS

        return REGISTERED_ATTENTION_FUNCTIONS[self.name]

    def options_for(self, model: ParallelModel, compiles: bool) -> dict[str, Any]:
        """Returns the option by which ComfyUI's classes call the kernel, where they would call a node's override.

        In compiled blocks, whose graphs it would break, there is none: all shared attention is by the kernel.
        """
        if model.attention is None:
            function = self.function

            def attend(_chosen: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
                return function(*args, **kwargs)

            # By it, since 0.33, a function frees queries, keys and values as soon as it has quantised them.
            if by_containers := getattr(function, CONTAINERS, None):
                setattr(attend, CONTAINERS, by_containers)
            return {OVERRIDE: attend}

        def override(chosen: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with model.attending_by(self.backend if self.takes(kwargs) else None):
                return chosen(*args, **kwargs)

        return {} if compiles else {OVERRIDE: override}

    def takes(self, given: Mapping[str, Any]) -> bool:
        """Whether ComfyUI's function computes a call with these arguments by itself. It leaves some to torch's."""
        return self.name != PRECISE_BY_TORCH or given.get("low_precision_attention", True) is not False

    def is_there(self) -> bool:
        from comfy.ldm.modules.attention import REGISTERED_ATTENTION_FUNCTIONS

        return self.name in REGISTERED_ATTENTION_FUNCTIONS

    def why_not(self, device: torch.device, dtype: torch.dtype, head_dim: int, ring: int) -> str | None:
        if self.backend is NATIVE:
            return None
        if self.engines:
            return self.engines.why_not(device, dtype, head_dim, ring)
        if not self.is_torchs:
            return super().why_not(device, dtype, head_dim, ring)
        return f"returns no log-sum-exp, which ring={ring} needs" if ring > 1 else None

    def _dispatch(self, q_BhRD, k_BhKD, v_BhKD, scale: float | None, **_options: bool) -> torch.Tensor:
        """Returns attention, BRhD."""
        given: dict[str, Any] = {} if scale is None else {"scale": scale}
        out_BhRD = self.function(
            q_BhRD, k_BhKD, v_BhKD, q_BhRD.shape[1], skip_reshape=True, skip_output_reshape=True, **given
        )
        return out_BhRD.transpose(1, 2)


# ComfyUI's functions return no log-sum-exp. These kernels do, if the engine calls them.
ON_RING = ("sage", "flash")
KERNELS = {
    each.name: each
    for each in (
        HostKernel("sage", "sage", package="the package sageattention"),
        HostKernel("sage3", "sage3", (10, 0), 248, "the package sageattn3"),
        HostKernel("flash", "flash", (8, 0), 256, "the package flash-attn"),
        HostKernel("xformers", "xformers", (7, 0), 256, "the package xformers"),
        HostKernel("comfy_kitchen_int8", "comfy_kitchen_int8", (7, 5), 256, "a comfy-kitchen that has it"),
        HostKernel("pytorch", "pytorch", is_torchs=True, engines=NATIVE),
        HostKernel("sub_quad", "sub_quad", is_torchs=True),
        HostKernel("split", "split", is_torchs=True),
    )
}


def choose_kernel(name: str, plan: ParallelPlan, device: torch.device, dtype: torch.dtype, head_dim: int) -> HostKernel:
    """Returns the kernel that a node asks for. Raises RequestError if this rank cannot use it under the plan. head_dim:
    0 if it is not known."""
    kernel = KERNELS.get(name)
    if kernel and plan.ring > 1 and name in ON_RING:
        kernel = replace(kernel, engines=backend_named(name).on(device))
    if kernel is None:
        why = "ComfyUI does not have"
    elif plan.attention != AUTO:
        why = f"gives way to the plan's attention={plan.attention}"
    else:
        why = kernel.why_not(device, dtype, head_dim, plan.ring)
    if kernel is None or why:
        raise RequestError(f"A node asks for attention by {name}, which {why}.")
    return kernel
