"""Explains an out-of-memory error (OOM) in words: what the request needed, what there was, and what helps."""

from __future__ import annotations

from ...errors import Explanation, format_bytes
from ...wire.operations import Operation
from .device_memory import DeviceMemory

MARGIN = 0.9  # share of the memory that an estimate may fill
NOTABLE = 0.05


def explain_lack(
    rank: int,
    operation: Operation,
    asked: int | None,
    full: DeviceMemory,
    empty: DeviceMemory,
    weights: int = 0,
    tokens: int = 0,
    others: int = 0,
) -> Explanation:
    """Explains that a rank had too little memory for a request. Sizes are in bytes.

    asked: by the allocation that failed, if known.
    full, empty: the rank's memory when it failed, and without what the request had taken by then.
    weights: the model's on this rank, without those that a load was still to bring.
    tokens: of the request's latents; 0 if it has none.
    others: the weights of models that were set aside on this rank.
    """
    wanted = f"asked for {format_bytes(asked)} more" if asked else "asked for more"
    lines = [
        f"Rank {rank} ran out of memory while it was {operation.doing}. It {wanted}. It used "
        f"{format_bytes(full.used)} of {format_bytes(full.total)}, and {format_bytes(full.free)} was free."
    ]
    if weights:
        lines.append(f"The model's weights take about {format_bytes(weights)} on that rank.")
    if tokens:
        lines.append(f"The request has {tokens:,} tokens of latents.")
    if others:
        said = f"The ranks also held {format_bytes(others)} of other models' weights, which they now release. "
        return Explanation(" ".join(lines), said + "Queue the prompt again.")
    needed = max(0, full.used - empty.used) + max(asked or 0, full.free)  # at least
    return Explanation(" ".join(lines), "\n".join(advise(needed, empty, weights, tokens)))


def advise(needed: int, empty: DeviceMemory, weights: int, tokens: int) -> list[str]:
    """Says in sentences what would help. The editor estimates which plans fit (`nodes/routes/remedies.py`)."""
    found = []
    fewer = int(tokens * MARGIN * empty.free / needed) if needed else 0
    if 0 < fewer < tokens:
        found.append(f"With this plan, at most about {fewer:,} tokens fit. Lower the size or the batch.")
    others = empty.total - empty.used - empty.free
    if others > NOTABLE * empty.total:
        found.append(
            f"Other processes use {format_bytes(others)} of this memory. If ComfyUI's own models are among them, free "
            "these (Free, or POST /free)."
        )
    if weights:
        found.append(
            "Use weights=auto, more pipefusion stages, or a smaller file (fp8, GGUF). The node's plan says what fits."
        )
    return found or ["Use a smaller model, weights in a smaller dtype, or a machine with more memory."]
