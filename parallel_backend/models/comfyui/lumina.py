"""Lumina 2, and Z-Image, which is a Lumina 2 model."""

from dataclasses import replace

from ..spec import BlockList, Places, register, register_class, single_stream


def blocks(path: str, stream: str) -> BlockList:
    sides = {"freqs_cis": (1, stream), "timestep_zero_index": Places(stream)}
    return single_stream(path, "x", "attention", stream=stream, sides=sides, whole=("x_mask", "adaln_input"))


MODEL = register_class(
    "comfy.ldm.lumina.model.NextDiT",
    blocks("noise_refiner", "img"),
    # One stream has all that precedes the image's tokens: text, and SigLIP's embeddings of references.
    blocks("layers", "txt+img"),
    image="img",
)
# It decodes pixels after its blocks.
register(replace(MODEL, model_class="comfy.ldm.lumina.model.NextDiTPixelSpace", image=""))
