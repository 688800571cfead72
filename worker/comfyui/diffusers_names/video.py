"""The tables of ComfyUI's names for diffusers' video classes."""

from __future__ import annotations

from .image import FEED_FORWARD, FLUX_DOUBLE_BLOCK, FLUX_SINGLE_BLOCK, IN_OUT, LAST_NORM
from .table import Config, Names, add_prefix, same

WAN_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0", **same("norm_q norm_k")}
WAN_BLOCK = {
    "modulation": "scale_shift_table",
    "norm3": "norm2",
    **add_prefix("self_attn.", "attn1.", WAN_ATTENTION),
    **add_prefix("cross_attn.", "attn2.", WAN_ATTENTION),
    **add_prefix("cross_attn.", "attn2.", {"k_img": "add_k_proj", "v_img": "add_v_proj", "norm_k_img": "norm_added_k"}),
    **add_prefix("ffn.", "ffn.", FEED_FORWARD),
}
WAN = {
    "patch_embedding": "patch_embedding",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed",
    "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
    "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
    "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
    "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
    **add_prefix("blocks.*.", "blocks.*.", WAN_BLOCK),
    "head.modulation": "scale_shift_table",
    "head.head": "proj_out",
}
OF_IMAGES = ("condition_embedder.image_embedder.*", "*blocks.*.attn2.add_[kv]_proj", "*blocks.*.attn2.norm_added_k")
WAN_SETTINGS = {"num_heads": "num_attention_heads", **same("freq_dim text_dim eps")}
WAN_FIXED = {"patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads", "cross_attn_norm": True}

# The encoder of a face's motion has 7 residual blocks. A blur comes before each convolution that halves the sizes.
CONVOLUTIONS = "motion_encoder.enc.net_app.convs"
BLUR = [[high * wide / 64 for wide in (1.0, 3.0, 3.0, 1.0)] for high in (1.0, 3.0, 3.0, 1.0)]
RESIDUAL_BLOCK = {
    "conv1.0.weight": "conv1.weight",
    "conv1.1.bias": "conv1.act_fn.bias",
    "conv2.1.weight": "conv2.weight",
    "conv2.2.bias": "conv2.act_fn.bias",
    "skip.1.weight": "conv_skip.weight",
}
FACE_BLOCK = {
    "linear1_q": "to_q",
    "linear1_kv": ("to_k", "to_v"),
    "linear2": "to_out",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
WAN_ANIMATE = {
    **WAN,
    "pose_patch_embedding": "pose_patch_embedding",
    "motion_encoder.dec.direction.weight": "motion_encoder.motion_synthesis_weight",
    f"{CONVOLUTIONS}.0.0.weight": "motion_encoder.conv_in.weight",
    f"{CONVOLUTIONS}.0.1.bias": "motion_encoder.conv_in.act_fn.bias",
    f"{CONVOLUTIONS}.8.weight": "motion_encoder.conv_out.weight",
    **{f"motion_encoder.enc.fc.{number}": f"motion_encoder.motion_network.{number}" for number in range(5)},
    **{
        f"{CONVOLUTIONS}.{number + 1}.{own}": f"motion_encoder.res_blocks.{number}.{theirs}"
        for number in range(7)
        for own, theirs in RESIDUAL_BLOCK.items()
    },
    **same("face_encoder.padding_tokens face_encoder.out_proj"),
    "face_encoder.conv1_local.conv": "face_encoder.conv1_local",
    "face_encoder.conv2.conv": "face_encoder.conv2",
    "face_encoder.conv3.conv": "face_encoder.conv3",
    **add_prefix("face_adapter.fuser_blocks.*.", "face_adapter.*.", FACE_BLOCK),
}


def space_evenly(config: Config) -> list[int]:
    """Returns the blocks after which ComfyUI's class adds those of VACE."""
    blocks, added = config["num_layers"], len(config["vace_layers"])
    return list(range(0, blocks, blocks // added))


REFINER_BLOCK = {
    **same("norm1 norm2"),
    "self_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "self_attn.proj": "attn.to_out.0",
    **add_prefix("mlp.", "ff.", FEED_FORWARD),
    "adaLN_modulation.1": "norm_out.linear",
}
HUNYUAN_DOUBLE_BLOCK = {
    **FLUX_DOUBLE_BLOCK,
    "img_mod.lin": "norm1.linear",
    "txt_mod.lin": "norm1_context.linear",
    **add_prefix("img_mlp.", "ff.", FEED_FORWARD),
    **add_prefix("txt_mlp.", "ff_context.", FEED_FORWARD),
}
HUNYUAN_SINGLE_BLOCK = {**FLUX_SINGLE_BLOCK, "modulation.lin": "norm.linear"}
REFINER_BLOCKS = "context_embedder.token_refiner.refiner_blocks"
HUNYUAN_VIDEO = {
    "img_in.proj": "x_embedder.proj",
    **add_prefix("time_in.", "time_text_embed.timestep_embedder.", IN_OUT),
    **add_prefix("vector_in.", "time_text_embed.text_embedder.", IN_OUT),
    **add_prefix("guidance_in.", "time_text_embed.guidance_embedder.", IN_OUT),
    "txt_in.input_embedder": "context_embedder.proj_in",
    **add_prefix("txt_in.t_embedder.", "context_embedder.time_text_embed.timestep_embedder.", IN_OUT),
    **add_prefix("txt_in.c_embedder.", "context_embedder.time_text_embed.text_embedder.", IN_OUT),
    **add_prefix("txt_in.individual_token_refiner.blocks.*.", f"{REFINER_BLOCKS}.*.", REFINER_BLOCK),
    **add_prefix("double_blocks.*.", "transformer_blocks.*.", HUNYUAN_DOUBLE_BLOCK),
    **add_prefix("single_blocks.*.", "single_transformer_blocks.*.", HUNYUAN_SINGLE_BLOCK),
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
LTX_ATTENTION = {"q_norm": "norm_q", "k_norm": "norm_k", **same("to_q to_k to_v to_out.0")}
LTX_TIME = same("emb.timestep_embedder.linear_1 emb.timestep_embedder.linear_2 linear")
LTX_BLOCK = {
    **same("scale_shift_table ff.net.0.proj ff.net.2"),
    **add_prefix("attn1.", "attn1.", LTX_ATTENTION),
    **add_prefix("attn2.", "attn2.", LTX_ATTENTION),
}
LTX_VIDEO = {
    "patchify_proj": "proj_in",
    **add_prefix("adaln_single.", "time_embed.", LTX_TIME),
    **same("caption_projection.linear_1 caption_projection.linear_2 scale_shift_table proj_out"),
    **add_prefix("transformer_blocks.*.", "transformer_blocks.*.", LTX_BLOCK),
}
COGVIDEOX_BLOCK = {
    **same("norm1.linear norm1.norm norm2.linear norm2.norm"),
    "q": "attn1.to_q",
    "k": "attn1.to_k",
    "v": "attn1.to_v",
    "norm_q": "attn1.norm_q",
    "norm_k": "attn1.norm_k",
    "attn_out": "attn1.to_out.0",
    "ff_proj": "ff.net.0.proj",
    "ff_out": "ff.net.2",
}
COGVIDEOX = {
    **same("patch_embed.proj patch_embed.text_proj patch_embed.pos_embedding"),
    **same("norm_final norm_out.linear norm_out.norm proj_out"),
    "time_embedding_linear_1": "time_embedding.linear_1",
    "time_embedding_linear_2": "time_embedding.linear_2",
    "ofs_embedding_linear_1": "ofs_embedding.linear_1",
    "ofs_embedding_linear_2": "ofs_embedding.linear_2",
    **add_prefix("blocks.*.", "transformer_blocks.*.", COGVIDEOX_BLOCK),
}

VIDEO_CLASSES = {
    "CogVideoXTransformer3DModel": Names(
        rows=COGVIDEOX,
        blocks={"transformer_blocks": "num_layers"},
        optional=("patch_embed.pos_embedding", "ofs_embedding.*"),
        settings={
            **same("num_attention_heads attention_head_dim out_channels sample_width sample_height sample_frames"),
            **same("use_rotary_positional_embeddings use_learned_positional_embeddings"),
            **same("max_text_seq_length temporal_compression_ratio"),
            # ComfyUI's class multiplies the rotary positions by this value. Diffusers' class does not.
            "spatial_interpolation_scale": 1.0,
        },
        # CogVideoX 2B uses sine and cosine positions. ComfyUI's differ from diffusers'.
        fixed={"use_rotary_positional_embeddings": True, "patch_size": 2},
    ),
    "HunyuanVideoTransformer3DModel": Names(
        rows=HUNYUAN_VIDEO,
        blocks={
            "transformer_blocks": "num_layers",
            "single_transformer_blocks": "num_single_layers",
            REFINER_BLOCKS: "num_refiner_layers",
        },
        swapped=LAST_NORM,
        optional=("time_text_embed.guidance_embedder.*",),
        settings={"num_heads": "num_attention_heads", "axes_dim": "rope_axes_dim", "theta": "rope_theta"},
    ),
    "LTXVideoTransformer3DModel": Names(
        rows=LTX_VIDEO,
        blocks={"transformer_blocks": "num_layers"},
        settings=same("in_channels num_attention_heads attention_head_dim cross_attention_dim caption_channels"),
        # The first frame of its latents is one frame of the video.
        by_pipeline={"LTXConditionPipeline": {"causal_temporal_positioning": True}},
    ),
    "WanTransformer3DModel": Names(
        rows=WAN,
        blocks={"blocks": "num_layers"},
        optional=OF_IMAGES,
        unused=("*.norm_added_q.*",),
        settings=WAN_SETTINGS,
        fixed=WAN_FIXED,
    ),
    "WanAnimateTransformer3DModel": Names(
        rows=WAN_ANIMATE,
        blocks={
            "blocks": "num_layers",
            "face_adapter": lambda config: config["num_layers"] // config["inject_face_latents_blocks"],
        },
        optional=OF_IMAGES,
        unused=("*.norm_added_q.*",),
        per_channel=(f"{CONVOLUTIONS}.*.bias",),
        constants={
            f"{CONVOLUTIONS}.{number}.{blurred}.0.kernel": BLUR
            for number in range(1, 8)
            for blurred in ("conv2", "skip")
        },
        settings=WAN_SETTINGS,
        fixed={
            **WAN_FIXED,
            "latent_channels": 16,
            "motion_encoder_size": 512,
            "motion_style_dim": 512,
            "motion_dim": 20,
            "face_encoder_hidden_dim": 1024,
            "face_encoder_num_heads": 4,
            "inject_face_latents_blocks": 5,
        },
    ),
    "WanVACETransformer3DModel": Names(
        rows={
            **WAN,
            "vace_patch_embedding": "vace_patch_embedding",
            **add_prefix("vace_blocks.*.", "vace_blocks.*.", WAN_BLOCK),
            "vace_blocks.*.before_proj": "vace_blocks.*.proj_in",
            "vace_blocks.*.after_proj": "vace_blocks.*.proj_out",
        },
        blocks={"blocks": "num_layers", "vace_blocks": "vace_layers"},
        optional=(*OF_IMAGES, "vace_blocks.*.proj_in"),
        unused=("*.norm_added_q.*",),
        settings=WAN_SETTINGS,
        fixed={**WAN_FIXED, "vace_layers": space_evenly},
    ),
}
