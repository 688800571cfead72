"""PixArt-alpha (https://arxiv.org/abs/2310.00426) and PixArt-Sigma (https://arxiv.org/abs/2403.04692)."""

from __future__ import annotations

from .adapter import register_adapter, usual_spec
from .dit import BLOCKS

register_adapter(usual_spec("PixArtTransformer2DModel", BLOCKS))
