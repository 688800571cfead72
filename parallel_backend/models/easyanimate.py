"""EasyAnimate 5.1 (https://arxiv.org/abs/2405.18991), from text, from images (InP) or under control."""

from .adapter import Adapter, needs, register_adapter, usual_spec
from .rotary import rotary_on_device
from .spec import BlockList

# Blocks that have one set of weights for image and text take and return the same.
BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn1": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb",),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("EasyAnimateTransformer3DModel", BLOCKS),
        conditions=("encoder_hidden_states", "image_latents"),
        optional=("image_latents",),
        widths={"encoder_hidden_states": "text_embed_dim"},
        geometry=lambda config: (config["out_channels"], (1, config["patch_size"], config["patch_size"])),
        check=needs(image_latents=lambda config: config["in_channels"] - config["out_channels"]),
        # The class joins image_latents to the latents itself, for the inpaint pipeline as for the control pipeline.
        inputs=lambda config, latents_BCFHW, timestep_B, conditions: {
            "hidden_states": latents_BCFHW,
            "timestep": timestep_B,
            "encoder_hidden_states": conditions["encoder_hidden_states"],
            "inpaint_latents": conditions.get("image_latents"),
        },
        prepare=rotary_on_device("rope_embedding"),
    )
)
