"""SkyReels V2 (https://arxiv.org/abs/2504.13074) from text or an image: Wan's blocks. Without diffusion forcing."""

from dataclasses import replace

from ..errors import RequestError
from .adapter import Config, Tensors, adapter_for, register_adapter, usual_spec
from .wan import BLOCKS

WAN = adapter_for("WanTransformer3DModel")


def check(config: Config, conditions: Tensors) -> None:
    """Raises RequestError for a model of diffusion forcing, and for conditions that do not fit the model."""
    if config["inject_sample_info"] or config["num_frame_per_block"] > 1:
        raise RequestError(
            "This SkyReels V2 is made for diffusion forcing, where every frame has its own timestep and speed.",
            "Use a checkpoint for text-to-video or image-to-video.",
        )
    if WAN.check:
        WAN.check(config, conditions)


register_adapter(
    replace(
        WAN,
        spec=usual_spec(
            "SkyReelsV2Transformer3DModel",
            replace(BLOCKS, frames={}, whole=("encoder_hidden_states", "temb"), refused=("attention_mask",)),
        ),
        check=check,
        timestep_by_frame=False,
    )
)
