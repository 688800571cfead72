"""OmniGen 2 and Boogu."""

from ..spec import BlockList, register_class, single_stream


def blocks(path: str, stream: str) -> BlockList:
    """Returns a list of the blocks that both models have."""
    sides, whole = {"image_rotary_emb": (1, stream)}, ("attention_mask", "temb")
    return single_stream(path, "hidden_states", "attn", stream=stream, sides=sides, whole=whole)


# References have their own refiner, which every rank runs whole.
REFINER = blocks("noise_refiner", "img")
register_class(
    "comfy.ldm.omnigen.omnigen2.OmniGen2Transformer2DModel",
    REFINER,
    blocks("layers", "rest+img"),
    image="img",
)

DOUBLE = BlockList(
    path="double_stream_layers",
    tokens={"img_hidden_states": "ref+img", "instruct_hidden_states": "txt"},
    returns=("ref+img", "txt"),
    attention={"img_instruct_attn": "txt+ref+img", "img_self_attn": "ref+img"},
    sides={"joint_rotary_emb": (1, "txt+ref+img"), "img_rotary_emb": (1, "ref+img")},
    whole=("temb", "joint_attention_mask", "img_attention_mask"),
)
register_class(
    "comfy.ldm.boogu.model.BooguTransformer2DModel",
    REFINER,
    DOUBLE,
    blocks("single_stream_layers", "txt+ref+img"),
)
