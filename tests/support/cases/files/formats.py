"""The quantised formats of ComfyUI's files, as layers' `comfy_quant` says them. made_with: for making weights."""

from __future__ import annotations

from typing import Any

FORMATS: dict[str, dict[str, Any]] = {
    "plain fp8": {},
    "fp8": {"format": "float8_e4m3fn", "made_with": {"scale": "recalculate"}},
    "fp8 e5m2": {"format": "float8_e5m2", "made_with": {"scale": "recalculate"}},
    "int8": {"format": "int8_tensorwise"},
    "int8 convrot": {
        "format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64, "made_with": {"per_channel": True}
    },
    "w4a4": {"format": "convrot_w4a4", "convrot_groupsize": 64},
    "mxfp8": {"format": "mxfp8"},
    "nvfp4": {"format": "nvfp4", "made_with": {"scale": "recalculate"}},
}  # fmt: skip
