"""Bria 3 (https://huggingface.co/briaai/BRIA-3.2): Flux's blocks without pooled text and guidance."""

from dataclasses import replace

import torch

from .adapter import JOINT, Adapter, Config, Tensors, register_adapter, usual_spec
from .flux import PARALLEL_MLP, ids
from .packing import pack, unpack


def inputs(_config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """Patches of 2×2 become tokens. Text tokens are at (0, 0, 0)."""
    tokens_BSD, grids = pack(latents_BCHW, {})
    image_ids = ids(grids, latents_BCHW.device)
    txt_ids = image_ids.new_zeros(conditions["encoder_hidden_states"].shape[1], 3)
    return {"hidden_states": tokens_BSD, "img_ids": image_ids, "txt_ids": txt_ids, "timestep": timestep_B, **conditions}


DOUBLE = replace(JOINT, sides={"image_rotary_emb": (0, "txt+img")}, whole=("temb",), refused=("attention_kwargs",))
register_adapter(
    Adapter(
        usual_spec(
            "BriaTransformer2DModel",
            DOUBLE,
            replace(DOUBLE, path="single_transformer_blocks", parallel_mlp=PARALLEL_MLP),
        ),
        conditions=("encoder_hidden_states",),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        geometry=lambda config: (config["in_channels"] // 4, (2, 2)),
        inputs=inputs,
        output=lambda _config, tokens, latents: unpack(tokens, latents),
    )
)
