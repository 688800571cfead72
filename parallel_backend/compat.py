"""Every private name of torch and diffusers that the engine uses, and why. Check them before supporting a new release.

The engine uses them only through these functions, so that a missing name is repaired in one place. Tested with torch
2.8, 2.13 and 2.14.1, which has all of torch's names, and the diffusers of requirements.txt. Docstrings say since when
an older name exists. The functions import what they need themselves, because a process loads this module that must
load neither torch.distributed nor diffusers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.utils import _python_dispatch, _pytree

DispatchMode = _python_dispatch.TorchDispatchMode  # sees each operation; torch has no public one
tree_map_only, tree_leaves = _pytree.tree_map_only, _pytree.tree_leaves
LogSumExp = tuple[torch.Tensor, torch.Tensor]  # attention BhRD, and the log-sum-exp of its scores, BhR in fp32


def list_tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a value, also those in lists and dicts."""
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def cpu_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> LogSumExp:
    """The CPU's kernel. The public `scaled_dot_product_attention` does not return the log-sum-exp. Since torch 2.3."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q_BhRD, k_BhKD, v_BhKD, attn_mask=mask, scale=scale)


def efficient_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, bias: torch.Tensor | None, scale: float | None
) -> LogSumExp:
    """CUDA's kernel where there is no flash kernel. Pads the log-sum-exp to whole tiles. Since torch 2.1."""
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    out_BhRD, lse, *_ = kernel(q_BhRD, k_BhKD, v_BhKD, bias, True, scale=scale)
    return out_BhRD, lse[..., : q_BhRD.shape[2]]


def flash_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, scale: float | None
) -> LogSumExp:
    """CUDA's kernel for bf16 and fp16 without a mask, from compute capability 8.0 on. Since torch 2.1."""
    out_BhRD, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q_BhRD, k_BhKD, v_BhKD, scale=scale)
    return out_BhRD, lse


def version_of(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was written to; 0 for an inference tensor, which does not know it. Since torch 1.9."""
    return 0 if tensor.is_inference() else tensor._version


def is_traced() -> bool:
    """Returns whether torch.compile traces the caller, or would trace what it calls. Since torch 2.6."""
    if torch.compiler.is_compiling():
        return True
    from torch._C._dynamo import eval_frame

    return eval_frame.get_eval_frame_callback() is not None


def without_function_modes() -> contextlib.AbstractContextManager[None]:
    """While entered, no mode and no subclass of tensors sees torch's functions. Since torch 2.0."""
    return torch._C.DisableTorchFunction()


def packet_of(operation: Any) -> Any:
    """Returns the packet of an operation's overloads, which torch's flop counter uses as key. Since torch 1.12."""
    return operation._overloadpacket


def writes_to_arguments(operation: Any) -> bool:
    """Returns whether an operator, such as one of a package, says that it writes to what it is given. Since torch
    1.12."""
    schema = getattr(getattr(operation, "default", operation), "_schema", None)
    return schema is not None and schema.is_mutable


def error_of(group: Any, device: torch.device) -> str:
    """Returns what NCCL's watchdog says went wrong in a process group; empty if nothing did. Other backends raise their
    errors where they happen. Since torch 2.6."""
    backend = group._get_backend(device)
    error = backend.get_error() if hasattr(backend, "get_error") else None
    return "" if error is None or error.name == "SUCCESS" else error.name


@contextlib.contextmanager
def unbound() -> Iterator[None]:
    """While entered, the default group is bound to no device. Since torch 2.2.

    A rank with a bound group makes NCCL split it for each new group that the rank is not in, even a gloo group. The
    members of that group do not join the split: a deadlock.
    """
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    bound, group.bound_device_id = group.bound_device_id, None
    try:
        yield
    finally:
        group.bound_device_id = bound


def hooks_of(module: torch.nn.Module) -> tuple[dict[int, Any], dict[int, Any]]:
    """Returns a module's forward pre-hooks and forward hooks. torch itself removes them only by handle. Since torch
    1.2.
    """
    return module._forward_pre_hooks, module._forward_hooks


def hooks_with_kwargs(module: torch.nn.Module) -> tuple[dict[int, bool], dict[int, bool]]:
    """Returns which of these hooks get keyword arguments, too. Since torch 2.0."""
    return module._forward_pre_hooks_with_kwargs, module._forward_hooks_with_kwargs


def parameters_of(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """Returns a module's own parameters, to be replaced without the checks of `register_parameter`. Since torch 1.0."""
    return module._parameters


def parts_of(module: torch.nn.Module) -> dict[str, torch.nn.Module | None]:
    """Returns a module's own parts, the dict itself, to be compared fast. Since torch 1.0."""
    return module._modules


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Returns a module's own buffers, to be replaced likewise. Since torch 1.0."""
    return module._buffers


# The attribute that runs when a module is called, with the module's own hooks. It may be replaced on an instance.
# accelerate and others replace `forward`, and put back what they have found there. Since torch 2.0.
CALL = "_call_impl"

# The attribute that a module moves or casts its tensors by, whichever of its methods was called. Since torch 1.0.
MOVE = "_apply"


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` was called. Such a module is not called as others are. Since torch 2.2."""
    return module._compiled_call_impl is not None


def execution_device(pipeline: Any) -> torch.device | None:
    """Returns where a diffusers pipeline computes, also if its models wait elsewhere; None for anything else. Since
    diffusers 0.18."""
    return getattr(pipeline, "_execution_device", None)


def kept_in_fp32(model: torch.nn.Module) -> Collection[str]:
    """Returns the name parts of weights that must stay in fp32. Only diffusers' `from_pretrained` reads them."""
    return getattr(model, "_keep_in_fp32_modules", None) or ()


def check_attention_backend(kernel: str) -> None:
    """Raises RuntimeError if an attention kernel's packages are missing, and ValueError for an unknown kernel.

    diffusers' public call would also change a global setting. Since diffusers 0.35.
    """
    from diffusers.models import attention_dispatch

    attention_dispatch._check_attention_backend_requirements(attention_dispatch.AttentionBackendName(kernel))


def why_no_compiler(is_cpu: bool) -> str | None:
    """Returns what inductor lacks; None if it lacks nothing. Since torch 2.6.

    It compiles graphs to C++ for a CPU, and to Triton kernels for other devices.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler (g++)"
    return None if is_cpu or has_triton() else "there is no Triton for this device"


def options_of_mode(mode: str) -> dict[str, Any]:
    """Returns the options that a mode of `torch.compile` stands for. Since torch 2.0."""
    from torch._inductor import list_mode_options

    return list_mode_options(mode)
