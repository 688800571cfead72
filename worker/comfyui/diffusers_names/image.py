"""The tables of ComfyUI's names for diffusers' image classes."""

from __future__ import annotations

from .table import Names, add_prefix, same, width_of

QKV = ("to_q", "to_k", "to_v")
ADDED_QKV = ("add_q_proj", "add_k_proj", "add_v_proj")
FLUX_DOUBLE_BLOCK = {
    **add_prefix("img_attn.", "attn.", {"qkv": QKV, "proj": "to_out.0"}),
    **add_prefix("img_attn.norm.", "attn.", {"query_norm": "norm_q", "key_norm": "norm_k"}),
    **add_prefix("txt_attn.", "attn.", {"qkv": ADDED_QKV, "proj": "to_add_out"}),
    **add_prefix("txt_attn.norm.", "attn.", {"query_norm": "norm_added_q", "key_norm": "norm_added_k"}),
}
FLUX_BLOCKS = {"transformer_blocks": "num_layers", "single_transformer_blocks": "num_single_layers"}
FEED_FORWARD = {"0": "net.0.proj", "2": "net.2"}
IN_OUT = {"in_layer": "linear_1", "out_layer": "linear_2"}
FLUX_SINGLE_BLOCK = {
    "linear1": (*(f"attn.{name}" for name in QKV), "proj_mlp"),
    "linear2": "proj_out",
    **add_prefix("norm.", "attn.", {"query_norm": "norm_q", "key_norm": "norm_k"}),
}
GUIDANCE_LAYER = {
    **same("in_proj out_proj norms.*"),
    **add_prefix("layers.*.", "layers.*.", IN_OUT),
}
CHROMA = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    **add_prefix("distilled_guidance_layer.", "distilled_guidance_layer.", GUIDANCE_LAYER),
    **add_prefix("double_blocks.*.", "transformer_blocks.*.", FLUX_DOUBLE_BLOCK),
    **add_prefix("double_blocks.*.img_mlp.", "transformer_blocks.*.ff.", FEED_FORWARD),
    **add_prefix("double_blocks.*.txt_mlp.", "transformer_blocks.*.ff_context.", FEED_FORWARD),
    **add_prefix("single_blocks.*.", "single_transformer_blocks.*.", FLUX_SINGLE_BLOCK),
    "final_layer.linear": "proj_out",
}
FLUX_2_SINGLE_BLOCK = {
    "linear1": "to_qkv_mlp_proj",
    "linear2": "to_out",
    "norm.query_norm": "norm_q",
    "norm.key_norm": "norm_k",
}
FLUX_2 = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    **add_prefix("time_in.", "time_guidance_embed.timestep_embedder.", IN_OUT),
    **add_prefix("guidance_in.", "time_guidance_embed.guidance_embedder.", IN_OUT),
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    **add_prefix("double_blocks.*.", "transformer_blocks.*.", FLUX_DOUBLE_BLOCK),
    **add_prefix("double_blocks.*.img_mlp.", "transformer_blocks.*.ff.", {"0": "linear_in", "2": "linear_out"}),
    **add_prefix("double_blocks.*.txt_mlp.", "transformer_blocks.*.ff_context.", {"0": "linear_in", "2": "linear_out"}),
    **add_prefix("single_blocks.*.", "single_transformer_blocks.*.attn.", FLUX_2_SINGLE_BLOCK),
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
LUMINA_BLOCK = {
    "attention.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "attention.out": "attn.to_out.0",
    "attention.q_norm": "attn.norm_q",
    "attention.k_norm": "attn.norm_k",
    **add_prefix("feed_forward.", "feed_forward.", {"w1": "linear_1", "w2": "linear_2", "w3": "linear_3"}),
    "attention_norm2": "norm2",
    **same("ffn_norm1 ffn_norm2"),
}
LUMINA_MODULATED_BLOCK = {**LUMINA_BLOCK, "attention_norm1": "norm1.norm", "adaLN_modulation.1": "norm1.linear"}
LUMINA_2 = {
    "x_embedder": "x_embedder",
    "t_embedder.mlp.0": "time_caption_embed.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_caption_embed.timestep_embedder.linear_2",
    "cap_embedder.0": "time_caption_embed.caption_embedder.0",
    "cap_embedder.1": "time_caption_embed.caption_embedder.1",
    **add_prefix("noise_refiner.*.", "noise_refiner.*.", LUMINA_MODULATED_BLOCK),
    **add_prefix("context_refiner.*.", "context_refiner.*.", {**LUMINA_BLOCK, "attention_norm1": "norm1"}),
    **add_prefix("layers.*.", "layers.*.", LUMINA_MODULATED_BLOCK),
    "final_layer.adaLN_modulation.1": "norm_out.linear_1",
    "final_layer.linear": "norm_out.linear_2",
}
QWEN_IMAGE_BLOCK = {
    **same("attn.to_q attn.to_k attn.to_v attn.to_out.0 attn.norm_q attn.norm_k"),
    **same("attn.add_q_proj attn.add_k_proj attn.add_v_proj attn.to_add_out attn.norm_added_q attn.norm_added_k"),
    **same("img_mod.1 img_mlp.net.0.proj img_mlp.net.2 txt_mod.1 txt_mlp.net.0.proj txt_mlp.net.2"),
}
QWEN_IMAGE = {
    **same("img_in txt_in txt_norm norm_out.linear proj_out time_text_embed.addition_t_embedding"),
    **same("time_text_embed.timestep_embedder.linear_1 time_text_embed.timestep_embedder.linear_2"),
    **add_prefix("transformer_blocks.*.", "transformer_blocks.*.", QWEN_IMAGE_BLOCK),
}
HUNYUAN_DIT_BLOCK = {
    "norm1": "norm1.norm",
    "default_modulation.1": "norm1.linear",
    "attn1.Wqkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn1.q_norm": "attn1.norm_q",
    "attn1.k_norm": "attn1.norm_k",
    "attn1.out_proj": "attn1.to_out.0",
    "norm3": "norm2",
    "attn2.q_proj": "attn2.to_q",
    "attn2.kv_proj": ("attn2.to_k", "attn2.to_v"),
    "attn2.q_norm": "attn2.norm_q",
    "attn2.k_norm": "attn2.norm_k",
    "attn2.out_proj": "attn2.to_out.0",
    "norm2": "norm3",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    **same("skip_norm skip_linear"),
}
HUNYUAN_DIT = {
    "text_embedding_padding": "text_embedding_padding",
    "mlp_t5.0": "text_embedder.linear_1",
    "mlp_t5.2": "text_embedder.linear_2",
    **add_prefix("pooler.", "time_extra_emb.pooler.", same("positional_embedding k_proj q_proj v_proj c_proj")),
    "style_embedder": "time_extra_emb.style_embedder",
    "x_embedder.proj": "pos_embed.proj",
    "t_embedder.mlp.0": "time_extra_emb.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_extra_emb.timestep_embedder.linear_2",
    "extra_embedder.0": "time_extra_emb.extra_embedder.linear_1",
    "extra_embedder.2": "time_extra_emb.extra_embedder.linear_2",
    **add_prefix("blocks.*.", "blocks.*.", HUNYUAN_DIT_BLOCK),
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
LAST_NORM = frozenset({"final_layer.adaLN_modulation.1"})

IMAGE_CLASSES = {
    "AuraFlowTransformer2DModel": Names(
        own_map=(
            "auraflow_to_diffusers",
            lambda config: {
                "n_double_layers": config["num_mmdit_layers"],
                "n_layers": config["num_mmdit_layers"] + config["num_single_dit_layers"],
            },
        ),
        settings={"n_heads": "num_attention_heads"},
    ),
    "ChromaTransformer2DModel": Names(
        rows=CHROMA,
        blocks={
            **FLUX_BLOCKS,
            "distilled_guidance_layer.layers": "approximator_layers",
            "distilled_guidance_layer.norms": "approximator_layers",
        },
        settings={"axes_dim": "axes_dims_rope", "num_heads": "num_attention_heads"},
    ),
    "Flux2Transformer2DModel": Names(
        rows=FLUX_2,
        blocks=FLUX_BLOCKS,
        swapped=LAST_NORM,
        optional=("time_guidance_embed.guidance_embedder.*",),
        settings={"axes_dim": "axes_dims_rope", "num_heads": "num_attention_heads", "theta": "rope_theta"},
    ),
    "FluxTransformer2DModel": Names(
        own_map=(
            "flux_to_diffusers",
            lambda config: {
                "depth": config["num_layers"],
                "depth_single_blocks": config["num_single_layers"],
                "hidden_size": width_of(config),
            },
        ),
        optional=(
            "time_text_embed.guidance_embedder.*",
            "controlnet_x_embedder.*",
        ),
        settings={"axes_dim": "axes_dims_rope", "num_heads": "num_attention_heads"},
    ),
    "HunyuanDiT2DModel": Names(
        rows=HUNYUAN_DIT,
        blocks={"blocks": "num_layers"},
        swapped=LAST_NORM,
        optional=("time_extra_emb.style_embedder", "blocks.*.skip_*"),
        settings={"num_heads": "num_attention_heads"},
        fixed={
            "patch_size": 2,
            "learn_sigma": True,
            "text_len": 77,
            "text_len_t5": 256,
        },
    ),
    "Lumina2Transformer2DModel": Names(
        rows=LUMINA_2,
        blocks={
            "noise_refiner": "num_refiner_layers",
            "context_refiner": "num_refiner_layers",
            "layers": "num_layers",
        },
        settings={
            **same("in_channels multiple_of norm_eps axes_lens"),
            "n_refiner_layers": "num_refiner_layers",
            "n_heads": "num_attention_heads",
            "n_kv_heads": "num_kv_heads",
            "axes_dims": "axes_dim_rope",
        },
    ),
    "PixArtTransformer2DModel": Names(
        own_map=(
            "pixart_to_diffusers",
            lambda config: {"depth": config["num_layers"], "hidden_size": width_of(config)},
        ),
        optional=("*.resolution_embedder.*", "*.aspect_ratio_embedder.*", "caption_projection.y_embedding"),
        settings={"hidden_size": width_of, "num_heads": "num_attention_heads", **same("caption_channels")},
    ),
    "QwenImageTransformer2DModel": Names(
        rows=QWEN_IMAGE,
        blocks={"transformer_blocks": "num_layers"},
        optional=("time_text_embed.addition_t_embedding",),
        markers={"__index_timestep_zero__": "zero_cond_t"},
        settings=same(
            "patch_size out_channels attention_head_dim num_attention_heads joint_attention_dim axes_dims_rope"
        ),
    ),
    "SD3Transformer2DModel": Names(
        own_map=(
            "mmdit_to_diffusers",
            lambda config: {"depth": config["num_layers"]},
        ),
        optional=("*.attn2.*", "*.attn.norm_*", "*.to_add_out.*", "*.ff_context.*"),
    ),
    "ZImageTransformer2DModel": Names(
        own_map=(
            "z_image_to_diffusers",
            lambda config: {name: config[name] for name in ("n_layers", "dim", "n_refiner_layers")},
        ),
        optional=(
            "*.attention.to_out.0.bias",
            "*.attention.to_[qkv].bias",
            "context_refiner.*.adaLN_modulation.*",
            "x_pad_token",
            "cap_pad_token",
        ),
        settings=same("n_refiner_layers n_heads n_kv_heads axes_dims axes_lens rope_theta norm_eps"),
    ),
}
