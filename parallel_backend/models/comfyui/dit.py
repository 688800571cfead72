"""Models whose blocks have one stream: PixArt, Hunyuan-DiT, Krea 2, Ideogram 4, Ernie-Image."""

from .spec import BlockList, HostSpec, register

PIXART = BlockList(
    path="blocks",
    tokens={"x": "x"},
    returns="x",
    attention={"attn": "x"},
    whole=("y", "t", "mask", "HW"),
)
register(
    HostSpec(
        "comfy.ldm.pixart.pixartms.PixArtMS",
        (PIXART,),
        heads="num_heads",
        width="hidden_size",
        patches=("x", "patch_size"),
    )
)

HUNYUAN = BlockList(
    path="blocks",
    tokens={"x": "x", "skip": "x"},
    returns="x",
    attention={"attn1": "x"},
    sides={"freq_cis_img": (0, "x")},
    whole=("c", "text_states"),
)
register(
    HostSpec(
        "comfy.ldm.hydit.models.HunYuanDiT",
        (HUNYUAN,),
        heads="num_heads",
        width="hidden_size",
        patches=("x", "patch_size"),
        skips=True,
    )
)

KREA = BlockList(
    path="blocks",
    tokens={"x": "x"},
    returns="x",
    attention={"attn": "x"},
    kv_heads={"attn": "kvheads"},
    sides={"freqs": (2, "x")},
    places={"timestep_zero_index": "x"},
    whole=("vec", "mask"),
)
register(HostSpec("comfy.ldm.krea2.model.SingleStreamDiT", (KREA,), heads="heads", head_dim="blocks.0.attn.headdim"))

IDEOGRAM = BlockList(
    path="layers",
    tokens={"x": "x"},
    returns="x",
    attention={"attention": "x"},
    sides={"freqs_cis": (1, "x")},
    whole=("attn_mask", "adaln_input"),
)
register(
    HostSpec(
        "comfy.ldm.ideogram4.model.Ideogram4Transformer2DModel",
        (IDEOGRAM,),
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
register(HostSpec("comfy.ldm.ernie.model.ErnieImageModel", (ERNIE,), heads="num_heads", head_dim="head_dim"))
