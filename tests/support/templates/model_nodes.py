"""The nodes in ComfyUI's own workflows that a MODEL goes through, as a MODEL of ours meets them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

DEVICES = 2


def function(*_args: Any, **_kwargs: Any) -> None:
    """Stands for what a node would have run inside of the model."""


# What nodes call the model with (the transformer_options), of those that need more than a MODEL and widgets to be
# executed, and of those that change it in a sampling alone. They are read off the nodes' code.
PATCHES: Mapping[str, Mapping[str, Any]] = {
    "AnimaLLLiteApply": {"patches": {"attn1_patch": [function], "attn2_patch": [function], "mlp_patch": [function]}},
    "ARVideoI2V": {"ar_config": {"initial_latent": None}},
    "GetICLoRAParameters": {},
    "LatentApplyOperationCFG": {},
    "LoraLoader": {},
    "LoraLoaderModelOnly": {},
    "LTXVReferenceAudio": {},
    "QwenImageDiffsynthControlnet": {"patches": {"double_block": [function]}},
    "SamplerARVideo": {"ar_state": {"start_frame": 0, "kv_caches": []}},
    "SeedVR2Conditioning": {},
    "SkipLayerGuidanceDiT": {},  # in the ranks: tests/comfyui/files/test_census.py
    "SkipLayerGuidanceDiTSimple": {},
    "TripoSplatSamplingPreview": {},
    "WanInfiniteTalkToVideo": {"patches": {"attn2_patch": [function], "attn1_patch": [function]}},
    "ZImageFunControlnet": {"patches": {"noise_refiner": [function], "double_block": [function]}},
    # They sample from the MODEL, or hand it on, or have another one.
    **dict.fromkeys(
        (
            *("BasicGuider", "BasicScheduler", "BetaSamplingScheduler", "CFGGuider", "ComfySwitchNode"),
            *("DualModelGuider", "KSampler", "KSamplerAdvanced", "SAM3_Detect", "SAM3_VideoTrack", "SDTurboScheduler"),
            *("DualCFGGuider", "SamplerCustom", "SamplerCustomAdvanced", "SamplerEulerAncestral", "SamplerLCM"),
        ),
        {},
    ),
}


def executed(node_class: Any, model: Any) -> Any:
    """The MODEL behind a node that takes a MODEL and widgets, which have their defaults."""
    wanted = node_class.INPUT_TYPES()
    values: dict[str, Any] = {}
    for name, (kind, *options) in {**wanted.get("required", {}), **wanted.get("optional", {})}.items():
        if kind == "MODEL":
            values[name] = model
        else:
            values[name] = options[0]["default"] if options and "default" in options[0] else kind[0]
    run = getattr(node_class, node_class.FUNCTION)
    output = (run if inspect.ismethod(run) else getattr(node_class(), node_class.FUNCTION))(**values)
    return getattr(output, "args", output)[0]
