"""One tiny, seeded model a family, with inputs and the plain diffusers call that the engine is compared with."""

# ruff: noqa: F401 (what a family has is imported from here, too)

from dataclasses import replace

import torch

from .family import IMAGES, SQUARE, TEXT_TOKENS, TINY, UNEVEN, VIDEOS, Family, Tensors
from .image import (
    auraflow,
    bria,
    chroma,
    cogview4,
    dit_reference,
    flux,
    flux2,
    hunyuandit,
    lumina2,
    pixart,
    qwenimage,
    sd3,
    zimage,
)
from .newer import cosmos, hidream, kandinsky5, latte, omnigen, ovis, sana
from .video import allegro, cogvideox, consisid, easyanimate, hunyuanvideo, ltx, mochi, wan

FAMILIES = {
    "dit": Family(
        "DiTTransformer2DModel",
        {**TINY, "out_channels": 8, "sample_size": 16, "num_embeds_ada_norm": 10},
        lambda batch, _height, _width: {"class_labels": torch.arange(batch) * 5 % 11},
        dit_reference,
        {**IMAGES, "a single image": (1, 6, 10)},
    ),
    "pixart-alpha": pixart(),
    "sd3": sd3(),
    "sd3.5": sd3(dual_attention_layers=(0, 1), qk_norm="rms_norm"),
    "flux-dev": flux(guidance_embeds=True),
    "flux-schnell": flux(guidance_embeds=False),
    "bria": bria(),
    "ovis": ovis(),
    "hunyuandit": hunyuandit(),
    "cogvideox-2b": cogvideox(),
    "cogvideox-5b": cogvideox(use_rotary_positional_embeddings=True),
    "cogvideox-1.5": cogvideox(
        use_rotary_positional_embeddings=True, patch_size_t=2, patch_bias=False, sample_height=10
    ),
    "cogview4": cogview4(),
    "easyanimate": easyanimate(),
    "wan-t2v": wan(),
    "wan-2.1-i2v": wan(512, 5, image_dim=24, added_kv_proj_dim=60),
    "wan-2.2-ti2v": wan(by_frame=True),
    # Its pipeline calls it as Wan's does.
    "skyreels": replace(wan(512, 5, image_dim=24, added_kv_proj_dim=60), model_class="SkyReelsV2Transformer3DModel"),
    "qwenimage": qwenimage(text_tokens=17),
    "qwenimage-mask": qwenimage(mask=True),
    "qwenimage-edit": qwenimage(mask=True, references=((8, 12), (6, 6)), zero_cond_t=True),
    "hunyuanvideo": hunyuanvideo(),
    "ltx": ltx(),
    "ltx-mask": ltx(mask=True),
    "chroma": chroma(masks=False),
    "chroma-masked": chroma(masks=True),
    "flux2-dev": flux2(),
    "auraflow": auraflow(),
    "z-image": zimage(TEXT_TOKENS, masks=False),
    "z-image-masked": zimage(40, masks=True),
    "lumina2": lumina2(masks=False),
    "lumina2-masked": lumina2(masks=True),
    "allegro": allegro(),
    "consisid": consisid(),
    "mochi": mochi(mask=False),
    "mochi-masked": mochi(mask=True),
    "kandinsky5": kandinsky5(),
    "cosmos-predict2": cosmos(fps=True),
    "cosmos-predict2-v2w": cosmos(mask=True, fps=True, by_frame=True),
    "hidream": hidream(),
    "omnigen": omnigen(),
    "sana": sana(),
    "latte": latte(),
}
# Of each class the family that comes last, which mostly has more conditions and layers than the others.
LAST_OF_CLASS = tuple({family.model_class: name for name, family in FAMILIES.items()}.values())
# 310 MB in fp32.
WIDE = FAMILIES["dit"].of_config(num_attention_heads=16, attention_head_dim=64, num_layers=4)
# Of many blocks, so that what each of them leaves behind would add up.
DEEP = FAMILIES["dit"].of_config(attention_head_dim=64, num_layers=16)
