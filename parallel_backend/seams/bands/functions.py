"""Replaces torch's functions by versions for bands of rows, while a model runs.

While `BandFunctions` is entered, it sees every torch function that the model calls. A function that needs other rows
gets them: a convolution and padding get the neighbours' border rows, a group norm the statistics of all rows, attention
the keys and values of all tokens, and a draw of noise its part of the whole. A function that reads other rows in
another way is refused. Most functions compute each row by itself and run unchanged. Caches hold bands and run
unchanged too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ...errors import RequestError
from ...models.bands import BandTraits
from .norm import band_group_norm
from .rows import ROWS, Borders, RowBands, exchange_borders

Op = Callable[..., torch.Tensor]

CHECK_EVERY = 32  # convolutions between two calls of `check`
# Up to so many rows of a band for each border row, a convolution waits for its borders. Its inner rows would hide
# little, and a second convolution for the rows at the borders reads all weights again.
FEW_ROWS = 16
SCORE_BYTES = 1 << 30  # limit for attention's scores, which some kernels hold in memory
# Functions that read other rows in ways that no known model uses.
UNKNOWN = (
    *(F.max_pool2d, F.max_pool3d, torch.max_pool2d, torch.max_pool3d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(F.adaptive_max_pool2d, F.adaptive_max_pool3d, F.lp_pool2d, F.unfold, F.fold, F.grid_sample, F.affine_grid),
    *(torch.norm, F.instance_norm, F.local_response_norm, torch.roll, torch.fft.fft2, torch.fft.fftn, torch.fft.rfft2),
    *(torch.rand, torch.rand_like, torch.normal, torch.bernoulli),
)


class BandFunctions(TorchFunctionMode):
    """Handles torch's functions for bands of rows.

    check: called between convolutions, at the same places on all ranks; it raises on all ranks or on none. model,
    advice: for errors.
    """

    def __init__(
        self,
        bands: RowBands,
        traits: BandTraits,
        check: Callable[[], None],
        model: str = "VAE",
        advice: str = "Use the stock node.",
    ) -> None:
        super().__init__()
        self.bands, self.traits, self.check = bands, traits, check
        self.model, self.advice = model, advice
        self.convolutions = 0

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = HANDLERS.get(func)
        if handler is None:  # as of nearly all of a model's calls
            return func(*args, **kwargs)
        if func in CONVOLUTIONS:
            self.convolutions += 1
            if self.convolutions % CHECK_EVERY == 0:
                self.check()
        if not self.bands.rows:
            return func(*args, **kwargs)
        return handler(self, func, *args, **kwargs)

    def convolve(self, func: Op, band: torch.Tensor, weight: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """If the convolution pads rows, the neighbours' rows replace the zeros. If it does not, its input is already
        padded (`pad`), or it computes each row by itself."""
        given = {"stride": 1, "padding": 0, "dilation": 1, **options}
        given |= zip(CONVOLUTIONS[func], args, strict=False)
        padding = given["padding"]

        def run(rows: torch.Tensor, padding: Any) -> torch.Tensor:
            return func(rows, weight, **{**given, "padding": padding})

        if isinstance(padding, str):
            raise self.refusal(f"a convolution with padding={padding!r}")
        edge, step = of_rows(padding, band), of_rows(given["stride"], band)
        reach = of_rows(given["dilation"], band) * (weight.shape[ROWS] - 1)
        if not edge:
            return run(band, padding)
        if reach != 2 * edge or edge > self.bands.smallest:
            raise self.refusal(
                f"a convolution of {weight.shape[ROWS]} rows, padded by {edge}, on bands with too few rows"
            )
        wait = exchange_borders(band, edge, edge, self.bands)
        without = [padding] * (band.ndim - 2) if isinstance(padding, int) else list(padding)
        without[ROWS] = 0
        if step > 1 or band.shape[ROWS] <= FEW_ROWS * edge:
            above, below = or_zeros(wait(), band, edge)
            return run(torch.cat((above, band, below), ROWS), without)
        # Runs over the band while the borders travel, then computes the rows at the borders again. So the band is never
        # copied for padding, and every value is rounded once, as on one rank.
        output = run(band, padding)
        above, below = or_zeros(wait(), band, edge)
        # Both borders in one batch: this saves launches, and torch's CPU kernel rounds worse for a single tiny image.
        rows, count = band.shape[ROWS], len(band)
        joined = band.new_empty((2 * count, *band.shape[1:ROWS], 3 * edge, band.shape[-1]))
        upper, lower = joined.split(count)
        torch.cat((above, band.narrow(ROWS, 0, 2 * edge)), ROWS, out=upper)
        torch.cat((band.narrow(ROWS, rows - 2 * edge, 2 * edge), below), ROWS, out=lower)
        redone = run(joined, without)
        for start, fresh in zip((0, rows - edge), redone.chunk(2), strict=True):
            output.narrow(ROWS, start, edge).copy_(fresh)
        return output

    def pad(
        self,
        func: Op,
        band: torch.Tensor,
        pad: Sequence[int],
        mode: str = "constant",
        value: float | None = None,
    ) -> torch.Tensor:
        """`F.pad` with the neighbours' rows. Only at the borders of the whole, the mode creates rows."""
        if len(pad) < 4 or not any(pad[2:4]):
            return func(band, pad, mode, value)
        above, below = pad[2:4]
        if mode == "circular" or min(above, below) < 0 or max(above, below) > self.bands.smallest:
            raise self.refusal(f"padding of mode {mode!r} by {above} and {below} rows on bands with too few rows")
        upper, lower = exchange_borders(band, above, below, self.bands)()
        joined = torch.cat([rows for rows in (upper, band, lower) if rows is not None], ROWS)
        left = [*pad[:2], above if self.bands.is_first else 0, below if self.bands.is_last else 0, *pad[4:]]
        return func(joined, left, mode, value) if any(left) else joined

    def group_norm(
        self,
        _func: Op,
        band: torch.Tensor,
        num_groups: int,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        return band_group_norm(band, num_groups, weight, bias, eps, self.bands.axis)

    def batch_norm(self, func: Op, band: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("training") or any(args[4:5]):
            raise self.refusal("a batch norm in training")
        return func(band, *args, **kwargs)

    def attend(
        self,
        func: Op,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        """`F.scaled_dot_product_attention` from this rank's tokens to all ranks' tokens, (…, tokens, D) each.

        The keys are in rank order, which does not change the result.
        """
        if not self.traits.attends_over_rows:
            return func(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if is_causal or dropout_p or (attn_mask is not None and not self.traits.causal_frames):
            raise self.refusal("attention with a mask")
        key, value = self.bands.gather_tokens(key), self.bands.gather_tokens(value)
        at_a_time = max(1, SCORE_BYTES // (key.shape[ROWS] * query.shape[:ROWS].numel() * query.itemsize))
        queries = query.split(at_a_time, ROWS)
        masks = [None] * len(queries) if attn_mask is None else self.over_all(attn_mask).split(at_a_time, ROWS)
        parts = [func(part, key, value, mask, **options) for part, mask in zip(queries, masks, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, ROWS)

    def over_all(self, mask: torch.Tensor) -> torch.Tensor:
        """Returns a mask over this rank's frames (…, tokens, tokens) for the keys of all ranks. The first frame sees
        itself alone. So what a token sees, in units of that, is the number of its frame."""
        seen = (mask.reshape(-1, *mask.shape[ROWS:])[0] == 0).sum(-1)
        frames = (seen // seen[0]).unsqueeze(-1)
        hidden = self.bands.gather_tokens(frames).mT > frames
        return torch.zeros_like(hidden, dtype=mask.dtype).masked_fill(hidden, float("-inf"))

    def resize(self, func: Op, band: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """`F.interpolate` to whole multiples by repetition."""
        size, factor, mode = (*args, *(None, None, "nearest")[len(args) :])[:3]
        size, factor = options.get("size", size), options.get("scale_factor", factor)
        mode = options.get("mode", mode)
        if self.traits.by_size and mode == "nearest" and size is not None and self.repeats(band, of_rows(size, band)):
            return func(band, *args, **options)
        factors = factor if isinstance(factor, (tuple, list)) else [factor]
        repeats = factor is not None and float(factors[max(ROWS, -len(factors))]).is_integer()
        if size is not None or not mode.startswith("nearest") or not repeats:
            raise self.refusal(f"interpolation of mode {mode!r} by {factor}")
        return func(band, *args, **options)

    def repeats(self, band: torch.Tensor, rows: int) -> bool:
        """Whether each row becomes as many. If they are two, the last one may become one at the border of the whole."""
        own = band.shape[ROWS]
        return rows % own == 0 or self.bands.is_last and rows == 2 * own - 1

    def pool(
        self,
        func: Op,
        band: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        *args: Any,
        **options: Any,
    ) -> torch.Tensor:
        """Averages rows that are in the same band."""
        kernel = of_rows(kernel_size, band)
        if (kernel != of_rows(stride or kernel_size, band) and kernel > 1) or of_rows(padding, band):
            raise self.refusal("pooling with overlaps")
        return func(band, kernel_size, stride, padding, *args, **options)

    def deconvolve(
        self, func: Op, band: torch.Tensor, weight: torch.Tensor, *args: Any, **options: Any
    ) -> torch.Tensor:
        """A transposed convolution in which the results of two rows do not overlap."""
        given = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, **options}
        given |= zip(TRANSPOSED, args, strict=False)
        stride, *others = (of_rows(given[name], band) for name in ("stride", "padding", "output_padding", "dilation"))
        if weight.shape[ROWS] != stride or others != [0, 0, 1]:
            raise self.refusal(f"a transposed convolution of {weight.shape[ROWS]} rows with overlaps")
        return func(band, weight, *args, **options)

    def draw(self, func: Op, *size: Any, **options: Any) -> torch.Tensor:
        """`torch.randn` of a picture's size: draws for all rows, as on one rank, and returns this band's part."""
        shape = list(size[0] if isinstance(size[0], (tuple, list)) else size)
        if len(shape) < -ROWS or shape[ROWS] % self.bands.local_rows:
            raise self.refusal(f"noise of shape {tuple(shape)}")
        scale = shape[ROWS] // self.bands.local_rows
        shape[ROWS] = scale * self.bands.rows
        return self.bands.cut(func(shape, **options), scale)

    def draw_like(self, _func: Op, band: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.draw(torch.randn, band.shape, **{"dtype": band.dtype, "device": band.device, **options})

    def count(self, func: Callable[[torch.Tensor], int], band: torch.Tensor) -> int:
        found = func(band)
        return found // self.bands.local_rows * self.bands.rows if self.traits.whole_sizes and band.ndim > 3 else found

    def refusal(self, what: str) -> RequestError:
        return RequestError(f"The {self.model} has {what}, which cannot be split over ranks.", self.advice)

    def refuse(self, func: Callable, *_args: Any, **_options: Any) -> Any:
        raise self.refusal(f"torch's {getattr(func, '__name__', func)}")


def or_zeros(borders: Borders, band: torch.Tensor, edge: int) -> list[torch.Tensor]:
    """Returns zeros, a convolution's own padding, at the border of the whole."""
    shape = (*band.shape[:ROWS], edge, band.shape[-1])
    return [band.new_zeros(shape) if rows is None else rows for rows in borders]


def of_rows(value: Any, band: torch.Tensor) -> int:
    """Returns a convolution's option for rows; it may be one number, or one for each dim of space and time."""
    return value if isinstance(value, int) else value[ROWS] if len(value) == band.ndim - 2 else value[0]


# What they take by position, behind the weight. Some layers call cuDNN, where torch's choice takes too much memory.
USUAL = ("bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("bias", "stride", "padding", "output_padding", "groups", "dilation")
CONVOLUTIONS: Mapping[Callable, tuple[str, ...]] = {
    F.conv2d: USUAL,
    F.conv3d: USUAL,
    torch.cudnn_convolution: ("padding", "stride", "dilation", "groups", "benchmark", "deterministic", "allow_tf32"),
}
HANDLERS: Mapping[Callable, Callable[..., Any]] = {
    **dict.fromkeys(CONVOLUTIONS, BandFunctions.convolve),
    F.conv_transpose2d: BandFunctions.deconvolve,
    F.conv_transpose3d: BandFunctions.deconvolve,
    F.pad: BandFunctions.pad,
    F.group_norm: BandFunctions.group_norm,
    F.batch_norm: BandFunctions.batch_norm,
    F.scaled_dot_product_attention: BandFunctions.attend,
    F.interpolate: BandFunctions.resize,
    F.avg_pool2d: BandFunctions.pool,
    F.avg_pool3d: BandFunctions.pool,
    torch.randn: BandFunctions.draw,
    torch.randn_like: BandFunctions.draw_like,
    torch.Tensor.numel: BandFunctions.count,
    **dict.fromkeys(UNKNOWN, BandFunctions.refuse),
}
