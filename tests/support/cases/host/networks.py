"""Networks that ComfyUI's nodes run inside of a model, tiny, with random weights, and the nodes' functions that do."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.cases.host.base import BATCH, HostCase, fill_weights, of_comfyui
from tests.support.cases.host.lumina import CASES as LUMINA
from tests.support.cases.host.qwen import CASES as QWEN
from tests.support.cases.host.video import CASES as VIDEO
from tests.support.cases.host.wan import CASES as WANS
from tests.support.cases.host.wan import WAN

NODES, LLLITE, TALK = "comfy_extras.nodes_model_patch", "comfy.ldm.anima.lllite", "comfy.ldm.wan.model_multitalk"
Random = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class NetworkCase:
    """host: the model, with its call. network: its class, by module and name. config: what its constructor takes.
    options: from the network and random numbers to the model's `transformer_options`. counted: a layer of the network
    that runs for each of its tokens, by its path. is_longer: whether the model's stream goes on behind the network's
    tokens."""

    host: HostCase
    network: str
    config: Mapping[str, Any]
    options: Callable[[torch.nn.Module, Random], dict[str, Any]]
    counted: str
    is_longer: bool = False

    def build(self) -> torch.nn.Module:
        return fill_weights(of_comfyui(self.network, **self.config))

    def inputs(self, network: torch.nn.Module) -> tuple[tuple, dict[str, Any]]:
        generator = torch.Generator().manual_seed(11)
        random: Random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        args, kwargs = self.host.inputs()
        return args, {**kwargs, "transformer_options": self.options(network, random)}


def patch(name: str, network: torch.nn.Module, **attributes: Any) -> Any:
    """An object of ComfyUI's class without what its constructor does."""
    made = object.__new__(resolve_name(name))
    vae = SimpleNamespace(spacial_compression_encode=lambda: 8)
    vars(made).update(model_patch=SimpleNamespace(model=network), vae=vae, strength=0.7, **attributes)
    return made


def diffsynth(network: torch.nn.Module, random: Random) -> dict[str, Any]:
    """For half as many tokens as the image has with its references."""
    made = patch(f"{NODES}.DiffSynthCnetPatch", network, encoded_image=random(1, 77, 64), encoded_image_size=(112, 176))
    return {"patches": {"double_block": [made]}}


def z_image(network: torch.nn.Module, random: Random) -> dict[str, Any]:
    hint = random(1, 16, 14, 22)
    made = patch(
        f"{NODES}.ZImageControlPatch", network, encoded_image=hint, encoded_image_size=(112, 176), temp_data=None
    )
    return {"patches": {"noise_refiner": [made], "double_block": [made]}}


def uni3c(network: torch.nn.Module, random: Random) -> dict[str, Any]:
    render = random(1, 16, 3, 10, 14)
    made = patch(
        f"{NODES}.WanUni3CCnetPatch", network, prepared_render=render, temp_data=None, sigma_start=2.0, sigma_end=0.0
    )
    return {"patches": {"double_block": [made]}}


def multitalk(network: torch.nn.Module, random: Random) -> dict[str, Any]:
    made = patch(f"{TALK}.MultiTalkCrossAttnPatch", network, audio_scale=0.8)
    return {"patches": {"attn2_patch": [made]}, "audio_embeds": random(BATCH * 3, 2, 24)}


def lllite(network: torch.nn.Module, random: Random) -> dict[str, Any]:
    first = patch(f"{LLLITE}.AnimaLLLitePatch", network, image=random(1, 112, 176, 3), sigma_start=2.0, sigma_end=0.0)
    module = importlib.import_module(LLLITE)
    targets = {"q": "self_attn_q_proj", "k": "self_attn_k_proj", "v": "self_attn_v_proj"}
    patches = {
        "post_input": [first],
        "attn1_patch": [module.AnimaLLLiteAttentionPatch(first, targets)],
        "attn2_patch": [module.AnimaLLLiteAttentionPatch(first, {"q": "cross_attn_q_proj"})],
        "mlp_patch": [module.AnimaLLLiteMLPPatch(first)],
    }
    return {"patches": patches}


def lllite_network(width: int, layers: Iterable[str], dilations: tuple[int, ...] = ()) -> torch.nn.Module:
    """The parts in a file of a network for these layers of one block."""
    import comfy.ops

    module, operations = importlib.import_module(LLLITE), comfy.ops.disable_weight_init
    made = torch.nn.Module()
    made.lllite_conditioning1 = module.AnimaLLLiteConditioning(3, 16, 8, 1, dilations, operations=operations)
    for name in layers:
        made.add_module(f"lllite_dit_blocks_1_{name}", module.AnimaLLLiteModule(width, 8, 8, operations=operations))
    return made


class LLLite(NetworkCase):
    def build(self) -> torch.nn.Module:
        parts = lllite_network(64, ("self_attn_v_proj", "cross_attn_q_proj", "mlp_layer1"))
        return fill_weights(of_comfyui(self.network, state_dict=parts.state_dict(), metadata={}))


FUN = {"dim": 320, "n_heads": 5, "n_kv_heads": 5, "multiple_of": 32, "ffn_dim_multiplier": 1.0, "n_control_layers": 3}
FUN_CLASS = "comfy.ldm.lumina.controlnet.ZImage_Control"
FUNS = {
    "z-image-fun": FUN,
    "z-image-fun-refiner": FUN | {"refiner_control": True},
    "z-image-fun-broken": FUN | {"refiner_control": True, "broken": True},
}
ONE_BLOCK = {
    "in_channels": 36, "conv_out_dim": 8, "dim": 128, "ffn_dim": 8, "num_layers": 2, "time_embed_dim": 48,
    "out_proj_dim": 48, "add_channels": 7, "mid_channels": 8,
}  # fmt: skip
TALKING = HostCase("comfy.ldm.wan.model.WanModel", WAN | {"dim": 80}, WANS["wan-t2v"].call)
SPOKEN = {"in_dim": 80, "intermediate_dim": 8, "out_dim": 24, "context_tokens": 2, "num_layers": 4}

NETWORKS: dict[str, NetworkCase] = {
    "qwen-diffsynth": NetworkCase(
        QWEN["qwen-image"], f"{NODES}.QwenImageBlockWiseControlNet", {"num_layers": 3, "dim": 64}, diffsynth,
        "controlnet_blocks.0.input_proj",
    ),
    "qwen-edit-diffsynth": NetworkCase(
        QWEN["qwen-image-edit"], f"{NODES}.QwenImageBlockWiseControlNet", {"num_layers": 3, "dim": 64}, diffsynth,
        "controlnet_blocks.0.input_proj", is_longer=True,
    ),
    **{
        name: NetworkCase(LUMINA["zimage"], FUN_CLASS, config, z_image, "control_layers.0.after_proj", is_longer=True)
        for name, config in FUNS.items()
    },
    "uni3c": NetworkCase(
        WANS["wan-t2v"], "comfy.ldm.wan.uni3c.WanUni3CControlnet", ONE_BLOCK, uni3c, "controlnet_blocks.0.ffn.0"
    ),
    "infinitetalk": NetworkCase(
        TALKING, f"{NODES}.MultiTalkModelPatch", SPOKEN, multitalk, "blocks.0.norm_x"
    ),
    "lllite": LLLite(VIDEO["anima"], f"{LLLITE}.AnimaLLLite", {}, lllite, "lllite_dit_blocks_1_mlp_layer1.down"),
}  # fmt: skip
