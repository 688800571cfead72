"""ConsisID (https://arxiv.org/abs/2411.17440): CogVideoX from an image, with a face that its video keeps."""

from dataclasses import replace

import torch

from .adapter import Config, Tensors, adapter_for, needs, register_adapter, usual_spec
from .cogvideox import BLOCKS
from .rotary import rotary_3d


def inputs(config: Config, latents_BCFHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """T5 embeddings (B, tokens, width); image_latents (B, C, F, H, W), which the model sees beside the latents. Of the
    face: id_cond (B, width), and id_vit_hidden (B, layers, tokens, width)."""
    face = conditions.get("id_vit_hidden")
    return {
        "hidden_states": torch.cat((latents_BCFHW, conditions["image_latents"]), 1).transpose(1, 2),
        "timestep": timestep_B,
        "encoder_hidden_states": conditions["encoder_hidden_states"],
        "image_rotary_emb": rotary_3d(config, latents_BCFHW) if config["use_rotary_positional_embeddings"] else None,
        "id_cond": conditions.get("id_cond"),
        "id_vit_hidden": None if face is None else list(face.unbind(1)),
    }


COGVIDEOX = adapter_for("CogVideoXTransformer3DModel")
FACE = ("id_cond", "id_vit_hidden")
register_adapter(
    replace(
        COGVIDEOX,
        # Between blocks the image's tokens attend to the face, each for itself. So they stay local there, too.
        spec=usual_spec(
            "ConsisIDTransformer3DModel",
            replace(BLOCKS, whole=("temb",)),
            head=None,
        ),
        conditions=("encoder_hidden_states", "image_latents", *FACE),
        optional=FACE,
        check=needs(
            id_cond=lambda config: config["is_train_face"] and config["LFE_id_dim"],
            id_vit_hidden=lambda config: config["is_train_face"] and config["LFE_num_scale"],
        ),
        inputs=inputs,
    )
)
