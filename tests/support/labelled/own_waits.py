"""How often the host waits for the device in a forward by a model's own code."""

from __future__ import annotations

from tests.support.cases.host import CASES as ROWS

# What a forward is given comes from pinned memory, for which the host does not wait. What there is beside these, a
# model's own code does: as often.
WAITS = {
    **dict.fromkeys(("diffusers qwenimage-mask", "diffusers chroma", "diffusers chroma-masked"), 1),
    **dict.fromkeys(("diffusers qwenimage-edit", "diffusers cogview4"), 2),
    **{"diffusers easyanimate": 2, "diffusers kandinsky5": 1},
    **{"diffusers ovis": 1, "diffusers ltx": 1, "diffusers flux2-dev": 9},  # their pipelines' position ids
    "diffusers omnigen": 2,
    "diffusers hidream": 22,  # it looks at each row's size
    "diffusers z-image-masked": 3,
    **dict.fromkeys(("diffusers lumina2", "diffusers lumina2-masked"), 4),
    **{f"comfyui {name}": 1 for name in ROWS if name.startswith(("cosmos", "wan-"))},
    **dict.fromkeys(("comfyui auraflow", "comfyui mochi", "comfyui triposplat"), 1),
    **dict.fromkeys(("comfyui wan-s2v", "comfyui wan-dancer-global"), 2),
    **{f"comfyui {name}": 2 for name in ROWS if name.startswith("ltx")},
    **dict.fromkeys(("comfyui hunyuandit", "comfyui hidream-o1", "comfyui ideogram4-mask"), 2),
    **dict.fromkeys(("comfyui wan-bernini", "comfyui wan-animate-face", "comfyui ace-step-15"), 3),
    "comfyui minimax-h3": 6,
    "comfyui ltxv-guide": 12,
    "host-vae minimax-h3": 3,  # ComfyUI 0.33's puts each part of a video into the host's memory
}
# Classes that look at values in their blocks, by themselves; and LTX's VAE, which puts each part of a video into the
# host's memory.
WAITS_INSIDE = {"hunyuan3d-21": 36, "hidream-i1": 32, "hidream": 4, "ltx-0.9": 9}
