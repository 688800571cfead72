"""Models, inputs and schedulers that the PipeFusion tests and their ranks share."""

from __future__ import annotations

import diffusers
import torch

from tests.support.cases.families import FAMILIES, VIDEOS, Family, Tensors

STEPS = 5
# One family of each class that has stages.
STAGED = (
    "dit", "pixart-alpha", "sd3.5", "flux-dev", "bria", "cogvideox-5b", "cogview4", "easyanimate", "allegro",
    "consisid", "mochi", "wan-t2v", "skyreels", "ltx", "chroma", "flux2-dev", "kandinsky5",
    "cosmos-predict2", "hidream", "omnigen", "sana", "hunyuanvideo", "qwenimage", "z-image", "lumina2", "auraflow",
    "ovis",
)  # fmt: skip
DEPTHS = {
    "kandinsky5": {"num_visual_blocks": 5},
    "hidream": {"num_layers": 2, "num_single_layers": 3, "llama_layers": [0, 1, 1, 2, 0]},
    "z-image": {"n_layers": 5},
    "consisid": {"num_layers": 6},
    "auraflow": {"num_mmdit_layers": 3, "num_single_dit_layers": 2},
}
SIZES = {"ltx": (3, 4, 6), "qwenimage": (1, 10, 14), "flux2-dev": (5, 7)}


def family_of(name: str) -> Family:
    """The family with five blocks, so that two, three and four stages are all uneven."""
    family = FAMILIES[name]
    usual = {"num_layers": 2, "num_single_layers": 3} if "num_single_layers" in family.config else {"num_layers": 5}
    return family.of_config(**DEPTHS.get(name, usual))


def case_inputs(name: str, short_negative: bool = False) -> tuple[torch.Tensor, Tensors, Tensors]:
    """Latents, conditions and negative conditions of a batch of one; 35 image tokens, or 24 a frame for video.

    short_negative: the negative text is three tokens shorter, so that the two cannot share a batch.
    """
    family = family_of(name)
    size = SIZES.get(name, (3, 8, 12) if family.shapes is VIDEOS else (10, 14))
    latents, _, conditions = family.inputs(1, *size)
    torch.manual_seed(2)
    negative = {
        key: value + (key in ("class_labels", "input_ids"))  # another class, other words
        for key, value in family.conditions(1, *size).items()
    }
    if short_negative:
        negative["encoder_hidden_states"] = negative["encoder_hidden_states"][:, :-3]
    return latents, conditions, negative


def scheduler_of(name: str) -> object:
    """A diffusers scheduler with its timesteps set."""
    scheduler = {
        "flow": diffusers.FlowMatchEulerDiscreteScheduler,
        "ddim": diffusers.DDIMScheduler,
        "dpm++": diffusers.DPMSolverMultistepScheduler,
        "euler": diffusers.EulerDiscreteScheduler,
        "heun": diffusers.HeunDiscreteScheduler,
        "unipc": diffusers.UniPCMultistepScheduler,
    }[name]()
    scheduler.set_timesteps(STEPS)
    return scheduler
