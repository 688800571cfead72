"""Models with more blocks, so that some of them can wait elsewhere, or be in another stage."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

FIRST = "single_blocks.0."


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
