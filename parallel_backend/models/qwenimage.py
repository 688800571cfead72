"""Qwen-Image and Qwen-Image-Edit (https://arxiv.org/abs/2508.02324)."""

from dataclasses import replace

import torch

from .adapter import JOINT, Adapter, Config, Tensors, register_adapter, usual_spec
from .packing import REFERENCES, pack, pad_text, unpack, without

TEXT_MASK = "encoder_hidden_states_mask"


def inputs(config: Config, latents_BCFHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Qwen2.5-VL's embeddings (B, tokens, width), their mask (B, tokens), and images to edit as latents. sigma: 0 to
    1."""
    tokens_BSD, grids = pack(latents_BCFHW, conditions)
    text = pad_text(without(conditions, *REFERENCES), TEXT_MASK, least=16)
    return {"hidden_states": tokens_BSD, "img_shapes": [grids] * len(tokens_BSD), "timestep": sigma_B, **text}


BLOCKS = replace(
    JOINT,
    sides={"image_rotary_emb": (0, ("img", "txt")), TEXT_MASK: (1, "txt"), "modulate_index": (1, "img")},
    local_masks=("attn",),
)
register_adapter(
    Adapter(
        usual_spec("QwenImageTransformer2DModel", BLOCKS, image=""),
        conditions=("encoder_hidden_states", TEXT_MASK, *REFERENCES),
        optional=(TEXT_MASK, *REFERENCES),
        appended=REFERENCES,
        widths={"encoder_hidden_states": "joint_attention_dim"},
        geometry=lambda config: (config["in_channels"] // 4, (1, 2, 2)),
        timestep_scale=1e-3,
        inputs=inputs,
        output=lambda config, tokens, latents: unpack(tokens, latents),
    )
)
