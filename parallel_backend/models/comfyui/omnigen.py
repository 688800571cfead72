"""OmniGen 2 and Boogu."""

from dataclasses import replace

from ..spec import BlockList, comfyui_spec, register, single_stream

# References have their own refiner, which every rank runs whole.
REFINER = single_stream(
    "noise_refiner",
    "hidden_states",
    "attn",
    stream="img",
    sides={"image_rotary_emb": (1, "img")},
    whole=("attention_mask", "temb"),
)
LAYERS = replace(
    REFINER,
    path="layers",
    tokens={"hidden_states": "rest+img"},
    returns="rest+img",
    attention={"attn": "rest+img"},
    sides={"image_rotary_emb": (1, "rest+img")},
)
register(
    comfyui_spec(
        "comfy.ldm.omnigen.omnigen2.OmniGen2Transformer2DModel",
        REFINER,
        LAYERS,
        heads="layers.0.attn.heads",
        width="hidden_size",
        image="img",
    )
)

DOUBLE = BlockList(
    path="double_stream_layers",
    tokens={"img_hidden_states": "ref+img", "instruct_hidden_states": "txt"},
    returns=("ref+img", "txt"),
    attention={"img_instruct_attn": "txt+ref+img", "img_self_attn": "ref+img"},
    sides={"joint_rotary_emb": (1, "txt+ref+img"), "img_rotary_emb": (1, "ref+img")},
    whole=("temb", "joint_attention_mask", "img_attention_mask"),
)
SINGLE = replace(
    REFINER,
    path="single_stream_layers",
    tokens={"hidden_states": "txt+ref+img"},
    returns="txt+ref+img",
    attention={"attn": "txt+ref+img"},
    sides={"image_rotary_emb": (1, "txt+ref+img")},
)
register(
    comfyui_spec(
        "comfy.ldm.boogu.model.BooguTransformer2DModel",
        REFINER,
        DOUBLE,
        SINGLE,
        heads="single_stream_layers.0.attn.heads",
        width="hidden_size",
    )
)
