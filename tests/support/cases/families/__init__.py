"""One tiny, seeded model a family, with inputs and the plain diffusers call that the engine is compared with."""

# ruff: noqa: F401 (what a family has is imported from here, too)

from dataclasses import replace

import torch

from .family import IMAGES, SQUARE, TEXT_TOKENS, UNEVEN, VIDEOS, Family, Tensors
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
from .video import allegro, cogvideox, consisid, easyanimate, hunyuanvideo, ltx, mochi, skyreels, wan

FAMILIES = {
    "dit": Family(
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 3,
            "sample_size": 16,
            "num_embeds_ada_norm": 10,
        },
        lambda batch, _height, _width: {"class_labels": torch.arange(batch) * 5 % 11},
        dit_reference,
        {**IMAGES, "a single image": (1, 6, 10)},
    ),
    "pixart-alpha": pixart(use_additional_conditions=True),
    "pixart-sigma": pixart(use_additional_conditions=False),
    "sd3": sd3(dual_attention_layers=(), qk_norm=None),
    "sd3.5": sd3(dual_attention_layers=(0, 1), qk_norm="rms_norm"),
    "flux-dev": flux(guidance_embeds=True),
    "flux-schnell": flux(guidance_embeds=False),
    "flux-fill": flux(guidance_embeds=True, image_channels=5),
    "flux-kontext": flux(guidance_embeds=True, references=((8, 6), (4, 10))),
    "bria": bria(),
    "ovis": ovis(),
    "hunyuandit-1.1": hunyuandit(use_style_cond_and_image_meta_size=True),
    "hunyuandit-1.2": hunyuandit(use_style_cond_and_image_meta_size=False),
    "cogvideox-2b": cogvideox(),
    "cogvideox-5b": cogvideox(use_rotary_positional_embeddings=True),
    "cogvideox-1.5-i2v": cogvideox(
        image=True,
        use_rotary_positional_embeddings=True,
        patch_size_t=2,
        ofs_embed_dim=8,
        patch_bias=False,
        sample_height=10,
    ),
    "cogview4": cogview4(),
    "easyanimate": easyanimate(),
    "easyanimate-inp": easyanimate(extra=5, after_norm=True),
    "wan-t2v": wan(),
    "wan-2.1-i2v": wan(512, 5, in_channels=9, image_dim=24, added_kv_proj_dim=60),
    "wan-2.1-flf2v": wan(512, 5, 2, in_channels=9, image_dim=24, added_kv_proj_dim=60, pos_embed_seq_len=10),
    "wan-2.2-i2v": wan(in_channels=9),
    "wan-2.2-ti2v": wan(by_frame=True),
    "skyreels-t2v": skyreels(),
    "skyreels-i2v": skyreels(512, 5, in_channels=9, image_dim=24, added_kv_proj_dim=60),
    "qwenimage": qwenimage(text_tokens=17),
    "qwenimage-mask": qwenimage(mask=True),
    "qwenimage-edit": qwenimage(mask=True, references=((8, 12), (6, 6)), zero_cond_t=True),
    "hunyuanvideo": hunyuanvideo(),
    "hunyuanvideo-no-guidance": hunyuanvideo(text_tokens=67, guidance_embeds=False, mask=False),
    "hunyuanvideo-i2v": hunyuanvideo(image=True),
    "ltx": ltx(),
    "ltx-mask": ltx(mask=True),
    "ltx-0.9.5": ltx(mask=True, coords=True),
    "chroma": chroma(masked=False),
    "chroma-masked": chroma(masked=True),
    "flux2-dev": flux2(guidance_embeds=True),
    "flux2-klein": flux2(guidance_embeds=False),
    "flux2-edit": flux2(guidance_embeds=True, references=((4, 6), (3, 5))),
    "auraflow": auraflow(),
    "z-image": zimage(TEXT_TOKENS, masked=False),
    "z-image-masked": zimage(40, masked=True),
    "lumina2": lumina2(masked=False),
    "lumina2-masked": lumina2(masked=True),
    "allegro": allegro(mask=True),
    "allegro-no-mask": allegro(mask=False),
    "consisid": consisid(),
    "mochi": mochi(mask=False),
    "mochi-masked": mochi(mask=True),
    "kandinsky5": kandinsky5(),
    "kandinsky5-i2v": kandinsky5(visual_cond=True),
    "cosmos-predict2": cosmos(fps=True),
    "cosmos-predict2.5": cosmos(mask=True),
    "cosmos-predict2-v2w": cosmos(mask=True, fps=True, by_frame=True),
    "hidream": hidream(),
    "omnigen": omnigen(),
    "sana": sana(),
    "sana-sprint": sana(guidance_embeds=True),
    "latte": latte(),
}
# Of each class the family that comes last, which mostly has more conditions and layers than the others.
LAST_OF_CLASS = frozenset({family.model_class: name for name, family in FAMILIES.items()}.values())
# 310 MB in fp32.
WIDE = replace(
    FAMILIES["dit"],
    config={**FAMILIES["dit"].config, "num_attention_heads": 16, "attention_head_dim": 64, "num_layers": 4},
)
# Of many blocks, so that what each of them leaves behind would add up.
DEEP = replace(
    FAMILIES["dit"],
    config={**FAMILIES["dit"].config, "num_attention_heads": 4, "attention_head_dim": 64, "num_layers": 16},
)
