"""Ring attention: the next block of keys and values arrives while attention computes the present one.

https://arxiv.org/abs/2310.01889. Shapes: B batch, h local heads, R this rank's tokens, K a block's tokens, D head dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import cycle

import torch
import torch.nn.functional as F

from ...compat import cpu_attention_with_lse, efficient_attention_with_lse, flash_attention_with_lse
from ...device import CPU, has_cuda, nvidia_capability
from ...groups.collectives import exchange_messages
from ...groups.mesh import Axis
from ..forward import ForwardSlot

BUFFERS = ("keys and values of even hops", "keys and values of odd hops")
FLASH_HEAD_DIM = 256  # the largest that CUDA's flash kernel takes
AMPERE = (8, 0)  # the least compute capability of that kernel, and of CUDA's kernels for bf16
QUERIES = 1024  # if there is no kernel, the scores of this many queries are in memory at a time
ALIGNMENT = 8  # elements of CUDA's kernels, in fp16 and bf16; fp32 needs half of it


def ring_attention(
    q_BhRD: torch.Tensor,
    k_BhRE: torch.Tensor,
    v_BhRE: torch.Tensor,
    lengths: list[int],
    axis: Axis,
    attend_with_lse: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    slot: ForwardSlot,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    kept: Sequence[torch.Tensor] = (),
) -> torch.Tensor:
    """Computes attention of this rank's queries to every rank's keys and values.

    lengths: tokens by rank of the ring.
    attend_with_lse: see `Backend.attend_with_lse`. It takes keys and values as they are sent. They may have fewer heads
    than the queries.
    slot: has the staging buffers, and work of the block to compute before the first keys are waited for.
    mask: (…, R, all keys) as for `F.scaled_dot_product_attention`, with keys in the ring's order.
    kept: keys and values that every rank has, attended to together with this rank's own. There is no mask then.

    Two blocks are in memory: one is computed, the other arrives. Every attention of a sampling uses the same two
    buffers. A buffer is overwritten by a copy of the current stream, or by a receive that waits for what this stream
    has launched. So it comes after the attention that read the buffer, and after the send, for which this stream has
    waited. Results are merged in fp32 by their log-sum-exp.
    """
    following = (axis.index + 1) % axis.degree
    sources = [(axis.index - hop) % axis.degree for hop in range(axis.degree)]
    shapes = [torch.Size((2, *k_BhRE.shape[:2], lengths[source], k_BhRE.shape[3])) for source in sources]
    buffers = [slot.take_buffer(name, max(map(torch.Size.numel, shapes)), k_BhRE) for name in BUFFERS]
    blocks = [buffer[: shape.numel()].view(shape) for buffer, shape in zip(cycle(buffers), shapes, strict=False)]
    torch.stack((k_BhRE.detach(), v_BhRE.detach()), out=blocks[0])
    masks = [None] * axis.degree if mask is None else make_additive(mask, q_BhRD.dtype).split(lengths, -1)
    out = lse = None
    for hop, (block, source) in enumerate(zip(blocks, sources, strict=True)):
        sent, arriving = ([(block, following)], [(blocks[hop + 1], sources[1])]) if hop + 1 < axis.degree else ([], [])
        wait = exchange_messages("ring", axis, sent, arriving)
        attended = block if hop or not kept else torch.cat((torch.stack(tuple(kept)), block), 3)
        if attended.numel() and q_BhRD.numel():
            block_out, block_lse = attend_with_lse(q_BhRD, attended[0], attended[1], scale, masks[source])
            out, lse = merge(out, lse, block_out.float(), block_lse)
        if not hop:
            slot.forward.run_deferred()
        wait()
    slot.buffers.update(zip(BUFFERS, buffers, strict=True))  # not if attention failed: messages may be under way
    return q_BhRD if out is None else out.to(q_BhRD.dtype)


def make_additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turns a boolean mask (true: attend) into one that is added to the scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))


def merge(
    out: torch.Tensor | None, lse: torch.Tensor | None, block_out: torch.Tensor, block_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges two partial softmax results over disjoint keys. out: BhRD, lse: BhR, both fp32."""
    if out is None or lse is None:
        return block_out, block_lse
    weight = torch.sigmoid(block_lse - lse).nan_to_num(0).unsqueeze(-1)  # not a number if neither saw a key
    return torch.lerp(out, block_out, weight), torch.logaddexp(lse, block_lse)


def attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, scale: float | None, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention and the log-sum-exp of its scores (BhR, fp32) by torch's own kernels. mask: additive, or none.

    A query whose mask excludes every key gets 0 and minus infinity, because kernels return different values for it.
    """
    if q_BhRD.device.type == CPU:
        out, lse = cpu_attention_with_lse(q_BhRD, k_BhKD, v_BhKD, mask, scale)
    elif not has_cuda(q_BhRD.device) or (q_BhRD.dtype == torch.bfloat16 and is_before_ampere(q_BhRD.device)):
        out, lse = plain_attention_with_lse(q_BhRD, k_BhKD, v_BhKD, mask, scale)
    else:
        out, lse = cuda_attention_with_lse(q_BhRD, k_BhKD, v_BhKD, scale, mask)
    if mask is not None:
        blind = mask.isneginf().all(-1).expand(lse.shape)
        out, lse = out.masked_fill(blind.unsqueeze(-1), 0), lse.masked_fill(blind, float("-inf"))
    return out, lse


@functools.cache
def is_before_ampere(device: torch.device) -> bool:
    """Whether it is an NVIDIA card below AMPERE. Each attention call asks, so a device is asked once."""
    return (nvidia_capability(device) or AMPERE) < AMPERE


def cuda_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, scale: float | None, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the same by CUDA's kernels. They take only head dims that are multiples of ALIGNMENT. Others are filled
    up with zeros, which change neither the scores nor the sums."""
    width = q_BhRD.shape[-1]
    if width % ALIGNMENT:
        scale = width**-0.5 if scale is None else scale
        q_BhRD, k_BhKD, v_BhKD = (F.pad(each, (0, -width % ALIGNMENT)) for each in (q_BhRD, k_BhKD, v_BhKD))
    has_flash = q_BhRD.dtype != torch.float32 and width <= FLASH_HEAD_DIM and not is_before_ampere(q_BhRD.device)
    if mask is not None or not has_flash:
        bias = None if mask is None else align_rows(mask).expand(*q_BhRD.shape[:3], k_BhKD.shape[2])
        out, lse = efficient_attention_with_lse(q_BhRD, k_BhKD, v_BhKD, bias, scale)
    else:
        out, lse = flash_attention_with_lse(q_BhRD, k_BhKD, v_BhKD, scale)
    return out[..., :width], lse


def plain_attention_with_lse(
    q_BhRD: torch.Tensor, k_BhKD: torch.Tensor, v_BhKD: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the same by matrix products in fp32, where no kernel for the dtype returns the log-sum-exp. Takes some
    queries at a time, to limit the scores in memory."""
    factor = q_BhRD.shape[-1] ** -0.5 if scale is None else scale
    k_BhDK, v_BhKD, parts = k_BhKD.float().transpose(-2, -1), v_BhKD.float(), []
    for start in range(0, q_BhRD.shape[2], QUERIES):
        queries = slice(start, start + QUERIES)
        scores = q_BhRD[:, :, queries].float() @ k_BhDK * factor
        if mask is not None:
            scores = scores + (mask if mask.shape[-2] == 1 else mask[..., queries, :])
        lse = scores.logsumexp(-1)
        parts.append(((scores - lse.unsqueeze(-1)).exp() @ v_BhKD, lse))
    out_BhRD, lse_BhR = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    return out_BhRD.to(q_BhRD.dtype), lse_BhR


def align_rows(mask: torch.Tensor) -> torch.Tensor:
    """Copies a mask so that its rows begin where CUDA's kernel can read them. Dims of size 1 stay so."""
    keys = mask.shape[-1]
    padded = mask.new_zeros(*mask.shape[:-1], keys + -keys % ALIGNMENT)
    padded[..., :keys] = mask
    return padded[..., :keys]
