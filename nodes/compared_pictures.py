"""Makes pictures of the latents of a comparison."""

from __future__ import annotations

from typing import Any

import comfy.sd
import latent_preview
import torch


def decode_pictures(latents: list[torch.Tensor], patcher: Any, vae: comfy.sd.VAE | None) -> torch.Tensor | None:
    """Returns the first image or frame of each of these latents: (N, H, W, 3), from 0 to 1.

    The VAE decodes them. Without a VAE, ComfyUI's previewer does. Returns None if ComfyUI has no preview for these
    latents.
    """
    if vae is not None:
        decoded = [vae.decode(each[:1]) for each in latents]
        return torch.stack([each.reshape(-1, *each.shape[-3:])[0] for each in decoded])[..., :3].cpu()
    latent_format = patcher.model.latent_format
    previewer = latent_preview.get_previewer(patcher.load_device, latent_format)
    if previewer is None and latent_format.latent_rgb_factors is not None:
        factors = (latent_format.latent_rgb_factors, latent_format.latent_rgb_factors_bias)
        previewer = latent_preview.Latent2RGBPreviewer(*factors, latent_format.latent_rgb_factors_reshape)
    if previewer is None:
        return None
    own = [latent_format.process_in(each).to(patcher.load_device) for each in latents]
    shown = [previewer.decode_latent_to_preview(each).convert("RGB") for each in own]
    pixels = [torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image in shown]
    return torch.stack([each.reshape(*image.size[::-1], 3) for each, image in zip(pixels, shown, strict=True)]) / 255
