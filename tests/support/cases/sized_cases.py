"""Cases as in `stock_cases` that have a size of the published model's: a width, or several blocks of a kind."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.support.cases.stock_cases import VIDEO, StockCase, flux_case, normal, text, wan

FULL_WIDTH = flux_case(
    hidden_size=3072, num_heads=24, depth=1, depth_single_blocks=1, context_in_dim=4096, vec_in_dim=768
)
# 3.7 GB in bf16, 1.9 of Flux.1's 12 billion weights; an image of 1024×1024 with as long a text as Flux.1's.
TO_TIME = replace(
    flux_case(hidden_size=3072, num_heads=24, depth=3, depth_single_blocks=6, context_in_dim=4096, vec_in_dim=768),
    latent=(1, 16, 128, 128),
    texts=text(512, 4096, pooled=normal(1, 768)),
    dtype=torch.bfloat16,
)
TO_TIME_SMALL = replace(
    flux_case(hidden_size=3072, num_heads=24, depth=1, depth_single_blocks=2, context_in_dim=4096, vec_in_dim=768),
    latent=TO_TIME.latent,
    texts=TO_TIME.texts,
    dtype=torch.bfloat16,
)
# As deep as half of Flux.1's, of a sixth of its width; a third of Wan 14B's depth, of a fifth of its width.
FLUX_TO_WEIGH = replace(flux_case(hidden_size=512, num_heads=4, depth=10, depth_single_blocks=20), dtype=torch.bfloat16)
FLUX_TO_WEIGH_SOON = replace(FLUX_TO_WEIGH, config={**FLUX_TO_WEIGH.config, "depth": 2, "depth_single_blocks": 4})
WAN_TO_WEIGH = StockCase(
    "wan.model.WanModel",
    wan(dim=1024, ffn_dim=4096, num_heads=8, num_layers=14),
    VIDEO,
    text(7, 4096),
    dtype=torch.bfloat16,
)
SIZED_CASES = {
    "flux-to-weigh": FLUX_TO_WEIGH,
    "flux-to-weigh-soon": FLUX_TO_WEIGH_SOON,
    "wan-to-weigh": WAN_TO_WEIGH,
    "flux-to-time": TO_TIME,
    "flux-to-time-small": TO_TIME_SMALL,
    "flux-full-width": FULL_WIDTH,
    "flux-deep": flux_case(depth=3, depth_single_blocks=6),
    # For a text that its own encoders make.
    "flux-dev-encoded": flux_case(context_in_dim=4096, vec_in_dim=768, depth_single_blocks=1),
}
