"""CogView4 (https://github.com/THUDM/CogView4)."""

from .spec import ModelSpec, SideInput, register

register(
    ModelSpec(
        model_class="CogView4Transformer2DModel",
        blocks=("transformer_blocks",),
        streams=("hidden_states", "encoder_hidden_states"),
        self_attention={"attn1": ("encoder_hidden_states", "hidden_states")},
        side_inputs=(SideInput("image_rotary_emb", 0, ("hidden_states",)),),
        conditions=("encoder_hidden_states", "original_size", "target_size", "crop_coords"),
        head="proj_out",
        widths={"encoder_hidden_states": "text_embed_dim"},
        inputs=lambda config, latents, timestep, conditions: {
            "hidden_states": latents,
            "timestep": timestep,
            **conditions,
        },
        output=lambda config, sample, latents: sample,
    )
)
