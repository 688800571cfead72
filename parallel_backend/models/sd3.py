"""Stable Diffusion 3 (https://arxiv.org/abs/2403.03206) and 3.5, whose first blocks attend to the image once more."""

from .spec import ModelSpec, register

STREAMS = ("hidden_states", "encoder_hidden_states")

register(
    ModelSpec(
        model_class="SD3Transformer2DModel",
        blocks=("transformer_blocks",),
        streams=STREAMS,
        returned=("encoder_hidden_states", "hidden_states"),
        self_attention={"attn": STREAMS, "attn2": ("hidden_states",)},
        conditions=("encoder_hidden_states", "pooled_projections"),
        head="proj_out",
        widths={"encoder_hidden_states": "joint_attention_dim", "pooled_projections": "pooled_projection_dim"},
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            **conditions,
        },
        output=lambda config, sample, latents: sample,
    )
)
