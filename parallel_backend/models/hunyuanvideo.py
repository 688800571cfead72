"""HunyuanVideo (https://arxiv.org/abs/2412.03603), from text, or from an image beside the latents' channels."""

import torch

from .overlap_rows import MLP_BESIDE
from .packing import pad_text
from .spec import Config, ModelSpec, SideInput, Tensors, needs, register

STREAMS = ("hidden_states", "encoder_hidden_states")


def inputs(config: Config, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """LLaMA's embeddings (B, tokens, width), their mask (B, tokens), CLIP's (B, width), and the guidance scale (B)."""
    text = pad_text(conditions, "encoder_attention_mask", least=64, needs_mask=True)
    keywords = {"hidden_states": latents, "timestep": timestep_B, **text}
    if "image_latents" in keywords:
        keywords["hidden_states"] = torch.cat((latents, keywords.pop("image_latents")), 1)
    return {**keywords, "guidance": 1000 * conditions["guidance"]} if "guidance" in conditions else keywords


register(
    ModelSpec(
        model_class="HunyuanVideoTransformer3DModel",
        blocks=("transformer_blocks", "single_transformer_blocks"),
        streams=STREAMS,
        self_attention={"attn": STREAMS},
        beside=MLP_BESIDE,
        side_inputs=tuple(SideInput(name, 0, STREAMS[:1]) for name in ("freqs_cis", "image_rotary_emb")),
        conditions=(*STREAMS[1:], "encoder_attention_mask", "pooled_projections", "guidance", "image_latents"),
        optional=("encoder_attention_mask", "guidance", "image_latents"),
        head="proj_out",
        pipefusion=False,
        widths={"encoder_hidden_states": "text_embed_dim", "pooled_projections": "pooled_projection_dim"},
        geometry=lambda config: (config["out_channels"], (config["patch_size_t"], *[config["patch_size"]] * 2)),
        guided=lambda config: not config["guidance_embeds"],
        check=needs(
            guidance=lambda config: config["guidance_embeds"],
            image_latents=lambda config: config["in_channels"] - config["out_channels"],
            first_frame=lambda config: config["image_condition_type"] == "token_replace",  # which none can bring
        ),
        inputs=inputs,
        output=lambda config, sample, latents: sample,
    )
)
