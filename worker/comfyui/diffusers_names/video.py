"""The tables of ComfyUI's names for diffusers' video classes."""

from __future__ import annotations

from .table import Config, Names, add_prefix, always

FEED_FORWARD = {"0": "net.0.proj", "2": "net.2"}
WAN_BLOCK = {
    "modulation": "scale_shift_table",
    "norm3": "norm2",
    **add_prefix("self_attn.", "attn1.", {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}),
    **add_prefix("cross_attn.", "attn2.", {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}),
    **add_prefix("self_attn.", "attn1.", {"norm_q": "norm_q", "norm_k": "norm_k"}),
    **add_prefix("cross_attn.", "attn2.", {"norm_q": "norm_q", "norm_k": "norm_k"}),
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
WAN_SETTINGS = {"num_heads": "num_attention_heads", "freq_dim": "freq_dim", "text_dim": "text_dim", "eps": "eps"}
WAN_FIXED = {
    "patch_size": always([1, 2, 2]),
    "qk_norm": always("rms_norm_across_heads"),
    "cross_attn_norm": always(True),
}


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
    "face_encoder.padding_tokens": "face_encoder.padding_tokens",
    "face_encoder.conv1_local.conv": "face_encoder.conv1_local",
    "face_encoder.conv2.conv": "face_encoder.conv2",
    "face_encoder.conv3.conv": "face_encoder.conv3",
    "face_encoder.out_proj": "face_encoder.out_proj",
    **add_prefix(
        "face_adapter.fuser_blocks.*.",
        "face_adapter.*.",
        {
            "linear1_q": "to_q",
            "linear1_kv": ("to_k", "to_v"),
            "linear2": "to_out",
            "q_norm": "norm_q",
            "k_norm": "norm_k",
        },
    ),
}


def space_evenly(config: Config) -> list[int]:
    """Returns the blocks after which ComfyUI's class adds those of VACE."""
    blocks, added = config["num_layers"], len(config["vace_layers"])
    return list(range(0, blocks, blocks // added))


IN_OUT = {"in_layer": "linear_1", "out_layer": "linear_2"}
HUNYUAN_VIDEO = {
    "img_in.proj": "x_embedder.proj",
    **add_prefix("time_in.", "time_text_embed.timestep_embedder.", IN_OUT),
    **add_prefix("vector_in.", "time_text_embed.text_embedder.", IN_OUT),
    **add_prefix("guidance_in.", "time_text_embed.guidance_embedder.", IN_OUT),
    "txt_in.input_embedder": "context_embedder.proj_in",
    **add_prefix("txt_in.t_embedder.", "context_embedder.time_text_embed.timestep_embedder.", IN_OUT),
    **add_prefix("txt_in.c_embedder.", "context_embedder.time_text_embed.text_embedder.", IN_OUT),
    **add_prefix(
        "txt_in.individual_token_refiner.blocks.*.",
        "context_embedder.token_refiner.refiner_blocks.*.",
        {
            "norm1": "norm1",
            "self_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
            "self_attn.proj": "attn.to_out.0",
            "norm2": "norm2",
            "mlp.0": "ff.net.0.proj",
            "mlp.2": "ff.net.2",
            "adaLN_modulation.1": "norm_out.linear",
        },
    ),
    **add_prefix(
        "double_blocks.*.",
        "transformer_blocks.*.",
        {
            "img_mod.lin": "norm1.linear",
            "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
            "img_attn.norm.query_norm": "attn.norm_q",
            "img_attn.norm.key_norm": "attn.norm_k",
            "img_attn.proj": "attn.to_out.0",
            "img_mlp.0": "ff.net.0.proj",
            "img_mlp.2": "ff.net.2",
            "txt_mod.lin": "norm1_context.linear",
            "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
            "txt_attn.norm.query_norm": "attn.norm_added_q",
            "txt_attn.norm.key_norm": "attn.norm_added_k",
            "txt_attn.proj": "attn.to_add_out",
            "txt_mlp.0": "ff_context.net.0.proj",
            "txt_mlp.2": "ff_context.net.2",
        },
    ),
    **add_prefix(
        "single_blocks.*.",
        "single_transformer_blocks.*.",
        {
            "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
            "linear2": "proj_out",
            "norm.query_norm": "attn.norm_q",
            "norm.key_norm": "attn.norm_k",
            "modulation.lin": "norm.linear",
        },
    ),
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
LTX_ATTENTION = {
    "q_norm": "norm_q",
    "k_norm": "norm_k",
    **{name: name for name in ("to_q", "to_k", "to_v", "to_out.0")},
}
LTX_VIDEO = {
    "patchify_proj": "proj_in",
    **add_prefix(
        "adaln_single.",
        "time_embed.",
        {name: name for name in ("emb.timestep_embedder.linear_1", "emb.timestep_embedder.linear_2", "linear")},
    ),
    "caption_projection.linear_1": "caption_projection.linear_1",
    "caption_projection.linear_2": "caption_projection.linear_2",
    "transformer_blocks.*.scale_shift_table": "transformer_blocks.*.scale_shift_table",
    **add_prefix("transformer_blocks.*.attn1.", "transformer_blocks.*.attn1.", LTX_ATTENTION),
    **add_prefix("transformer_blocks.*.attn2.", "transformer_blocks.*.attn2.", LTX_ATTENTION),
    "transformer_blocks.*.ff.net.0.proj": "transformer_blocks.*.ff.net.0.proj",
    "transformer_blocks.*.ff.net.2": "transformer_blocks.*.ff.net.2",
    "scale_shift_table": "scale_shift_table",
    "proj_out": "proj_out",
}
COGVIDEOX = {
    **{
        name: name
        for name in (
            "patch_embed.proj",
            "patch_embed.text_proj",
            "patch_embed.pos_embedding",
            "norm_final",
            "norm_out.linear",
            "norm_out.norm",
            "proj_out",
        )
    },
    "time_embedding_linear_1": "time_embedding.linear_1",
    "time_embedding_linear_2": "time_embedding.linear_2",
    "ofs_embedding_linear_1": "ofs_embedding.linear_1",
    "ofs_embedding_linear_2": "ofs_embedding.linear_2",
    **add_prefix(
        "blocks.*.",
        "transformer_blocks.*.",
        {
            **{name: name for name in ("norm1.linear", "norm1.norm", "norm2.linear", "norm2.norm")},
            "q": "attn1.to_q",
            "k": "attn1.to_k",
            "v": "attn1.to_v",
            "norm_q": "attn1.norm_q",
            "norm_k": "attn1.norm_k",
            "attn_out": "attn1.to_out.0",
            "ff_proj": "ff.net.0.proj",
            "ff_out": "ff.net.2",
        },
    ),
}

VIDEO_CLASSES = {
    "CogVideoXTransformer3DModel": Names(
        rows=COGVIDEOX,
        blocks={"transformer_blocks": "num_layers"},
        optional=("patch_embed.pos_embedding", "ofs_embedding.*"),
        settings={
            **{
                name: name
                for name in (
                    "num_attention_heads",
                    "attention_head_dim",
                    "out_channels",
                    "sample_width",
                    "sample_height",
                    "sample_frames",
                    "max_text_seq_length",
                    "use_rotary_positional_embeddings",
                    "use_learned_positional_embeddings",
                    "temporal_compression_ratio",
                )
            },
            # ComfyUI's class multiplies the rotary positions by this value. Diffusers' class does not.
            "spatial_interpolation_scale": always(1.0),
        },
        # CogVideoX 2B uses sine and cosine positions. ComfyUI's differ from diffusers'.
        fixed={"use_rotary_positional_embeddings": always(True), "patch_size": always(2)},
    ),
    "HunyuanVideoTransformer3DModel": Names(
        rows=HUNYUAN_VIDEO,
        blocks={
            "transformer_blocks": "num_layers",
            "single_transformer_blocks": "num_single_layers",
            "context_embedder.token_refiner.refiner_blocks": "num_refiner_layers",
        },
        swapped=frozenset({"final_layer.adaLN_modulation.1"}),
        optional=("time_text_embed.guidance_embedder.*",),
        settings={"num_heads": "num_attention_heads", "axes_dim": "rope_axes_dim", "theta": "rope_theta"},
    ),
    "LTXVideoTransformer3DModel": Names(
        rows=LTX_VIDEO,
        blocks={"transformer_blocks": "num_layers"},
        settings={
            name: name
            for name in (
                "in_channels",
                "num_attention_heads",
                "attention_head_dim",
                "cross_attention_dim",
                "caption_channels",
            )
        },
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
            "latent_channels": always(16),
            "motion_encoder_size": always(512),
            "motion_style_dim": always(512),
            "motion_dim": always(20),
            "face_encoder_hidden_dim": always(1024),
            "face_encoder_num_heads": always(4),
            "inject_face_latents_blocks": always(5),
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
