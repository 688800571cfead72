"""`labelled.stock_wan COMFYUI OUT FILE...`:
saves what ComfyUI's own model predicts in one process, loaded by the stock loader: of each file, and of the first one
also with an adapter.
"""

from __future__ import annotations

import importlib

import torch

CHANGED = "blocks.1.ffn.0.weight"


def main(_comfyui: str, out: str, *files: str) -> None:
    sd = importlib.import_module("comfy.sd")
    generator = torch.Generator().manual_seed(0)
    latents, text = (torch.randn(1, *shape, generator=generator) for shape in ((16, 2, 8, 12), (7, 4096)))
    generator = torch.Generator().manual_seed(1)
    up, down = torch.randn(64, 2, generator=generator), torch.randn(2, 256, generator=generator)
    found = []
    with torch.no_grad():
        for file in files:
            model = sd.load_diffusion_model(file, {"dtype": torch.float32}).model.diffusion_model
            found.append(model(latents, torch.tensor([500.0]), context=text))
            if len(found) == 1:
                model.get_parameter(CHANGED).add_((0.2 * up) @ (0.2 * down))
                adapted = model(latents, torch.tensor([500.0]), context=text)
    torch.save([*found, adapted], out)
