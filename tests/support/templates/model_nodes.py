"""The nodes in ComfyUI's own workflows that a MODEL goes through, as a MODEL of ours meets them."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch

from tests.support.cases.host.networks import NETWORKS

DEVICES = 2
LLLITE, MULTITALK = "comfy.ldm.anima.lllite", "comfy.ldm.wan.model_multitalk"
# What nodes call the model with (the transformer_options), of those that need more than a MODEL and widgets to be
# executed, and of those that change it in a sampling alone. They are read off the nodes' code. A name is of a class of
# ComfyUI's whose objects run a network inside of the model, in the loader's module if it names none.
PATCHES: Mapping[str, Mapping[str, Any]] = {
    "AnimaLLLiteApply": {
        "patches": {
            "post_input": [f"{LLLITE}.AnimaLLLitePatch"],
            **dict.fromkeys(("attn1_patch", "attn2_patch"), [f"{LLLITE}.AnimaLLLiteAttentionPatch"]),
            "mlp_patch": [f"{LLLITE}.AnimaLLLiteMLPPatch"],
        }
    },
    "ARVideoI2V": {"ar_config": {"initial_latent": None}},
    "LatentApplyOperationCFG": {},
    "LoraLoader": {},
    "LoraLoaderModelOnly": {},
    "LTXVReferenceAudio": {},
    "QwenImageDiffsynthControlnet": {"patches": {"double_block": ["DiffSynthCnetPatch"]}},
    "SamplerARVideo": {"ar_state": {"start_frame": 0, "kv_caches": []}},
    "SkipLayerGuidanceDiT": {},  # in the ranks: tests/comfyui/files/test_census.py
    "SkipLayerGuidanceDiTSimple": {},
    "TripoSplatSamplingPreview": {},
    "WanInfiniteTalkToVideo": {"patches": {"attn2_patch": [f"{MULTITALK}.MultiTalkCrossAttnPatch"]}},
    "ZImageFunControlnet": {"patches": dict.fromkeys(("noise_refiner", "double_block"), ["ZImageControlPatch"])},
    "ComfySwitchNode": {},  # it hands the MODEL on
}
# The networks of those objects.
NETWORK_OF = {
    "DiffSynthCnetPatch": "qwen-diffsynth",
    "MultiTalkCrossAttnPatch": "infinitetalk",
    "ZImageControlPatch": "z-image-fun",
    **dict.fromkeys(("AnimaLLLitePatch", "AnimaLLLiteAttentionPatch", "AnimaLLLiteMLPPatch"), "lllite"),
}


def with_networks(options: Any, loader: Any) -> Any:
    """The options with objects for the names of classes. Their networks are from a file. loader: ComfyUI's node."""
    if isinstance(options, Mapping):
        return {name: with_networks(value, loader) for name, value in options.items()}
    if isinstance(options, list):
        return [with_networks(value, loader) for value in options]
    if not isinstance(options, str):
        return options
    module, _, name = options.rpartition(".")
    patch = object.__new__(getattr(sys.modules[module or loader.__module__], name))
    cpu = torch.device("cpu")
    network = NETWORKS[NETWORK_OF[name]].build()
    patch.model_patch = importlib.import_module("comfy.model_patcher").ModelPatcher(network, cpu, cpu)
    patch.model_patch.cached_patcher_init = (loader().load_model_patch, ("network.safetensors",), 0)
    return patch


def executed(node_class: Any, model: Any) -> Any:
    """The MODEL behind a node that takes a MODEL and widgets, which have their defaults. Of a sampler, the same."""
    if "MODEL" not in node_class.RETURN_TYPES:
        return model
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
