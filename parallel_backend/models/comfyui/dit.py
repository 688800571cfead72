"""Models whose blocks have one stream: PixArt, Hunyuan-DiT, Krea 2, Ideogram 4, Ernie-Image."""

from ..spec import BlockList, comfyui_spec, register

PIXART = BlockList(
    path="blocks",
    tokens={"x": "x"},
    returns="x",
    attention={"attn": "x"},
    whole=("y", "t", "mask", "HW"),
)
register(comfyui_spec("comfy.ldm.pixart.pixartms.PixArtMS", PIXART, heads="num_heads", width="hidden_size", image="x"))

HUNYUAN = BlockList(
    path="blocks",
    tokens={"x": "x", "skip": "x"},
    returns="x",
    attention={"attn1": "x"},
    sides={"freq_cis_img": (0, "x")},
    whole=("c", "text_states"),
)
register(
    comfyui_spec(
        "comfy.ldm.hydit.models.HunYuanDiT", HUNYUAN, heads="num_heads", width="hidden_size", image="x", skips=True
    )
)

KREA = BlockList(
    path="blocks",
    tokens={"x": "x"},
    returns="x",
    attention={"attn": "x"},
    sides={"freqs": (2, "x")},
    places={"timestep_zero_index": "x"},
    whole=("vec", "mask"),
)
register(
    comfyui_spec(
        "comfy.ldm.krea2.model.SingleStreamDiT",
        KREA,
        heads="heads",
        head_dim="blocks.0.attn.headdim",
        kv_heads="blocks.0.attn.kvheads",
    )
)

IDEOGRAM = BlockList(
    path="layers",
    tokens={"x": "x"},
    returns="x",
    attention={"attention": "x"},
    sides={"freqs_cis": (1, "x")},
    whole=("attn_mask", "adaln_input"),
)
register(
    comfyui_spec(
        "comfy.ldm.ideogram4.model.Ideogram4Transformer2DModel",
        IDEOGRAM,
        heads="layers.0.attention.num_heads",
        head_dim="head_dim",
    )
)

ERNIE = BlockList(
    path="layers",
    tokens={"x": "x"},
    returns="x",
    attention={"self_attention": "x"},
    sides={"rotary_pos_emb": (1, "x")},
    whole=("temb", "attention_mask"),
)
register(comfyui_spec("comfy.ldm.ernie.model.ErnieImageModel", ERNIE, heads="num_heads", head_dim="head_dim"))
