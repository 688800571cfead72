"""Attention backends: the kernels for the local arithmetic of shared attention, chosen by the plan and the device.

diffusers' own dispatch calls those that are not torch's. Its kernels from the Hub are left out, because their code is
downloaded at first use. Shapes: B batch, h local heads, R query tokens, K key tokens, D head dim.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...compat import check_attention_backend
from ...device import name_of, nvidia_capability
from ...errors import PlanError
from ..exchange.ring import attention_with_lse
from .sage import FP8_KERNELS, FP16_KERNELS, PACKAGE, SAGE_KERNELS, find_fault

Capability = tuple[int, int]


@dataclass(frozen=True)
class Backend:
    """A kernel, with its name in a plan and its name in diffusers.

    capability: the least CUDA compute capability.
    head_dim: the largest that it takes.
    package: what to install for it.
    lse_dims: the permutation of its log-sum-exp to BhR; None if it returns none that ring can merge.
    cards: the only compute capabilities that it runs on, each with the kernel for it. If empty, `kernel` runs on all
    from `capability` on.
    find_fault: takes the card's capability and the ring's degree, and returns why results of the installed package
    would be wrong; None if they are right.
    """

    name: str
    kernel: str
    capability: Capability = (8, 0)
    head_dim: int = 128
    package: str | None = None
    lse_dims: tuple[int, int, int] | None = None
    cards: Mapping[Capability, str] = field(default_factory=dict, hash=False)
    find_fault: Callable[[Capability, int], str | None] | None = None

    def on(self, device: torch.device) -> Backend:
        """Returns this backend with the kernel for a device that it can run on."""
        capability = nvidia_capability(device)
        kernel = self.cards.get(capability) if capability else None
        return replace(self, kernel=kernel) if kernel else self

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
        if self is CUDNN:  # diffusers would copy its arguments, whose strides it takes as they are
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(q_BhRD, k_BhKD, v_BhKD, scale=scale)
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
        """Whether this process has the package that it needs, in a version that diffusers takes."""
        try:
            check_attention_backend(self.kernel)
        except (RuntimeError, ValueError):
            return False
        return self is not CUDNN or torch.backends.cudnn.is_available()

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
            return f"needs a device of compute capability {format_capability(self.capability)}"
        if self.cards and capability not in self.cards:
            cards = ", ".join(map(format_capability, self.cards))
            return f"runs on devices of compute capability {cards}, and this one has {format_capability(capability)}"
        if not self.is_there():
            return f"needs {self.package}, which is missing here or too old"
        if ring > 1 and self.lse_dims is None:
            return f"returns no log-sum-exp, which ring={ring} needs"
        return self.find_fault(capability, ring) if self.find_fault else None


@functools.cache
def notice_native(name: str) -> None:
    """Says once that a kernel other than the requested one runs."""
    logging.warning("The attention backend %s takes no mask; native attention computes the masked calls.", name)


def format_capability(capability: Capability) -> str:
    return ".".join(map(str, capability))


def sage(name: str, cards: Mapping[Capability, str]) -> Backend:
    """Returns a form of SageAttention by its name in a plan. Queries and keys are multiplied in 8 bits."""
    kernel = next(iter(cards.values()))
    return Backend(name, kernel, (8, 0), 128, PACKAGE, (0, 1, 2), cards=cards, find_fault=find_fault)


NATIVE = Backend("native", "native")
CUDNN = Backend("cudnn", "_native_cudnn", package="a torch with cuDNN")
HOPPER = (9, 0)  # flash-attn 3 refuses newer cards (flash-attention #1853, mistral.rs #1704)
BACKENDS = (  # auto takes the first that can run, and none after native: torch decides on cuDNN, and sage is lossy
    Backend(
        "flash3", "_flash_3", HOPPER, 256, "flash-attn 3 (flash_attn_interface)", (0, 2, 1), cards={HOPPER: "_flash_3"}
    ),
    Backend("flash", "flash", (8, 0), 256, "the package flash-attn", (0, 1, 2)),
    NATIVE,
    CUDNN,
    sage("sage", SAGE_KERNELS),
    sage("sage_fp8", FP8_KERNELS),
    sage("sage_fp16", FP16_KERNELS),
)


def choose_backend(name: str, device: torch.device, dtype: torch.dtype, head_dim: int, ring: int) -> Backend:
    """Returns the backend with this name in a plan; auto takes one of a flash package, or torch's own choice. Raises
    PlanError, which says what to use instead."""
    able = [backend for backend in BACKENDS if backend.why_not(device, dtype, head_dim, ring) is None]
    if name == "auto":
        return able[0]
    backend = backend_named(name)
    if backend not in able:
        reason = backend.why_not(device, dtype, head_dim, ring)
        others = " or ".join(other.name for other in able)
        raise PlanError(f"attention={name} {reason}.", f"Use attention={others}, or auto.")
    return backend.on(device)


def backend_named(name: str) -> Backend:
    """Returns the backend with this name in a plan, other than auto."""
    return next(backend for backend in BACKENDS if backend.name == name)
