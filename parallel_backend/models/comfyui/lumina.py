"""Lumina 2, and Z-Image, which is a Lumina 2 model."""

from dataclasses import replace

from ..spec import comfyui_spec, register, single_stream

# The spec has one stream for all that precedes the image's tokens: text, and SigLIP's embeddings of references.
REFINER = single_stream(
    "noise_refiner",
    "x",
    "attention",
    stream="img",
    sides={"freqs_cis": (1, "img")},
    ranges={"timestep_zero_index": "img"},
    whole=("x_mask", "adaln_input"),
)
LAYERS = single_stream(
    "layers",
    "x",
    "attention",
    stream="txt+img",
    sides={"freqs_cis": (1, "txt+img")},
    ranges={"timestep_zero_index": "txt+img"},
    whole=("x_mask", "adaln_input"),
)

MODEL = comfyui_spec(
    "comfy.ldm.lumina.model.NextDiT",
    REFINER,
    LAYERS,
    heads="n_heads",
    width="dim",
    kv_heads="layers.0.attention.n_local_kv_heads",
    image="img",
)
register(MODEL)
# It decodes pixels after its blocks.
register(replace(MODEL, model_class="comfy.ldm.lumina.model.NextDiTPixelSpace", image="", patch_size=""))
