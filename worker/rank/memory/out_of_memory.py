"""Explains an out-of-memory error (OOM) in words: what the request needed, what there was, and what helps."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import Explanation
from ...wire.operations import Operation
from .device_memory import DeviceMemory

MARGIN = 0.9  # share of the memory that an estimate may fill
NOTABLE = 0.05


@dataclass(frozen=True)
class OutOfMemoryReport:
    """A request for which a rank had too little memory. Sizes are in bytes.

    asked: by the allocation that failed, if known.
    full, empty: the rank's free memory when it failed, and without what the request had taken by then.
    weights: the model's on this rank, without those that a load was still to bring.
    tokens: of the request's latents; 0 if it has none.
    others: the weights of models that were set aside on this rank.
    """

    rank: int
    operation: Operation
    asked: int | None
    full: DeviceMemory
    empty: DeviceMemory
    weights: int = 0
    tokens: int = 0
    others: int = 0

    @property
    def needed(self) -> int:
        """The least that the request needed: what it had taken when it failed, and what it was refused."""
        return max(0, self.full.used - self.empty.used) + max(self.asked or 0, self.full.free)

    @property
    def explanation(self) -> Explanation:
        wanted = f"asked for {size(self.asked)} more" if self.asked else "asked for more"
        lines = [
            f"Rank {self.rank} ran out of memory while it was {self.operation.doing}. It {wanted}. It used "
            f"{size(self.full.used)} of {size(self.full.total)}, and {size(self.full.free)} was free."
        ]
        if self.weights:
            lines.append(f"The model's weights take about {size(self.weights)} on that rank.")
        if self.tokens:
            lines.append(f"The request has {self.tokens:,} tokens of latents.")
        return Explanation(" ".join(lines), "\n".join(advise(self)))


def advise(short: OutOfMemoryReport) -> list[str]:
    """Says in sentences what would help. The editor estimates which plans fit (`nodes/routes/remedies.py`)."""
    if short.others:
        said = f"The ranks also held {size(short.others)} of other models' weights, which they now release. "
        return [said + "Queue the prompt again."]
    found = []
    fewer = int(short.tokens * MARGIN * short.empty.free / short.needed) if short.needed else 0
    if 0 < fewer < short.tokens:
        found.append(f"With this plan, at most about {fewer:,} tokens fit. Lower the size or the batch.")
    others = short.empty.total - short.empty.used - short.empty.free
    if others > NOTABLE * short.empty.total:
        found.append(
            f"Other processes use {size(others)} of this memory. If ComfyUI's own models are among them, free these "
            "(Free, or POST /free)."
        )
    if short.weights:
        found.append(
            "Use weights=auto, more pipefusion stages, or a smaller file (fp8, GGUF). The node's plan says what fits."
        )
    return found or ["Use a smaller model, weights in a smaller dtype, or a machine with more memory."]


def size(count: int) -> str:
    """Formats bytes for people."""
    for unit, power in (("GB", 1e9), ("MB", 1e6)):
        if count >= power:
            return f"{count / power:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
