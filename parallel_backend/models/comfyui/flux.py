"""Flux.1 and Flux.2, Chroma, and Hunyuan3D 2.0, whose blocks are Flux's."""

from .spec import BlockList, HostSpec, register

JOINED = {"x": "txt+img"}

DOUBLE = BlockList(
    path="double_blocks",
    tokens={"img": "img", "txt": "txt"},
    returns=("img", "txt"),
    attention={"": "txt+img"},
    sides={"pe": (2, "txt+img")},
    ranges={"modulation_dims_img": "img", "modulation_dims_txt": "txt"},
    whole=("vec", "attn_mask"),
)
SINGLE = BlockList(
    path="single_blocks",
    tokens=JOINED,
    returns="txt+img",
    attention={"": "txt+img"},
    sides={"pe": (2, "txt+img")},
    ranges={"modulation_dims": "txt+img"},
    whole=("vec", "attn_mask"),
)

register(
    HostSpec("comfy.ldm.flux.model.Flux", (DOUBLE, SINGLE), heads="params.num_heads", width="params.hidden_size"),
    "comfy.ldm.chroma.model.Chroma",
    "comfy.ldm.chroma_radiance.model.ChromaRadiance",
)
