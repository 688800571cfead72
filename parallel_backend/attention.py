"""The attention seam: self-attention of a sharded token sequence, around an unmodified attention module.

Shapes: B batch, H heads, h = H / degree local heads, S tokens in all, L local tokens, D head dim, P degree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .collectives import shard_sizes
from .errors import RequestError
from .mesh import Axis

Attend = Callable[..., torch.Tensor]


class UlyssesAttention:
    """Attention over all tokens for a share of the heads (DeepSpeed Ulysses, https://arxiv.org/abs/2309.14509).

    One all-to-all takes q, k and v together from token shards to head shards, one takes the result back. Buffers
    run token-first, so that what arrives from the other ranks already lies in sequence order and nothing is unpacked.
    """

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.tokens = 0

    def __call__(
        self, q_BHLD: torch.Tensor, k_BHLD: torch.Tensor, v_BHLD: torch.Tensor, attn_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns this rank's tokens of the attention result, BHLD. `self.tokens` is S, set at the token boundary."""
        if attn_mask is not None:
            raise RequestError("Masked self-attention is not supported on sharded tokens; use ulysses=1.")
        q_BhSD, k_BhSD, v_BhSD = self.scatter_heads(q_BHLD, k_BHLD, v_BHLD)
        return self.gather_heads(F.scaled_dot_product_attention(q_BhSD, k_BhSD, v_BhSD))

    def scatter_heads(self, *tensors_BHLD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Token shards with all heads (BHLD) to all tokens with a share of the heads (BhSD)."""
        batch, heads, local_tokens, head_dim = tensors_BHLD[0].shape
        degree, count = self.axis.degree, len(tensors_BHLD)
        lengths = shard_sizes(self.tokens, degree)
        send = tensors_BHLD[0].new_empty(degree, local_tokens, count, batch, heads // degree, head_dim)
        for index, tensor in enumerate(tensors_BHLD):
            send[:, :, index] = tensor.unflatten(1, (degree, -1)).permute(1, 3, 0, 2, 4)
        received = send.new_empty(self.tokens, count, batch, heads // degree, head_dim)
        dist.all_to_all_single(received, send.flatten(0, 1), lengths, [local_tokens] * degree, group=self.axis.group)
        return tuple(received.permute(1, 2, 3, 0, 4))

    def gather_heads(self, out_BhSD: torch.Tensor) -> torch.Tensor:
        """All tokens with a share of the heads (BhSD) to token shards with all heads (BHLD)."""
        degree = self.axis.degree
        lengths = shard_sizes(self.tokens, degree)
        local_tokens = lengths[self.axis.index]
        send = out_BhSD.permute(2, 0, 1, 3).contiguous()
        received = send.new_empty(degree * local_tokens, *send.shape[1:])
        dist.all_to_all_single(received, send, [local_tokens] * degree, lengths, group=self.axis.group)
        out_BLPhD = received.unflatten(0, (degree, local_tokens)).permute(2, 1, 0, 3, 4)
        return out_BLPhD.flatten(2, 3).transpose(1, 2)


class AttentionSeam(TorchFunctionMode):
    """While entered, hands every `F.scaled_dot_product_attention` call of the running module to `attend`."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 (torch's own signature)
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        if kwargs.pop("dropout_p", 0.0) or kwargs.pop("is_causal", False):
            raise RequestError("Dropout and causal masks are not supported in self-attention on sharded tokens.")
        return self.attend(*args, **kwargs)


def install_attention(module: torch.nn.Module, attend: Attend) -> None:
    """Runs the module's attention arithmetic through `attend`; its projections and norms stay its own."""
    seam = AttentionSeam(attend)
    module.register_forward_pre_hook(lambda *_: seam.__enter__() and None)
    module.register_forward_hook(lambda *_: seam.__exit__(None, None, None), always_call=True)
