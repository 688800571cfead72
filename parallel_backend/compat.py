"""Every private name of torch and diffusers that the engine uses, and why: what to look at before a new release.

Used through the functions here, so that a name that went missing is mended in one place. Tested with torch 2.8 and
2.13, and the diffusers of requirements.txt; where a name is older, it says since when. The functions import for
themselves: ComfyUI's process imports what imports this, and takes neither torch.distributed nor diffusers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.utils import _python_dispatch, _pytree

DispatchMode = _python_dispatch.TorchDispatchMode  # sees each operation; there is no public one
tree_map_only = _pytree.tree_map_only
LogSumExp = tuple[torch.Tensor, torch.Tensor]  # attention BhRD, and the log-sum-exp of its scores, BhR in fp32


def cpu_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> LogSumExp:
    """The CPU's kernel; the public `scaled_dot_product_attention` keeps the log-sum-exp to itself. Since torch 2.3."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q_BhRD, k_BhKD, v_BhKD, attn_mask=mask, scale=scale)


def efficient_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, bias: torch.Tensor | None, scale: float | None
) -> LogSumExp:
    """CUDA's kernel for fp32, for masks and for odd head dims, likewise; it pads the log-sum-exp to whole tiles. Since
    torch 2.1."""
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    out_BhRD, lse, *_ = kernel(q_BhRD, k_BhKD, v_BhKD, bias, True, scale=scale)
    return out_BhRD, lse[..., : q_BhRD.shape[2]]


def flash_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, scale: float | None
) -> LogSumExp:
    """CUDA's kernel for bf16 and fp16 without a mask, likewise. Since torch 2.1."""
    out_BhRD, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q_BhRD, k_BhKD, v_BhKD, scale=scale)
    return out_BhRD, lse


def packet_of(operation: Any) -> Any:
    """What an operation's overloads have in common, by which torch's flop counter knows it. Since torch 1.12."""
    return operation._overloadpacket


@contextlib.contextmanager
def unbound() -> Iterator[None]:
    """While entered, the default group is bound to no device. A rank that is has NCCL split that group for each new
    one that it is no member of, gloo's too, whose members take no part in that: a deadlock. Since torch 2.2."""
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    bound, group.bound_device_id = group.bound_device_id, None
    try:
        yield
    finally:
        group.bound_device_id = bound


def hooks_of(module: torch.nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    """The hooks before a module's forward and after it; torch takes one off by its handle alone. Since torch 1.2."""
    return module._forward_pre_hooks, module._forward_hooks


def kept_in_fp32(model: torch.nn.Module) -> Collection[str]:
    """Parts of names that a model computes in fp32 whatever it is loaded in; `from_pretrained` alone heeds them."""
    return getattr(model, "_keep_in_fp32_modules", None) or ()


def check_attention_backend(kernel: str) -> None:
    """Raises RuntimeError where diffusers lacks what an attention kernel needs, or ValueError for one that it does not
    know; the public call changes a global setting. Since diffusers 0.35."""
    from diffusers.models import attention_dispatch

    attention_dispatch._check_attention_backend_requirements(attention_dispatch.AttentionBackendName(kernel))


def first_block_hook(
    states: Any,
    given: Callable[[tuple, dict[str, Any]], dict[str, torch.Tensor]],
    places: tuple[int, int | None],
    decide: Callable[[torch.Tensor, torch.Tensor | None], bool] | None = None,
    is_tail: bool = False,
) -> Any:
    """A hook of diffusers' first-block cache, on a block that its registry need not know: what the block is given, by
    diffusers' two names, and where it returns these. decide: on the first block, whether the others run, by its
    residual and the one before; diffusers' own looks at the tokens at hand. Since diffusers 0.35."""
    from diffusers.hooks._helpers import TransformerBlockMetadata
    from diffusers.hooks.first_block_cache import FBCBlockHook, FBCHeadBlockHook

    class Given(TransformerBlockMetadata):
        def _get_parameter_from_args_kwargs(self, identifier: str, args: Any = (), kwargs: Any = None) -> Any:
            return given(args, kwargs or {})[identifier]

    class Head(FBCHeadBlockHook):
        def initialize_hook(self, module: torch.nn.Module) -> torch.nn.Module:
            return module

        def _should_compute_remaining_blocks(self, hidden_states_residual: torch.Tensor) -> bool:
            before = self.state_manager.get_state().head_block_residual
            return decide is None or decide(hidden_states_residual, before)

    class Block(FBCBlockHook):
        def initialize_hook(self, module: torch.nn.Module) -> torch.nn.Module:
            return module

    hook = Head(states, 0.0) if decide else Block(states, is_tail)
    image, other = places
    hook._metadata = Given(image, other)  # pyright: ignore[reportArgumentType] (diffusers' own are None, too)
    return hook


def why_no_compiler(is_cpu: bool) -> str | None:
    """What inductor lacks, which makes C++ of graphs for a CPU and Triton's kernels for others; None where it lacks
    nothing. Since torch 2.6."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler (g++)"
    return None if is_cpu or has_triton() else "there is no Triton for this device"


def options_of_mode(mode: str) -> dict[str, Any]:
    """What a mode of `torch.compile` is short for. Since torch 2.0."""
    from torch._inductor import list_mode_options

    return list_mode_options(mode)
