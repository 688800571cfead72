"""Cases as in `stock_cases` that have a size of the published model's: a width, or several blocks of a kind."""

from __future__ import annotations

from tests.support.cases.stock_cases import flux_case, qwen

FULL_WIDTH = flux_case(
    hidden_size=3072, num_heads=24, depth=1, depth_single_blocks=1, context_in_dim=4096, vec_in_dim=768
)
SIZED_CASES = {
    "flux-full-width": FULL_WIDTH,
    "flux-deep": flux_case(depth=3, depth_single_blocks=6),
    "qwen-image-encoded": qwen(width=3584),  # for texts that its own encoder makes
}
