"""Latte (https://arxiv.org/abs/2401.03048), whose blocks attend within a frame and through the frames in turn: only
rows of the batch can be shared."""

from .adapter import Adapter, register_adapter, usual_spec

register_adapter(
    Adapter(
        usual_spec(
            "LatteTransformer3DModel",
            head=None,
            image="",
            unshared="its blocks attend within a frame and through the frames in turn",
        ),
        conditions=("encoder_hidden_states",),
        widths={"encoder_hidden_states": "caption_channels"},
        geometry=lambda config: (config["in_channels"], (1, config["patch_size"], config["patch_size"])),
        output=lambda config, sample_BCFHW, latents: sample_BCFHW[:, : config["in_channels"]],
    )
)
