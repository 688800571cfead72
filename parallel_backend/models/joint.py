"""diffusers' classes in which image and text attend together."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..hooks import Hooks
from .spec import FULL_LENGTH, OTHER, BlockList
from .usual import JOINED, JOINT, PROJ_OUT, register_usual

SINGLE = "single_transformer_blocks"
PARALLEL_MLP = {"proj_mlp": OTHER, "act_mlp": OTHER}  # runs parallel to attention in single blocks
ROTARY = {"image_rotary_emb": (0, "txt+img")}
LATE_HEAD = replace(PROJ_OUT, between=FULL_LENGTH)


def register_flux(model_class: str, **fields: tuple[str, ...]) -> None:
    """Adds a class with Flux's blocks. fields: of these."""
    double = replace(JOINT, sides=ROTARY, **fields)
    register_usual(model_class, double, replace(double, path=SINGLE, parallel_mlp=PARALLEL_MLP))


# Flux.1 (https://github.com/black-forest-labs/flux): dev and schnell, Fill, Canny and Depth, Kontext.
register_flux("FluxTransformer2DModel")
# Bria 3 (https://huggingface.co/briaai/BRIA-3.2): without pooled text and guidance.
register_flux("BriaTransformer2DModel", whole=("temb",), refused=("attention_kwargs",))
# Ovis-Image (https://huggingface.co/AIDC-AI/Ovis-Image-7B): its text tokens are on a diagonal.
OVIS = replace(JOINT, sides=ROTARY)
register_usual("OvisImageTransformer2DModel", OVIS, replace(OVIS, path=SINGLE))

# Chroma (https://huggingface.co/lodestones/Chroma1-HD): without pooled text, its modulation distilled.
WHOLE = ("temb", "attention_mask", "joint_attention_kwargs")
DOUBLE = replace(JOINT, sides=ROTARY, whole=WHOLE)
JOINED_MLP = replace(JOINED, sides=ROTARY, whole=WHOLE, parallel_mlp=PARALLEL_MLP)
register_usual("ChromaTransformer2DModel", DOUBLE, JOINED_MLP, head=LATE_HEAD)

# Flux.2 dev, with the guidance scale as a condition, and klein (https://github.com/black-forest-labs/flux2).
DOUBLE = replace(JOINT, sides=ROTARY, whole=("temb_mod_img", "temb_mod_txt", "joint_attention_kwargs"))
FUSED = replace(
    JOINED,
    parallel_mlp={"attn.to_qkv_mlp_proj": "qkv+"},
    sides=ROTARY,
    whole=("temb_mod", "joint_attention_kwargs", "split_hidden_states"),
    refused=("encoder_hidden_states", "text_seq_len"),
)
register_usual("Flux2Transformer2DModel", DOUBLE, FUSED, head=LATE_HEAD)

# AuraFlow (https://huggingface.co/fal/AuraFlow-v0.3).
WHOLE = ("temb", "attention_kwargs")
DOUBLE = replace(JOINT, path="joint_transformer_blocks", whole=WHOLE)
register_usual("AuraFlowTransformer2DModel", DOUBLE, replace(JOINED, whole=WHOLE), head=LATE_HEAD)

# Qwen-Image and Qwen-Image-Edit (https://arxiv.org/abs/2508.02324).
QWEN = replace(
    JOINT,
    sides={
        "image_rotary_emb": (0, ("img", "txt")),
        "encoder_hidden_states_mask": (1, "txt"),
        "modulate_index": (1, "img"),
    },
    local_masks={"attn": ""},
)
register_usual("QwenImageTransformer2DModel", QWEN, image="")

# Stable Diffusion 3 (https://arxiv.org/abs/2403.03206) and 3.5, whose first blocks attend to the image twice.
register_usual("SD3Transformer2DModel", replace(JOINT, attention={"attn": "img+txt", "attn2": "img"}))


def keep_rotary_on_device(path: str) -> Callable[[Any, Hooks], None]:
    """Returns what moves a rotary embedding that a class makes on the CPU to the latents' device, once per forward.
    Otherwise each block would move it and make the host wait. path: of the submodule that makes it."""

    def move(_module: torch.nn.Module, args: tuple, rotary: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (latents,) = args
        return tuple(part.to(latents.device) for part in rotary)

    return lambda model, hooks: hooks.after(model.get_submodule(path), move)


# CogVideoX (https://arxiv.org/abs/2408.06072) 1.0 and 1.5, from text or from an image.
COGVIDEOX = replace(
    JOINT,
    returns=("img", "txt"),
    attention={"attn1": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb", "attention_kwargs"),
)
register_usual("CogVideoXTransformer3DModel", COGVIDEOX, head=None)
# CogView4 (https://github.com/THUDM/CogView4).
COGVIEW = replace(COGVIDEOX, refused=("attention_mask",))
register_usual("CogView4Transformer2DModel", COGVIEW, prepare=keep_rotary_on_device("rope"))
# EasyAnimate 5.1 (https://arxiv.org/abs/2405.18991), from text, from images (InP) or under control. Blocks that have
# one set of weights for image and text take and return the same.
EASY = replace(COGVIDEOX, whole=("temb",))
register_usual("EasyAnimateTransformer3DModel", EASY, prepare=keep_rotary_on_device("rope_embedding"))
# ConsisID (https://arxiv.org/abs/2411.17440): CogVideoX from an image, with a face that its video keeps. Between blocks
# the image's tokens attend to the face, each for itself. So they stay local there, too.
register_usual("ConsisIDTransformer3DModel", EASY, head=None)

# HunyuanVideo (https://arxiv.org/abs/2412.03603), from text, or from an image in channels of its own.
DOUBLE = replace(
    COGVIDEOX,
    attention={"attn": "img+txt"},
    sides={"freqs_cis": (0, "img")},
    whole=("temb", "attention_mask", "1"),  # the first frame's tokens; only used with "0"
    refused=("0",),
)
HUNYUAN_SINGLE = replace(DOUBLE, path=SINGLE, parallel_mlp=PARALLEL_MLP, sides={"image_rotary_emb": (0, "img")})
register_usual("HunyuanVideoTransformer3DModel", DOUBLE, HUNYUAN_SINGLE, image="")

# HiDream I1 (https://arxiv.org/abs/2505.22705). Every block adds a text of its own, and drops it again: with PipeFusion
# it would have to go with every patch.
DOUBLE = replace(
    COGVIDEOX,
    path="double_stream_blocks",
    attention={"block.attn1": "img+txt"},
    sides={"image_rotary_emb": (1, "img+txt"), "hidden_states_masks": (1, "img")},
    whole=("temb",),
    between=FULL_LENGTH,
)
HIDREAM_SINGLE = replace(
    DOUBLE,
    path="single_stream_blocks",
    tokens={"hidden_states": "img+txt"},
    returns="img+txt",
    sides={"image_rotary_emb": (1, "img+txt"), "hidden_states_masks": (1, "img+txt")},
    refused=("encoder_hidden_states",),
)
HEAD = BlockList("final_layer.linear", tokens={"input": "img"}, returns="img")
register_usual("HiDreamImageTransformer2DModel", DOUBLE, HIDREAM_SINGLE, head=HEAD, image="")
