"""Z-Image (https://github.com/Tongyi-MAI/Z-Image), base and Turbo."""

from .adapter import register_adapter
from .spec import BlockList, ModelSpec, single_stream

BLOCKS = single_stream(
    "layers",
    "x",
    "attention",
    sides={"freqs_cis": (1, "x")},
    whole=("attn_mask", "adaln_input"),
    refused=("noise_mask", "adaln_noisy", "adaln_clean"),
    chained=True,
)
HEAD = BlockList(
    "all_final_layer.2-1",
    tokens={"x": "x"},
    returns="x",
    whole=("c",),
    refused=("noise_mask", "c_noisy", "c_clean"),
    chained=True,
)
register_adapter(
    ModelSpec("ZImageTransformer2DModel", (BLOCKS,), heads="config.n_heads", width="config.dim", head=HEAD)
)
