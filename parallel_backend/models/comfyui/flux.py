"""Flux.1 and Flux.2, and models with Flux's blocks: Chroma, HunyuanVideo, HunyuanImage, Hunyuan3D 2.0."""

from dataclasses import replace

from ..spec import BlockList, Places, register, register_class

JOINED = {"x": "txt+img"}

DOUBLE = BlockList(
    path="double_blocks",
    tokens={"img": "img", "txt": "txt"},
    returns=("img", "txt"),
    attention={"": "txt+img"},
    sides={
        "pe": (2, "txt+img"),
        "modulation_dims_img": Places("img"),
        "modulation_dims_txt": Places("txt"),
    },
    whole=("vec", "attn_mask"),
)
SINGLE = BlockList(
    path="single_blocks",
    tokens=JOINED,
    returns="txt+img",
    attention={"": "txt+img"},
    parallel_mlp={"linear1": "qkv+"},
    sides={"pe": (2, "txt+img"), "modulation_dims": Places("txt+img")},
    whole=("vec", "attn_mask"),
)

HEAD = BlockList("final_layer", tokens={"x": "img"}, returns="img", whole=("vec",))

MODEL = register_class(
    "comfy.ldm.flux.model.Flux",
    DOUBLE,
    SINGLE,
    head=replace(HEAD, sides={"modulation_dims": Places("img")}),
    image="img",
)
register(replace(MODEL, model_class="comfy.ldm.chroma.model.Chroma", head=HEAD))
# Its head mixes neighbouring pixels.
register(replace(MODEL, model_class="comfy.ldm.chroma_radiance.model.ChromaRadiance", head=None, image=""))
register_class("comfy.ldm.hunyuan3d.model.Hunyuan3Dv2", DOUBLE, SINGLE)
register_class("comfy.ldm.hunyuan_video.model.HunyuanVideo", DOUBLE, SINGLE, image="img")
