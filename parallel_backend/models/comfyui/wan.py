"""Wan 2.1 and 2.2, and the models derived from it."""

from dataclasses import replace

from ..spec import BlockList, ByFrame, register, register_class, single_stream

BLOCKS = single_stream(
    "blocks",
    "x",
    "self_attn",
    sides={"freqs": (1, "x"), "e": ByFrame(4, "x")},
    whole=("context", "context_img_len"),
)
MODEL = register_class(
    "comfy.ldm.wan.model.WanModel",
    BLOCKS,
    head=BlockList("head", tokens={"x": "x"}, returns="x", sides={"e": ByFrame(3, "x")}),
    image="x",
    also=(
        "comfy.ldm.wan.model.CameraWanModel",
        "comfy.ldm.wan.model.SCAILWanModel",
        "comfy.ldm.wan.model.SCAIL2WanModel",
        "comfy.ldm.wan.model.WanModel_S2V",
        "comfy.ldm.wan.model_animate.AnimateWanModel",
    ),
)
# Its blocks keep keys and values from frame to frame.
CAUSAL = replace(BLOCKS, refused=("kv_cache", "crossattn_cache"))
register(replace(MODEL, model_class="comfy.ldm.wan.ar_model.CausalWanModel", blocks=(CAUSAL,)))
# It has two heads.
register(replace(MODEL, model_class="comfy.ldm.wan.model_wandancer.WanDancerModel", head=None))

# Each frame's tokens attend to that frame's audio.
HUMO = replace(BLOCKS, full_length={"audio_cross_attn_wrapper": {"x": "x"}}, whole=(*BLOCKS.whole, "audio"))
register(replace(MODEL, model_class="comfy.ldm.wan.model.HumoWanModel", blocks=(HUMO,)))

VACE = replace(
    BLOCKS,
    path="vace_blocks",
    tokens={"c": "x", "x": "x"},
    returns=("x", "x"),
    interleaved=True,
)
register(
    replace(
        MODEL,
        model_class="comfy.ldm.wan.model.VaceWanModel",
        blocks=(BLOCKS, VACE),
        image="",
        unstaged="those of VACE run between the others",
    )
)
