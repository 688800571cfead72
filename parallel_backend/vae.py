"""An unmodified diffusers AutoencoderKL on several ranks: each holds a band of rows, and the result is that of one.

What a layer needs from outside its band is exchanged where the layer runs: convolutions take the neighbours' border
rows, group norms the statistics of all rows, and the mid-block's attention the keys and values of all tokens. The idea
of splitting activations by patches, norms and halos included, is DistVAE's in xDiT (https://arxiv.org/abs/2411.01738).

Shapes: B batch, C channels, H and W of the whole latent or image, h rows of this rank's band, G groups of a norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from diffusers import AutoencoderKL
from diffusers.models.attention_processor import Attention
from diffusers.models.downsampling import Downsample2D

from .errors import RequestError
from .groups.collectives import collect, gather, shard, shard_sizes
from .groups.mesh import Axis
from .hooks import Hooks
from .seams.attention import install_attention
from .weights.parking import Parking

ROWS_DIM = 2
# The statistics of a norm are taken of this share of the groups at a time, to bound their fp32 copies.
NORM_PARTS = 8


class RowBands:
    """How the rows of the latent lie on the ranks of an axis, by `shard_sizes`; and whether they do at the moment.

    At every level of the VAE a band is this rank's latent rows times the level's scale. (Rows of an image beyond a
    multiple of the VAE's scale belong to the last rank.)
    """

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.rows = 0  # of the whole latent; 0 while nothing is split

    @property
    def local_rows(self) -> int:
        return shard_sizes(self.rows, self.axis.degree)[self.axis.index]

    @contextmanager
    def of(self, rows: int) -> Iterator[None]:
        """While entered, the layers treat their input as this rank's band of a latent of so many rows."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = 0


class BorderRows:
    """An exchange of border rows with the neighbours, under way from construction to `wait`.

    Each rank sends its first row up; and its last row down too, unless only what lies below a band is asked for.
    """

    def __init__(self, band_BChW: torch.Tensor, axis: Axis, both: bool) -> None:
        first, last = band_BChW[:, :, :1].contiguous(), band_BChW[:, :, -1:].contiguous()
        # Zeros, the layers' own padding, at the border of the whole.
        self.above, self.below = torch.zeros_like(first), torch.zeros_like(last)
        self.sent = first, last  # held until they are delivered
        transfers = []
        if axis.index:
            previous = axis.global_rank(axis.index - 1)
            transfers.append(dist.P2POp(dist.isend, first, previous, axis.group))
            if both:
                transfers.append(dist.P2POp(dist.irecv, self.above, previous, axis.group))
        if axis.index + 1 < axis.degree:
            following = axis.global_rank(axis.index + 1)
            if both:
                transfers.append(dist.P2POp(dist.isend, last, following, axis.group))
            transfers.append(dist.P2POp(dist.irecv, self.below, following, axis.group))
        self.timeline = axis.timeline
        with self.timeline.communication("border rows, send"):
            self.works = dist.batch_isend_irecv(transfers)

    def wait(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows above and below the band, (B, C, 1, W) each."""
        with self.timeline.communication("border rows, receive"):
            for work in self.works:
                work.wait()
        return self.above, self.below


class BandConv:
    """A 3×3 convolution that keeps the size: it runs over the band while the borders travel, then two rows are redone.

    So the band is never copied to be padded, and at the borders every value is rounded once, as on one rank.
    """

    def __init__(self, conv: torch.nn.Conv2d, bands: RowBands, hooks: Hooks) -> None:
        self.bands = bands
        self.borders: BorderRows | None = None
        hooks.before(conv, self.start)
        hooks.after(conv, self.finish)

    def start(self, _conv: torch.nn.Conv2d, inputs: tuple[torch.Tensor]) -> None:
        if self.bands.rows:
            self.borders = BorderRows(inputs[0], self.bands.axis, both=True)

    def finish(self, conv: torch.nn.Conv2d, inputs: tuple[torch.Tensor], output_BChW: torch.Tensor) -> None:
        if not self.bands.rows or self.borders is None:
            return
        band_BChW = inputs[0]
        above, below = self.borders.wait()
        self.borders = None
        if band_BChW.shape[ROWS_DIM] == 1:
            windows = [(above, band_BChW, below)] * 2
        else:
            windows = [(above, band_BChW[:, :, :2]), (band_BChW[:, :, -2:], below)]
        # As one batch: for the launches saved, and since torch's kernel for a single tiny image rounds worse on CPU.
        joined = torch.cat([torch.cat(window, ROWS_DIM) for window in windows])
        redone = F.conv2d(joined, conv.weight, conv.bias, padding=(0, int(conv.padding[1])))
        output_BChW[:, :, :1], output_BChW[:, :, -1:] = redone.chunk(2)


class BandDownConv:
    """The stride-2 convolution of a Downsample2D, which gets its input with a row of zeros below, and needs no other.

    Except on the last rank that row is the neighbour's first.
    """

    def __init__(self, conv: torch.nn.Conv2d, bands: RowBands, hooks: Hooks) -> None:
        self.bands = bands
        hooks.before(conv, self.fill)

    def fill(self, _conv: torch.nn.Conv2d, inputs: tuple[torch.Tensor]) -> None:
        axis, (padded_BChW,) = self.bands.axis, inputs
        if self.bands.rows:
            _, below = BorderRows(padded_BChW, axis, both=False).wait()
            if axis.index + 1 < axis.degree:
                padded_BChW[:, :, -1:] = below


class BandNorm:
    """Stands in for a GroupNorm's `forward`, with the mean and variance of all ranks' rows."""

    def __init__(self, norm: torch.nn.GroupNorm, bands: RowBands, hooks: Hooks) -> None:
        self.norm = norm
        self.bands = bands
        self.on_one_rank = norm.forward
        hooks.replace(norm, "forward", self)

    def __call__(self, band_BC: torch.Tensor) -> torch.Tensor:
        """band_BC: (B, C, h, W), or (B, C, h × W) in an attention module."""
        if not self.bands.rows:
            return self.on_one_rank(band_BC)
        # Attention leaves channels last; torch's norm brings them back, and the convolutions that follow depend on it.
        band_BC = band_BC.contiguous()
        norm, batch, channels = self.norm, *band_BC.shape[:2]
        mean_BG, variance_BG = self.statistics(band_BC.reshape(batch, norm.num_groups, -1))
        # With the statistics given, a norm of channels is the fused kernel that applies them; the batch counts as
        # channels, since each image has its own.
        mean, variance = (
            value.repeat_interleave(channels // norm.num_groups, 1).flatten() for value in (mean_BG, variance_BG)
        )
        weight, bias = (value.float().repeat(batch) for value in (norm.weight, norm.bias))
        joined = band_BC.reshape(1, batch * channels, *band_BC.shape[2:])
        return F.batch_norm(joined, mean, variance, weight, bias, training=False, eps=norm.eps).reshape(band_BC.shape)

    def statistics(self, band_BGN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and (biased) variance of each group over all ranks, in fp32, merged from each rank's own.

        Squares are of deviations from the rank's own mean, so that nothing cancels (Chan et al., 1979).
        """
        means, squares = [], []
        for part in band_BGN.split(max(1, band_BGN.shape[1] // NORM_PARTS), 1):
            part = part.float()
            means.append(part.mean(-1))
            squares.append((part - means[-1].unsqueeze(-1)).square_().sum(-1))
        mean_BG = torch.cat(means, 1)
        local = torch.stack((mean_BG, torch.cat(squares, 1), torch.full_like(mean_BG, band_BGN.shape[2])))
        mean, square, count = gather(local.unsqueeze(0), 0, self.bands.axis.degree, self.bands.axis).unbind(1)
        share = count / count.sum(0)
        whole_mean = (mean * share).sum(0)
        variance = square.sum(0) / count.sum(0) + ((mean - whole_mean).square() * share).sum(0)
        return whole_mean, variance


class BandAttention:
    """Attention of this rank's tokens to the tokens of all ranks; takes the place of ParallelAttention in the seam."""

    def __init__(self, bands: RowBands) -> None:
        self.bands = bands

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        """`F.scaled_dot_product_attention` of (B, heads, h × W, head dim) each, with the options that it was given."""
        bands = self.bands
        if bands.rows:
            pair = torch.stack((key, value)).unflatten(3, (bands.local_rows, -1))
            key, value = gather(pair, 3, bands.rows, bands.axis).flatten(3, 4)
        return F.scaled_dot_product_attention(query, key, value, **options)


class ParallelVAE:
    """Decodes and encodes on all ranks of an axis together, each with its band of rows.

    Every rank calls with the same tensors. Layers are hooked in place; outside these calls the model computes as
    before. A latent of fewer rows than ranks is left to index 0 alone. Raises RequestError for a model that has layers
    which cannot be split.
    """

    def __init__(self, vae: AutoencoderKL, axis: Axis) -> None:
        if not isinstance(vae, AutoencoderKL):
            raise RequestError(f"{type(vae).__name__} cannot be split over ranks.", "Use an AutoencoderKL.")
        if vae.use_tiling:
            raise RequestError("A tiled VAE differs from a whole one.", "Call disable_tiling() before it is split.")
        self.vae: Any = vae  # diffusers annotates other types than it takes and returns
        self.bands = RowBands(axis)
        self.hooks = Hooks()
        self.parking = Parking(vae, vae.device)
        self.scale = 2 ** (len(self.vae.config.block_out_channels) - 1)
        if axis.degree > 1:
            install_bands(vae, self.bands, self.hooks)

    def remove(self) -> None:
        """Takes all of it off the VAE, and gives it its weights back if they are parked."""
        if self.parking.is_parked:
            self.parking.restore()
        self.hooks.remove()

    @torch.inference_mode()
    def decode(self, latents_BCHW: torch.Tensor) -> torch.Tensor | None:
        """The image (B, 3, 8H, 8W), about -1 to 1, on index 0 of the axis; None elsewhere.

        latents_BCHW: as the VAE's decoder takes them, so with the model's scale and shift undone (ComfyUI's latents
        after `process_out`). Raises RequestError, on every rank alike, for latents that the VAE cannot take.
        """
        self.check("latent", latents_BCHW, self.vae.config.latent_channels, 1)
        rows, axis = latents_BCHW.shape[ROWS_DIM], self.bands.axis
        if rows < axis.degree or axis.degree == 1:
            return None if axis.index else self.vae.decode(self.placed(latents_BCHW)).sample
        with axis.timeline.step("decode"):
            with self.bands.of(rows):
                band = self.vae.decode(self.placed(shard(latents_BCHW, ROWS_DIM, axis))).sample
            image = collect(band.unflatten(ROWS_DIM, (-1, self.scale)), ROWS_DIM, rows, axis)
        return None if image is None else image.flatten(ROWS_DIM, ROWS_DIM + 1)

    @torch.inference_mode()
    def encode(self, image_BCHW: torch.Tensor) -> torch.Tensor | None:
        """The mean latents (B, C, H // 8, W // 8), not scaled, on index 0 of the axis; None elsewhere.

        image_BCHW: (B, 3, H, W), -1 to 1. Raises RequestError, on every rank alike, for one that the VAE cannot take.
        """
        self.check("image", image_BCHW, self.vae.config.in_channels, self.scale)
        rows, axis = image_BCHW.shape[ROWS_DIM] // self.scale, self.bands.axis
        if rows < axis.degree or axis.degree == 1:
            return None if axis.index else self.vae.encode(self.placed(image_BCHW)).latent_dist.mode()
        sizes = [size * self.scale for size in shard_sizes(rows, axis.degree)]
        sizes[-1] += image_BCHW.shape[ROWS_DIM] % self.scale
        with axis.timeline.step("encode"):
            with self.bands.of(rows):
                band = self.vae.encode(self.placed(image_BCHW.split(sizes, ROWS_DIM)[axis.index])).latent_dist.mode()
            return collect(band, ROWS_DIM, rows, axis)

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.vae.device, self.vae.dtype)

    def check(self, kind: str, tensor: torch.Tensor, channels: int, least: int) -> None:
        """Raises RequestError for a latent or image that is not (B, channels, H, W) with finite values."""
        if tensor.ndim != 4 or tensor.shape[1] != channels or not len(tensor) or min(tensor.shape[2:]) < least:
            raise RequestError(
                f"The {kind} has shape {tuple(tensor.shape)}, and this VAE takes (batch, {channels}, height, width) "
                f"with sides of {least} or more.",
                "Use the VAE that belongs to the model.",
            )
        if not tensor.isfinite().all():
            raise RequestError(f"The {kind} holds NaN or infinite values; the node that made it went wrong.")


def install_bands(vae: AutoencoderKL, bands: RowBands, hooks: Hooks) -> None:
    """Hooks every layer of the model that looks beyond its own pixel. Raises RequestError for one of another kind."""
    down = {module.conv for module in vae.modules() if isinstance(module, Downsample2D) and not module.padding}
    attention = BandAttention(bands)
    for name, module in vae.named_modules():
        if isinstance(module, Attention):
            install_attention(module, [attention], hooks)
        elif isinstance(module, torch.nn.GroupNorm):
            BandNorm(module, bands, hooks)
        elif isinstance(module, torch.nn.Conv2d) and module.kernel_size != (1, 1):
            same_size = module.kernel_size == (3, 3) and module.stride == (1, 1) and module.padding == (1, 1)
            if module in down and module.kernel_size == (3, 3):
                BandDownConv(module, bands, hooks)
            elif same_size and module.dilation == (1, 1) and module.groups == 1:
                BandConv(module, bands, hooks)
            else:
                raise RequestError(f"The VAE's layer {name}, {module}, cannot be split over ranks.", "Use one rank.")
