"""diffusers' classes whose blocks have one stream of tokens."""

from dataclasses import replace
from typing import Any

from ..hooks import Hooks
from .spec import LOCAL, SKIPS, BlockList, ByFrame, single_stream
from .usual import register_usual

# DiT, class-conditional (https://arxiv.org/abs/2212.09748): DiT-XL/2 and the demo model.
DIT = single_stream("transformer_blocks", "hidden_states", "attn1", stream="img", whole=(
        "attention_mask", "encoder_hidden_states", "encoder_attention_mask", "timestep", "cross_attention_kwargs",
        "class_labels", "added_cond_kwargs",
    ), between=LOCAL)  # fmt: skip
HEAD = BlockList("proj_out_2", tokens={"input": "img"}, returns="img", between=LOCAL)
register_usual("DiTTransformer2DModel", DIT, head=HEAD, shared=("transformer_blocks.0.norm1.emb",))
# PixArt-alpha (https://arxiv.org/abs/2310.00426) and PixArt-Sigma (https://arxiv.org/abs/2403.04692).
register_usual("PixArtTransformer2DModel", DIT)

# LTX-Video (https://arxiv.org/abs/2501.00103) from text: 0.9.0 and 0.9.1, and later ones, which need video_coords.
LTX = replace(
    DIT,
    sides={"image_rotary_emb": (1, "img"), "temb": (1, "img")},
    whole=("encoder_hidden_states", "encoder_attention_mask"),
)
register_usual("LTXVideoTransformer3DModel", LTX)


def keep_token_dim(model: Any, hooks: Hooks) -> None:
    """Gives attention its dim of tokens back, which a block drops if a rank has a single one."""
    for block in model.transformer_blocks:
        if attention := getattr(block, "attn1", None):  # other stages' blocks have none
            hooks.before(attention, lambda _, args: args if args[0].ndim == 3 else (args[0][:, None], *args[1:]))


# Allegro (https://arxiv.org/abs/2410.15458), from text.
ALLEGRO = replace(
    DIT,
    sides={"image_rotary_emb": (1, (None, "img"))},  # tables of frequencies, and the tokens' positions in them
    whole=("encoder_hidden_states", "temb", "encoder_attention_mask"),
    refused=("attention_mask",),
)
register_usual("AllegroTransformer3DModel", ALLEGRO, prepare=keep_token_dim)

# Wan 2.1 and 2.2 (https://arxiv.org/abs/2503.20314), from text, from an image, or between two images.
WAN = replace(
    DIT,
    path="blocks",
    sides={"rotary_emb": (1, "img"), "temb": ByFrame(4, "img")},
    whole=("encoder_hidden_states",),
)
register_usual("WanTransformer3DModel", WAN)
# SkyReels V2 (https://arxiv.org/abs/2504.13074) from text or an image: Wan's blocks. Without diffusion forcing.
SKYREELS = replace(
    WAN, sides={"rotary_emb": (1, "img")}, whole=("encoder_hidden_states", "temb"), refused=("attention_mask",)
)
register_usual("SkyReelsV2Transformer3DModel", SKYREELS)

# Cosmos Predict 2 and 2.5 (https://arxiv.org/abs/2511.00062), from text, or from frames that are kept.
COSMOS = replace(
    DIT,
    sides={
        "image_rotary_emb": (0, "img"),
        "extra_pos_emb": (1, "img"),
        "embedded_timestep": ByFrame(3, "img"),
        "temb": ByFrame(3, "img"),
    },
    whole=("encoder_hidden_states", "attention_mask"),
    refused=("controlnet_residual", "latents", "block_idx"),
)
register_usual("CosmosTransformer3DModel", COSMOS)

# HunyuanDiT 1.0 to 1.2 (https://arxiv.org/abs/2405.08748).
HUNYUAN = replace(
    DIT,
    path="blocks",
    tokens={"hidden_states": "img", "skip": "img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("encoder_hidden_states", "temb"),
)
register_usual("HunyuanDiT2DModel", HUNYUAN, image="", unstaged=SKIPS)

# Kandinsky 5 (https://arxiv.org/abs/2511.14993): images, and videos from text or an image.
KANDINSKY = single_stream(
    "visual_transformer_blocks",
    "visual_embed",
    "self_attention",
    stream="img",
    sides={"rope": (1, "img")},
    whole=("text_embed", "time_embed"),
    refused=("sparse_params",),
    between=LOCAL,
)
register_usual("Kandinsky5Transformer3DModel", KANDINSKY, head=None)

# OmniGen 1 (https://arxiv.org/abs/2409.11340) from text. Text, time and image are one sequence.
LAYERS = single_stream(
    "layers",
    "hidden_states",
    "self_attn",
    sides={"image_rotary_emb": (0, "x")},
    whole=("attention_mask",),
    between=LOCAL,
)
register_usual("OmniGenTransformer2DModel", LAYERS, head=None, image="", unsplit=("position_ids",))

# Lumina Image 2.0 (https://arxiv.org/abs/2503.21758).
LUMINA = replace(
    LAYERS, attention={"attn": "x"}, sides={"image_rotary_emb": (1, "x")}, whole=("attention_mask", "temb")
)
HEAD = BlockList("norm_out", tokens={"x": "x"}, returns="x", whole=("conditioning_embedding",), between=LOCAL)
register_usual("Lumina2Transformer2DModel", LUMINA, head=HEAD, image="")

# Z-Image (https://github.com/Tongyi-MAI/Z-Image), base and Turbo.
ZIMAGE = single_stream(
    "layers",
    "x",
    "attention",
    sides={"freqs_cis": (1, "x")},
    whole=("attn_mask", "adaln_input"),
    refused=("noise_mask", "adaln_noisy", "adaln_clean"),
    between=LOCAL,
)
HEAD = BlockList(
    "all_final_layer.2-1",
    tokens={"x": "x"},
    returns="x",
    whole=("c",),
    refused=("noise_mask", "c_noisy", "c_clean"),
    between=LOCAL,
)
register_usual("ZImageTransformer2DModel", ZIMAGE, head=HEAD, image="")

# Sana (https://arxiv.org/abs/2410.10629): only rows of the batch, and blocks, can be shared exactly.
SANA = replace(
    DIT,
    whole=("encoder_hidden_states", "encoder_attention_mask", "timestep", "height", "width"),
    refused=("attention_mask",),
)
WHY = "its attention is linear, and it convolves over the image in every block"
register_usual("SanaTransformer2DModel", SANA, head=None, image="", unshared=WHY)
# Latte (https://arxiv.org/abs/2401.03048): only rows of the batch can be shared.
WHY = "its blocks attend within a frame and through the frames in turn"
register_usual("LatteTransformer3DModel", head=None, image="", unshared=WHY)
