"""The functions of the package sageattention, computed on a CPU as its documentation and sources say.

Queries and keys are rounded to 8 bits, the keys without their mean; scores are to base 2 within the kernel. The
returned log-sum-exp is natural, of the unchanged keys, of shape (B, H, tokens) whatever the layout of the tensors is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from diffusers.models import attention_dispatch

FUNCTIONS = (
    "sageattn",
    "sageattn_qk_int8_pv_fp8_cuda",
    "sageattn_qk_int8_pv_fp8_cuda_sm90",
    "sageattn_qk_int8_pv_fp16_cuda",
)


def to_int8(tensor: torch.Tensor) -> torch.Tensor:
    """Rounds each token of a head to 255 steps."""
    step = tensor.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (tensor / step).round() * step


def to_fp8(v_BHKD: torch.Tensor) -> torch.Tensor:
    """Rounds each channel of a head to float8 e4m3."""
    scale = v_BHKD.abs().amax(-2, keepdim=True).clamp_min(1e-12) / 448
    return (v_BHKD / scale).to(torch.float8_e4m3fn).to(v_BHKD.dtype) * scale


def attend(
    called: Callable[[str], None],
    name: str,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
    **unknown: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    assert not is_causal and not unknown, unknown
    assert tensor_layout in ("HND", "NHD")
    assert all(each.stride(-1) == 1 for each in (q, k, v)), "Last dim of qkv must be contiguous."
    called(name)
    q_BHRD, k_BHKD, v_BHKD = ((each.transpose(1, 2) if tensor_layout == "NHD" else each).float() for each in (q, k, v))
    assert q_BHRD.shape[1] == k_BHKD.shape[1] == v_BHKD.shape[1], "The heads are in another place."
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    mean_BH1D = k_BHKD.mean(-2, keepdim=True)
    scores = to_int8(q_BHRD) @ to_int8(k_BHKD - mean_BH1D).mT * scale / math.log(2)
    lse_BHR = torch.logsumexp(scores * math.log(2), -1) / math.log(2)
    weights = torch.exp2(scores - lse_BHR.unsqueeze(-1))
    out = (weights @ (to_fp8(v_BHKD) if "fp8" in name else v_BHKD)).to(q.dtype)
    out = out.transpose(1, 2) if tensor_layout == "NHD" else out
    correction_BHR = (q_BHRD @ mean_BH1D.mT).squeeze(-1) * scale
    return (out, lse_BHR * math.log(2) + correction_BHR) if return_lse else out


def fake_package(called: Callable[[str], None] = lambda _name: None) -> dict[str, Callable[..., Any]]:
    """The package's functions by name. called: gets the name of each that is called."""
    return {name: partial(attend, called, name) for name in FUNCTIONS}


def install_fake() -> None:
    """Gives diffusers the package's functions, for the rest of this process."""
    for name, function in fake_package().items():
        setattr(attention_dispatch, name, function)
