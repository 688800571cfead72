"""Models whose blocks have one stream: PixArt, Hunyuan-DiT, Hunyuan3D 2.1, Krea 2."""

from .spec import BlockList, HostSpec, register

PIXART = BlockList(
    path="blocks",
    tokens={"x": "x"},
    returns="x",
    attention={"attn": "x"},
    whole=("y", "t", "mask", "HW"),
)
register(HostSpec("comfy.ldm.pixart.pixartms.PixArtMS", (PIXART,), heads="num_heads", width="hidden_size"))

HUNYUAN = BlockList(
    path="blocks",
    tokens={"x": "x", "skip": "x"},
    returns="x",
    attention={"attn1": "x"},
    sides={"freq_cis_img": (0, "x")},
    whole=("c", "text_states"),
)
register(HostSpec("comfy.ldm.hydit.models.HunYuanDiT", (HUNYUAN,), heads="num_heads", width="hidden_size"))

HUNYUAN_3D = BlockList(
    path="blocks",
    tokens={"hidden_states": "x", "skip_tensor": "x"},
    returns="x",
    attention={"attn1": "x"},
    whole=("conditioning", "text_states"),
)
register(
    HostSpec(
        "comfy.ldm.hunyuan3dv2_1.hunyuandit.HunYuanDiTPlain",
        (HUNYUAN_3D,),
        heads="num_heads",
        width="hidden_size",
        coupled="it exchanges the halves of the batch's conditions",
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
register(HostSpec("comfy.ldm.krea2.model.SingleStreamDiT", (KREA,), heads="heads", head_dim="blocks.0.attn.headdim"))
