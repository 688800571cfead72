"""Attention backends: the kernels for the local arithmetic of shared attention, chosen by the plan and the device.

diffusers' own dispatch calls them. Its kernels from the Hub are left out, because their code is downloaded at first
use. Shapes: B batch, h local heads, R query tokens, K key tokens, D head dim.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..compat import check_attention_backend
from ..device import name_of, nvidia_capability
from ..errors import PlanError
from .exchange.ring import attention_with_lse


@dataclass(frozen=True)
class Backend:
    """A kernel, with its name in a plan and its name in diffusers.

    capability: the least CUDA compute capability.
    head_dim: the largest that it takes.
    package: what to install for it.
    lse_dims: the permutation of its log-sum-exp to BhR; None if it returns none that ring can merge.
    """

    name: str
    kernel: str
    capability: tuple[int, int] = (8, 0)
    head_dim: int = 128
    package: str | None = None
    lse_dims: tuple[int, int, int] | None = None

    def attend(
        self,
        q_BhRD: torch.Tensor,
        k_BhKD: torch.Tensor,
        v_BhKD: torch.Tensor,
        scale: float | None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of all queries to all keys, BhRD. With a mask, torch's own kernel runs, because the others take
        none."""
        if self.is_native(mask):
            return F.scaled_dot_product_attention(q_BhRD, k_BhKD, v_BhKD, attn_mask=mask, scale=scale)
        return self._dispatch(q_BhRD, k_BhKD, v_BhKD, scale).transpose(1, 2)

    def attend_with_lse(
        self,
        q_BhRD: torch.Tensor,
        k_BhKD: torch.Tensor,
        v_BhKD: torch.Tensor,
        scale: float | None,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention, BhRD, and the log-sum-exp of its scores, BhR in fp32. For masks, see `attend`."""
        if self.is_native(mask):
            return attention_with_lse(q_BhRD, k_BhKD, v_BhKD, scale, mask)
        out_BRhD, lse = self._dispatch(q_BhRD, k_BhKD, v_BhKD, scale, return_lse=True)
        lse_BhR = lse.permute(self.lse_dims or (0, 1, 2))
        if lse_BhR.shape != q_BhRD.shape[:3]:
            raise RuntimeError(f"{self.kernel} returned a log-sum-exp of shape {tuple(lse.shape)}.")
        return out_BRhD.transpose(1, 2), lse_BhR

    def is_native(self, mask: torch.Tensor | None) -> bool:
        """Whether torch's own kernel runs. Says so once if a mask is the reason."""
        if mask is not None and self is not NATIVE:
            notice_native(self.name)
        return self is NATIVE or mask is not None

    def _dispatch(self, q_BhRD, k_BhKD, v_BhKD, scale: float | None, **options: bool):
        from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

        tensors_BShD = (tensor.transpose(1, 2) for tensor in (q_BhRD, k_BhKD, v_BhKD))
        kernel = AttentionBackendName(self.kernel)
        return dispatch_attention_fn(*tensors_BShD, scale=scale, backend=kernel, attention_kwargs=options)

    def is_there(self) -> bool:
        """Whether this process has the package that it needs."""
        return is_usable(self)

    def why_not(self, device: torch.device, dtype: torch.dtype, head_dim: int, ring: int) -> str | None:
        """Returns why it cannot run here, in words for the user; None if it can."""
        if self is NATIVE:
            return None
        capability = nvidia_capability(device)
        if capability is None:
            return f"runs on NVIDIA's GPUs, and the ranks compute on {name_of(device)}"
        if dtype not in (torch.bfloat16, torch.float16):
            return "computes in bf16 or fp16, and the model is loaded in fp32"
        if head_dim > self.head_dim or head_dim % 8:
            return f"takes head dims that are multiples of 8 up to {self.head_dim}, and the model's is {head_dim}"
        if capability < self.capability:
            return f"needs a device of compute capability {'.'.join(map(str, self.capability))}"
        if not self.is_there():
            return f"needs {self.package}, which is missing here or too old"
        if ring > 1 and self.lse_dims is None:
            return f"returns no log-sum-exp, which ring={ring} needs"
        return None


@functools.cache
def notice_native(name: str) -> None:
    """Says once that a kernel other than the requested one runs."""
    logging.warning("The attention backend %s takes no mask; native attention computes the masked calls.", name)


NATIVE = Backend("native", "native")
BACKENDS = (  # the order in which auto tries them
    Backend("flash3", "_flash_3", (9, 0), 256, "flash-attn 3 (flash_attn_interface)", (0, 2, 1)),
    Backend("flash", "flash", (8, 0), 256, "the package flash-attn", (0, 1, 2)),
    Backend("cudnn", "_native_cudnn", package="a torch with cuDNN"),
    NATIVE,
    Backend("sage", "sage", package="the package sageattention"),  # 8 bits, not exact: only on request
)


def choose_backend(name: str, device: torch.device, dtype: torch.dtype, head_dim: int, ring: int) -> Backend:
    """Returns the backend with this name in a plan. `auto` is the first that can run. Raises PlanError, which says what
    to use instead."""
    able = [backend for backend in BACKENDS if backend.why_not(device, dtype, head_dim, ring) is None]
    if name == "auto":
        return able[0]
    backend = next(backend for backend in BACKENDS if backend.name == name)
    if backend not in able:
        reason = backend.why_not(device, dtype, head_dim, ring)
        others = " or ".join(other.name for other in able)
        raise PlanError(f"attention={name} {reason}.", f"Use attention={others}, or auto.")
    return backend


def is_usable(backend: Backend) -> bool:
    """Whether this process can call it: its package is installed in a version that diffusers takes."""
    try:
        check_attention_backend(backend.kernel)
    except (RuntimeError, ValueError):
        return False
    return backend.name != "cudnn" or torch.backends.cudnn.is_available()
