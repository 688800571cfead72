"""A layout for ComfyUI's quantised tensors whose data is GGUF blocks.

To ComfyUI's detection, classes and loader, a QuantizedTensor has its dequantised shape. An operation that the layout
does not define uses the dequantised values. So a layer's weight stays packed (on a CPU, in the file's pages), and is
unpacked only while the layer runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from comfy.quant_ops import QuantizedLayout, QuantizedTensor
from comfy_kitchen.tensor import BaseLayoutParams, register_layout_class

from .gguf_blocks import FORMATS, dequantise

LAYOUT = "ParallelDiT_GGUF"  # in ComfyUI's registry


class GGUFLayout(QuantizedLayout):
    """Blocks as bytes, (blocks, bytes a block)."""

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        """form: GGUF's name of the blocks' format. scale: empty, because the blocks contain their scales."""

        form: str = ""

    @classmethod
    def quantize(cls, tensor: torch.Tensor, **_options: Any) -> tuple[torch.Tensor, Any]:
        raise TypeError("GGUF weights can only be read, not created.")

    @classmethod
    def dequantize(cls, qdata: torch.Tensor, params: Any) -> torch.Tensor:
        if qdata.is_meta:
            return qdata.new_empty(params.orig_shape, dtype=params.orig_dtype)
        if params.form in FORMATS:
            flat = dequantise(qdata, params.form, math.prod(params.orig_shape), params.orig_dtype)
        else:
            import gguf

            flat = torch.from_numpy(gguf.dequantize(qdata.cpu().numpy(), gguf.GGMLQuantizationType[params.form]))
        return flat.to(qdata.device, params.orig_dtype).view(params.orig_shape)

    @classmethod
    def get_plain_tensors(cls, qtensor: QuantizedTensor) -> tuple[torch.Tensor, ...]:
        names, _ = qtensor.__tensor_flatten__()
        return (getattr(qtensor, names[0]),)

    @classmethod
    def state_dict_tensors(cls, qdata: torch.Tensor, params: Any) -> dict[str, torch.Tensor]:
        return {"": qdata}


register_layout_class(LAYOUT, GGUFLayout)


def is_packed(weight: Any) -> TypeGuard[QuantizedTensor]:
    """Whether a weight is packed in GGUF blocks."""
    return isinstance(weight, QuantizedTensor) and weight.layout_cls is GGUFLayout


def wrap_blocks(blocks: torch.Tensor, form: str, shape: tuple[int, ...]) -> QuantizedTensor:
    """Makes a weight of this shape from blocks, (blocks, bytes a block). It dequantises to fp32 by default."""
    params = GGUFLayout.Params(scale=torch.empty(0), orig_dtype=torch.float32, orig_shape=shape, form=form)
    return QuantizedTensor(blocks, LAYOUT, params)


def fit_packed(weight: QuantizedTensor, dtype: torch.dtype, dequantises: bool) -> torch.Tensor:
    """Prepares a packed weight for a model that computes in this dtype.

    It stays packed in the same memory if its layer dequantises it (`dequantises`) and its format is in FORMATS.
    Otherwise it is dequantised now: only the CPU can unpack other formats.
    """
    (blocks,) = GGUFLayout.get_plain_tensors(weight)
    params = replace(weight.params, orig_dtype=dtype)
    if dequantises and params.form in FORMATS:
        return QuantizedTensor(blocks, LAYOUT, params)
    return GGUFLayout.dequantize(blocks, params)
