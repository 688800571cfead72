"""AuraFlow (https://huggingface.co/fal/AuraFlow-v0.3)."""

import math

from .spec import ModelSpec, Sizes, register

register(
    ModelSpec(
        model_class="AuraFlowTransformer2DModel",
        blocks=("joint_transformer_blocks", "single_transformer_blocks"),
        streams=("hidden_states", "encoder_hidden_states"),
        returned=("encoder_hidden_states", "hidden_states"),
        joined={"single_transformer_blocks": ("encoder_hidden_states", "hidden_states")},
        self_attention={"attn": ("encoder_hidden_states", "hidden_states")},
        conditions=("encoder_hidden_states",),
        head="proj_out",
        widths={"encoder_hidden_states": "joint_attention_dim"},
        sizes=lambda config: Sizes(
            config["num_attention_heads"],
            config["attention_head_dim"],
            config["num_mmdit_layers"] + config["num_single_dit_layers"],
        ),
        largest=lambda config: (math.isqrt(config["pos_embed_max_size"]),) * 2,
        timestep_scale=1e-3,
        inputs=lambda config, latents, sigma, conditions: {
            "hidden_states": latents,
            "timestep": sigma,
            **conditions,
        },
        output=lambda config, sample, latents: sample,
    )
)
