"""Makes the VAE of a diffusers pipeline run on several ranks: each computes a band of rows, and all return the result.

The pipeline's own calls of `decode` and `encode` stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..errors import RequestError
from ..groups.mesh import Axis
from ..hooks import Hooks
from ..models.bands import VaeClass
from ..seams.bands.functions import BandFunctions
from ..seams.bands.rows import ROWS, RowBands
from ..weights.loading import go_on
from .classes import class_of
from .diffusers_classes import CLASSES

ADVICE = "Call parallelize without vae=True: every rank then runs the whole VAE."


class PipelineVAE:
    """Hooks on one of diffusers' VAEs, whose caller makes the same call on every rank, with the same random state.

    If a latent has too few rows for the ranks, every rank computes all of it. Raises what `check_vae` raises.
    """

    def __init__(self, vae: Any, axis: Axis, hooks: Hooks) -> None:
        self.kind = check_vae(vae)
        self.vae = vae
        self.bands = RowBands(axis)
        known = getattr(vae, "spatial_compression_ratio", None)
        self.scale = known or 2 ** (len(vae.config.block_out_channels) - 1)  # rows of a picture for one of its latent
        for module in vae.modules():
            for name, function in self.kind.replaced.get(type(module).__name__, {}).items():
                hooks.replace(module, name, partial(function, module, self.bands))
        hooks.replace(vae, "decode", partial(self.run, vae.decode, 1, self.scale))
        hooks.replace(vae, "encode", partial(self.run, vae.encode, self.scale, 1))

    @torch.no_grad()
    def run(
        self,
        call: Callable[..., Any],
        scale_in: int,
        scale_out: int,
        whole: torch.Tensor,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Decodes latents or encodes pictures (B, C, H, W) or (B, C, T, H, W), and returns what `call` does for all
        rows. scale_in, scale_out: rows of the input and of the result for each latent row. Raises RequestError, on
        every rank alike."""
        check_tiling(self.vae)
        rows = whole.shape[ROWS] // scale_in
        if self.bands.axis.degree == 1 or min(self.bands.axis.sizes(rows)) < self.kind.least_rows:
            return call(whole, *args, **options)
        functions = BandFunctions(self.bands, self.kind, go_on, advice=ADVICE)
        with self.bands.of(rows):
            with functions:
                result = call(self.bands.cut(whole, scale_in), *args, **options)
            return self.join(result, scale_out)

    def join(self, result: Any, scale: int) -> Any:
        """Returns the result for all rows: a tensor, a distribution with its `parameters`, or a tuple or diffusers'
        output of them."""
        if isinstance(result, tuple):
            return tuple(self.join(each, scale) for each in result)
        if isinstance(result, dict):
            return type(result)(**{name: self.join(each, scale) for name, each in result.items()})
        if not torch.is_tensor(result):
            return type(result)(self.join(result.parameters, scale), result.deterministic)
        self.bands.check(result, scale, self.vae)
        return self.bands.gather(result, scale, self.bands.rows * scale)


def check_vae(vae: Any) -> VaeClass:
    """Returns the description of a pipeline's VAE. Raises RequestError if it cannot be split, is tiled, or is None."""
    if vae is None:
        raise RequestError("The pipeline has no VAE to make parallel.", "Call parallelize without vae=True.")
    kind = class_of(vae, CLASSES, ADVICE)
    check_tiling(vae)
    return kind


def check_tiling(vae: Any) -> None:
    """Raises RequestError for a VAE that is tiled."""
    if getattr(vae, "use_tiling", False):
        raise RequestError(
            f"This {type(vae).__name__} is tiled. Its tiles differ from a whole picture, and cannot be split.",
            "Call pipeline.vae.disable_tiling(). A rank only needs memory for its own rows.",
        )
