"""HiDream I1 (https://arxiv.org/abs/2505.22705). Every block adds a text of its own, and drops it again."""

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .spec import BlockList


def inputs(_config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """T5's embeddings (B, tokens, width), those of Llama's layers (B, layers, tokens, width), and CLIP's (B, width)."""
    of_layers = conditions["encoder_hidden_states_llama3"].transpose(0, 1)
    return {
        **conditions,
        "hidden_states": latents_BCHW,
        "timesteps": timestep_B,
        "encoder_hidden_states_llama3": of_layers,
    }


DOUBLE = BlockList(
    path="double_stream_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"block.attn1": "img+txt"},
    sides={"image_rotary_emb": (1, "img+txt"), "hidden_states_masks": (1, "img")},
    whole=("temb",),
)
SINGLE = BlockList(
    path="single_stream_blocks",
    tokens={"hidden_states": "img+txt"},
    returns="img+txt",
    attention={"block.attn1": "img+txt"},
    sides={"image_rotary_emb": (1, "img+txt"), "hidden_states_masks": (1, "img+txt")},
    whole=("temb",),
    refused=("encoder_hidden_states",),
)
register_adapter(
    Adapter(
        usual_spec(
            "HiDreamImageTransformer2DModel",
            DOUBLE,
            SINGLE,
            head=BlockList("final_layer.linear", tokens={"input": "img"}, returns="img"),
            image="",  # each block's own text would have to go with every patch
        ),
        conditions=("encoder_hidden_states_t5", "encoder_hidden_states_llama3", "pooled_embeds"),
        widths={"pooled_embeds": "text_emb_dim"},
        inputs=inputs,
        output=lambda _config, sample, _latents: -sample,
    )
)
