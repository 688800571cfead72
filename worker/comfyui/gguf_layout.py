"""Weights in GGUF's blocks, as ComfyUI's quantised tensors of a layout of their own.

ComfyUI's detection, classes and loader take a QuantizedTensor for one of its dequantised shape, and whatever is done to
it that its layout has no words for is done to its dequantised values. So a layer's weight stays packed, in the file's
pages on a CPU, and is unpacked for as long as the layer runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from comfy.quant_ops import QuantizedLayout, QuantizedTensor
from comfy_kitchen.tensor import BaseLayoutParams, register_layout_class

from .gguf_blocks import FORMATS, dequantised

LAYOUT = "ParallelDiT_GGUF"  # in ComfyUI's registry


class GGUFLayout(QuantizedLayout):
    """Blocks as bytes, (blocks, bytes a block)."""

    @dataclass(frozen=True)
    class Params(BaseLayoutParams):
        """form: the blocks' format, as GGUF calls it. scale: empty, scales are in the blocks."""

        form: str = ""

    @classmethod
    def quantize(cls, tensor: torch.Tensor, **_options: Any) -> tuple[torch.Tensor, Any]:
        raise TypeError("Weights of a GGUF file are read and not made.")

    @classmethod
    def dequantize(cls, qdata: torch.Tensor, params: Any) -> torch.Tensor:
        if qdata.is_meta:
            return qdata.new_empty(params.orig_shape, dtype=params.orig_dtype)
        if params.form in FORMATS:
            flat = dequantised(qdata, params.form, math.prod(params.orig_shape), params.orig_dtype)
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
    """Whether a weight is in blocks of GGUF's."""
    return isinstance(weight, QuantizedTensor) and weight.layout_cls is GGUFLayout


def packed(blocks: torch.Tensor, form: str, shape: tuple[int, ...]) -> QuantizedTensor:
    """A weight of that shape in blocks, (blocks, bytes a block), of fp32 to whatever does not ask for another dtype."""
    params = GGUFLayout.Params(scale=torch.empty(0), orig_dtype=torch.float32, orig_shape=shape, form=form)
    return QuantizedTensor(blocks, LAYOUT, params)


def fitted(weight: QuantizedTensor, dtype: torch.dtype, dequantises: bool) -> torch.Tensor:
    """A packed weight as a model has it that computes in a dtype: in the same memory, or, where what uses it does not
    dequantise it for itself or its format can be unpacked on the CPU alone, dequantised now."""
    (blocks,) = GGUFLayout.get_plain_tensors(weight)
    params = replace(weight.params, orig_dtype=dtype)
    if dequantises and params.form in FORMATS:
        return QuantizedTensor(blocks, LAYOUT, params)
    return GGUFLayout.dequantize(blocks, params)
