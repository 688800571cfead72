"""ControlNets of Flux, Stable Diffusion 3 and 3.5, Qwen-Image and Hunyuan-DiT.

They have the blocks of their model. A layer behind each block makes what is added to the model's tokens, in full length
on every rank, because the model may have other tokens than the ControlNet.
"""

from dataclasses import replace

from ..spec import GATHERED, BlockList, register_class, single_stream
from .dit import HUNYUAN
from .flux import DOUBLE, SINGLE
from .mmdit import SD3
from .qwen import BLOCKS as QWEN


def outputs(path: str, stream: str = "img") -> BlockList:
    """The layers that make what is added. Each has one argument."""
    return BlockList(path, tokens={"0": stream, "x": stream}, returns=stream, between=GATHERED, interleaved=True)


def register_controlnet(model_class: str, *blocks: BlockList) -> None:
    register_class(model_class, *blocks, unstaged="it runs beside the model")


register_controlnet(
    "comfy.ldm.flux.controlnet.ControlNetFlux",
    DOUBLE,
    SINGLE,
    outputs("controlnet_blocks"),
    outputs("controlnet_single_blocks"),
)
register_controlnet("comfy.cldm.mmdit.ControlNet", SD3, outputs("controlnet_blocks"))
register_controlnet(
    "comfy.cldm.dit_embedder.ControlNetEmbedder",
    single_stream("transformer_blocks", "x", "", whole=("c",)),
    outputs("controlnet_blocks", "x"),
)
register_controlnet("comfy.ldm.qwen_image.controlnet.QwenImageControlNetModel", QWEN, outputs("controlnet_blocks"))
# It stacks what its blocks return with what is added, which is of all tokens by then.
register_controlnet(
    "comfy.ldm.qwen_image.controlnet.QwenImageFunControlNetModel",
    replace(QWEN, path="control_blocks"),
    outputs("control_blocks.*.after_proj"),
)
register_controlnet("comfy.ldm.hydit.controlnet.HunYuanControlNet", HUNYUAN, outputs("after_proj_list", "x"))
