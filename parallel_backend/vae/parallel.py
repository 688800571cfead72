"""Runs an unmodified VAE on several ranks: each computes a band of rows, or some of the tiles that the VAE itself cuts.
The result is that of one rank.

Splitting activations by patches, with norms and halos, is the idea of DistVAE in xDiT
(https://arxiv.org/abs/2411.01738). `seams/bands` gets the rows that a function needs from outside of its band.

Shapes: B batch, C channels, T frames (of videos alone), H and W of the whole latent or picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import RequestError
from ..groups.collectives import collect
from ..groups.mesh import Axis
from ..hooks import Hooks
from ..seams.bands.functions import BandFunctions
from ..seams.bands.rows import ROWS, RowBands
from ..weights.loading import go_on
from ..weights.parking import Parking
from .classes import class_of
from .tiles import META, SharedTiles

CPU = torch.device("cpu")


@dataclass(frozen=True)
class VaeSizes:
    """scale: how many pixels wide one latent pixel is. latent_channels, channels: of latents and of pictures. dims: of
    both, 4 or 5."""

    scale: int
    latent_channels: int
    channels: int
    dims: int


class ParallelVAE:
    """Decodes and encodes with a VAE on all ranks of an axis together, each with its band of rows or its tiles.

    Every rank calls with the same tensors, and with the same random state if the class draws noise. The VAE's class is
    unchanged; outside of these calls the model computes as before. If a latent has fewer rows than there are ranks,
    only index 0 computes. Raises RequestError for a class that cannot be split or is unknown.
    """

    def __init__(self, vae: torch.nn.Module, axis: Axis, sizes: VaeSizes, results: Axis | None = None) -> None:
        """results: an axis over the same ranks to collect results on the CPU; without it, results stay on the
        device."""
        self.kind = class_of(vae)
        self.vae: Any = vae
        self.sizes = sizes
        self.bands = RowBands(axis)
        self.results = results
        parameter = next(vae.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.parking = Parking(vae, self.device)
        for module in vae.modules() if axis.degree > 1 else ():
            if hasattr(module, self.kind.attend):
                setattr(module, self.kind.attend, attend)

    def decode(self, latents: torch.Tensor, check: Callable[[], None] = go_on) -> torch.Tensor | None:
        """Returns the pictures (B, C, H, W) or (B, C, T, H, W), about -1 to 1, on index 0 of the axis; None elsewhere.

        latents: for the VAE's decoder, without the model's scale and shift. check: see BandFunctions. Raises
        RequestError on every rank alike for latents that the VAE cannot take.
        """
        self.check("latent", latents, self.sizes.latent_channels, 1)
        return self.run("decode", self.run_decoder, latents, 1, self.sizes.scale, check)

    def encode(self, pictures: torch.Tensor, check: Callable[[], None] = go_on) -> torch.Tensor | None:
        """Returns the mean latents, not scaled, on index 0 of the axis; None elsewhere.

        pictures: (B, C, H, W) or (B, C, T, H, W), -1 to 1. Raises what `decode` raises.
        """
        scale = self.sizes.scale
        self.check("image", pictures, self.sizes.channels, scale)
        return self.run("encode", self.run_encoder, pictures, scale, 1, check)

    @torch.inference_mode()
    def run(
        self,
        direction: str,
        call: Callable[[torch.Tensor], torch.Tensor],
        whole: torch.Tensor,
        scale_in: int,
        scale_out: int,
        check: Callable[[], None],
    ) -> torch.Tensor | None:
        """scale_in, scale_out: rows of the input and of the result for each latent row."""
        bands, axis, rows = self.bands, self.bands.axis, whole.shape[ROWS] // scale_in
        if self.kind.tiles and not any(side % scale_in for side in whole.shape[ROWS:]):
            with axis.timeline.step(direction):
                return self.run_tiles(direction, call, whole, check)
        alone = rows < axis.degree or axis.degree == 1 or self.kind.tiles
        if alone and axis.index:
            return None
        asked = go_on if alone and axis.degree > 1 else check  # the other ranks would not join the check
        functions = BandFunctions(bands, self.kind, asked)
        if alone:
            with functions:
                return call(whole)
        with axis.timeline.step(direction), bands.of(rows):
            with functions:
                band = call(bands.cut(whole, scale_in))
            bands.check(band, scale_out, self.vae)
            return collect(band.to(CPU) if self.results else band, ROWS, rows, self.results or axis, scale_out)

    def run_tiles(
        self,
        direction: str,
        call: Callable[[torch.Tensor], torch.Tensor],
        whole: torch.Tensor,
        check: Callable[[], None],
    ) -> torch.Tensor | None:
        """Pictures are without numbers where nobody reads them. Latents are small, and a layer follows that needs a
        device."""
        coder, shape, device = {
            "decode": (self.vae.decoder, self.decoded_shape, META),
            "encode": (self.vae.encoder, self.encoded_shape, self.device),
        }[direction]
        tiles = SharedTiles(coder.forward, shape, device, self.bands.axis, check)
        with Hooks() as hooks:
            hooks.replace(coder, "forward", tiles)
            result = call(whole)
        tiles.finish(self.device)
        return None if self.bands.axis.index else result

    def decoded_shape(self, latents: torch.Size) -> tuple[int, ...]:
        """Returns the shape of a decoded tile."""
        batch, _, frames, *sides = latents
        return batch, self.sizes.channels, frames * self.vae.vae_ratio_t, *(side * self.sizes.scale for side in sides)

    def encoded_shape(self, pictures: torch.Size) -> tuple[int, ...]:
        """Returns the shape of an encoded tile: the mean and the log variance of each latent number."""
        batch, _, frames, *sides = pictures
        frames = -(-frames // self.vae.vae_ratio_t)
        return batch, 2 * self.sizes.latent_channels, frames, *(side // self.sizes.scale for side in sides)

    def run_decoder(self, latents: torch.Tensor) -> torch.Tensor:
        latents = latents.to(self.device, self.dtype)
        if self.kind.tiles and getattr(self.vae, self.kind.chunks, False) and self.bands.axis.index:
            unread = torch.empty(self.vae.decode_output_shape(latents.shape), device=META)
            return self.vae.decode(latents, output_buffer=unread)
        return self.vae.decode(latents)

    def run_encoder(self, pictures: torch.Tensor) -> torch.Tensor:
        if getattr(self.vae, self.kind.chunks, False):
            return self.vae.encode(pictures.to(self.dtype), device=self.device)
        return self.vae.encode(pictures.to(self.device, self.dtype))

    def check(self, kind: str, tensor: torch.Tensor, channels: int, least: int) -> None:
        """Raises RequestError for a latent or picture with wrong sizes, or with values that are not finite."""
        dims = self.sizes.dims
        if tensor.ndim != dims or tensor.shape[1] != channels or not tensor.numel() or min(tensor.shape[-2:]) < least:
            frames = "frames, " if dims > 4 else ""
            raise RequestError(
                f"The {kind} has shape {tuple(tensor.shape)}, but this VAE takes (batch, {channels}, {frames}height, "
                f"width) with sides of {least} or more.",
                "Use the VAE that belongs to the model.",
            )
        if not torch.stack(tensor.aminmax()).isfinite().all():  # makes no copy, which for a long video would be large
            raise RequestError(
                f"The {kind} holds NaN or infinite values.", f"Check the node that made the {kind}; it went wrong."
            )


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention over the pixels of (B, C, …), in place of the module's own.

    With little memory, the module's splits its work in a way that one band cannot follow.
    """
    shape = query.shape
    query, key, value = (each.flatten(2).transpose(1, 2).unsqueeze(1).contiguous() for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).squeeze(1).transpose(1, 2).reshape(shape)
