"""Wan 2.1 and 2.2."""

from dataclasses import replace

from .spec import BlockList, HostSpec, register

BLOCKS = BlockList(
    path="blocks",
    tokens={"x": "x"},
    returns="x",
    attention={"self_attn": "x"},
    sides={"freqs": (1, "x")},
    frames={"e": ("x", 4)},
    whole=("context", "context_img_len"),
)
MODEL = HostSpec(
    "comfy.ldm.wan.model.WanModel",
    (BLOCKS,),
    heads="num_heads",
    width="dim",
    gathered_by=("head", {"x": "x"}),
)
register(MODEL, "comfy.ldm.wan.model.CameraWanModel", "comfy.ldm.wan.ar_model.CausalWanModel")

VACE = replace(
    BLOCKS,
    path="vace_blocks",
    tokens={"c": "x", "x": "x"},
    returns=("x", "x"),
)
register(replace(MODEL, model_class="comfy.ldm.wan.model.VaceWanModel", blocks=(BLOCKS, VACE)))
