"""The two stages of Stable Cascade that denoise."""

from ..bands import TORCH, Bands
from ..spec import SKIPS, register_class

COMMON = (
    *("AttnBlock", "Attention2D", "FeedForwardBlock", "GlobalResponseNorm", "LayerNorm2d", "OptimizedAttention"),
    *("ResBlock", "TimestepBlock"),
)
LAYERS = {
    **TORCH,
    "comfy.ops": ("Conv2d", "ConvTranspose2d", "LayerNorm", "Linear"),
    "comfy.ldm.cascade.common": COMMON,
}


def register_stage(name: str, levels: str, *conditions: str) -> None:
    module = f"comfy.ldm.cascade.stage_{name[-1].lower()}"
    bands = Bands(
        {**LAYERS, module: (name, "UpDownBlock2d")},
        attention={"AttnBlock": "attention.attn"},
        attends_to_pixels=("self_attn", True),
        joint=True,
        levels=levels,
        rounds_up=False,
        patch_size="embedding.0.downscale_factor",
        resizes_conditions=True,
        whole=("r", "sca", "crp", "transformer_options", *conditions),
        needed=(conditions[0],),
    )
    register_class(f"{module}.{name}", unstaged=SKIPS, bands=bands)


register_stage("StageC", "", "clip_text", "clip_text_pooled", "clip_img", "control")
register_stage("StageB", "down_blocks", "effnet", "clip", "pixels")
