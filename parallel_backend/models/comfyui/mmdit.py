"""Stable Diffusion 3 and 3.5, and AuraFlow."""

from ..spec import BlockList, register_class, single_stream

SD3 = BlockList(
    path="joint_blocks",
    tokens={"0": "txt", "1": "img"},
    returns=("txt", "img"),
    attention={"": ("txt+img", "img")},  # where 3.5 medium attends a second time
    whole=("c", "use_checkpoint"),
)
register_class(
    "comfy.ldm.modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper",
    SD3,
    image="img",
    head=BlockList("final_layer", tokens={"x": "img"}, returns="img", whole=("c",)),
)

AURA_DOUBLE = BlockList(
    path="double_layers",
    tokens={"c": "txt", "x": "img"},
    returns=("txt", "img"),
    attention={"attn": "txt+img"},
    whole=("global_cond",),
)
AURA_SINGLE = single_stream("single_layers", "cx", "attn", stream="txt+img", whole=("global_cond",))
register_class("comfy.ldm.aura.mmdit.MMDiT", AURA_DOUBLE, AURA_SINGLE, image="img")
