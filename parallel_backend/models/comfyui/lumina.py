"""Lumina 2, and Z-Image, which is one."""

from dataclasses import replace

from ..spec import BlockList, ModelSpec, register

# What is joined before the image's tokens is one stream to a spec: text, and what SigLIP has seen of references.
REFINER = BlockList(
    path="noise_refiner",
    tokens={"x": "img"},
    returns="img",
    attention={"attention": "img"},
    sides={"freqs_cis": (1, "img")},
    ranges={"timestep_zero_index": "img"},
    whole=("x_mask", "adaln_input"),
)
LAYERS = BlockList(
    path="layers",
    tokens={"x": "txt+img"},
    returns="txt+img",
    attention={"attention": "txt+img"},
    sides={"freqs_cis": (1, "txt+img")},
    ranges={"timestep_zero_index": "txt+img"},
    whole=("x_mask", "adaln_input"),
)

MODEL = ModelSpec(
    "comfy.ldm.lumina.model.NextDiT",
    (REFINER, LAYERS),
    heads="n_heads",
    width="dim",
    kv_heads="layers.0.attention.n_local_kv_heads",
    image="img",
    patch_size="patch_size",
)
register(MODEL)
# It decodes pixels behind its blocks.
register(replace(MODEL, model_class="comfy.ldm.lumina.model.NextDiTPixelSpace", image="", patch_size=""))
