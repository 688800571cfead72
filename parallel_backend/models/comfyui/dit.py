"""Models whose blocks have one stream: PixArt, Hunyuan-DiT, Krea 2, Ideogram 4, Ernie-Image."""

from ..spec import SKIPS, BlockList, Places, register_class, single_stream

PIXART = single_stream("blocks", "x", "attn", whole=("y", "t", "mask", "HW"))
register_class("comfy.ldm.pixart.pixartms.PixArtMS", PIXART, image="x")

HUNYUAN = BlockList(
    path="blocks",
    tokens={"x": "x", "skip": "x"},
    returns="x",
    attention={"attn1": "x"},
    sides={"freq_cis_img": (0, "x")},
    whole=("c", "text_states"),
)
register_class("comfy.ldm.hydit.models.HunYuanDiT", HUNYUAN, unstaged=SKIPS)

KREA = single_stream(
    "blocks", "x", "attn", sides={"freqs": (2, "x"), "timestep_zero_index": Places("x")}, whole=("vec", "mask")
)
register_class("comfy.ldm.krea2.model.SingleStreamDiT", KREA)

IDEOGRAM = single_stream("layers", "x", "attention", sides={"freqs_cis": (1, "x")}, whole=("attn_mask", "adaln_input"))
register_class("comfy.ldm.ideogram4.model.Ideogram4Transformer2DModel", IDEOGRAM)

ERNIE = single_stream(
    "layers", "x", "self_attention", sides={"rotary_pos_emb": (1, "x")}, whole=("temb", "attention_mask")
)
register_class("comfy.ldm.ernie.model.ErnieImageModel", ERNIE)
