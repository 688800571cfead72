"""Flux.1 (https://github.com/black-forest-labs/flux): dev and schnell, Fill, Canny and Depth, Kontext."""

from dataclasses import replace

import torch

from .adapter import JOINT, Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .packing import REFERENCES, Grid, pack, unpack, without
from .spec import OTHER

# The MLP that runs parallel to attention in single blocks.
PARALLEL_MLP = {"proj_mlp": OTHER, "act_mlp": OTHER}
OPTIONAL = ("guidance", "image_latents", *REFERENCES)


def channels(config: Config) -> int:
    return (config.get("out_channels") or config["in_channels"]) // 4


def ids(grids: list[Grid], device: torch.device) -> torch.Tensor:
    """Returns (number of the image, row, column) of every token."""
    sizes = enumerate(grids)
    lines = (((n, n + 1), (0, rows), (0, columns)) for n, (_, rows, columns) in sizes)
    ranges = ([torch.arange(*ends, device=device) for ends in line] for line in lines)
    return torch.cat([torch.cartesian_prod(*line) for line in ranges])


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Patches of 2×2 become tokens. Text tokens are at (0, 0, 0). sigma: 0 to 1. image_latents are channels below the
    latents. References are separate images."""
    seen_BCHW = torch.cat([latents_BCHW, *(conditions[name] for name in ("image_latents",) if name in conditions)], 1)
    tokens_BSD, grids = pack(seen_BCHW, conditions)
    image_ids = ids(grids, latents_BCHW.device)
    txt_ids = image_ids.new_zeros(conditions["encoder_hidden_states"].shape[1], 3)
    others = without(conditions, "image_latents", *REFERENCES)
    return {"hidden_states": tokens_BSD, "img_ids": image_ids, "txt_ids": txt_ids, "timestep": sigma_B, **others}


DOUBLE = replace(JOINT, sides={"image_rotary_emb": (0, "txt+img")})
register_adapter(
    Adapter(
        usual_spec(
            "FluxTransformer2DModel",
            DOUBLE,
            replace(DOUBLE, path="single_transformer_blocks", parallel_mlp=PARALLEL_MLP),
        ),
        conditions=("encoder_hidden_states", "pooled_projections", *OPTIONAL),
        optional=OPTIONAL,
        appended=REFERENCES,
        widths={"encoder_hidden_states": "joint_attention_dim", "pooled_projections": "pooled_projection_dim"},
        geometry=lambda config: (channels(config), (2, 2)),
        timestep_scale=1e-3,
        check=needs(
            guidance=lambda config: config["guidance_embeds"],
            image_latents=lambda config: config["in_channels"] // 4 - channels(config),
        ),
        inputs=inputs,
        output=lambda config, tokens, latents: unpack(tokens, latents),
    )
)
