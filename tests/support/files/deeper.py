"""Models with more blocks, so that some of them can wait elsewhere, or be in another stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

FIRST = "single_blocks.0."
OUTPUTS = ("attn1.to_out", "ff.net.2")  # of a DiT's block


def deepen(file: Path, blocks: int) -> None:
    """Gives the model so many blocks of one stream, each with weights of its own."""
    weights = load_file(file)
    first = {name: weight for name, weight in weights.items() if name.startswith(FIRST)}
    more = {
        name.replace(".0.", f".{block}.", 1): weight * (1 + 0.01 * block)
        for block in range(1, blocks)
        for name, weight in first.items()
    }
    save_file(weights | more, file)


def deepen_folder(source: Path, target: Path, blocks: int) -> None:
    """Copies a folder of a DiT, with so many blocks. The new ones change little, so the image is much the same."""
    shutil.copytree(source, target)
    config, file = (target / "transformer" / name for name in ("config.json", "diffusion_pytorch_model.safetensors"))
    values, weights = json.loads(config.read_text()), load_file(file)
    first = {name: weight for name, weight in weights.items() if name.startswith("transformer_blocks.0.")}
    for block in range(values["num_layers"], blocks):
        for name, weight in first.items():
            factor = 0.05 if any(part in name for part in OUTPUTS) else 1
            weights[name.replace(".0.", f".{block}.", 1)] = weight * factor
    config.write_text(json.dumps({**values, "num_layers": blocks}))
    save_file(weights, file)
