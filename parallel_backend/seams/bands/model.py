"""Runs an unmodified UNet on several ranks, each with a band of the picture's rows. The result is that of one rank.

The hooks of the model cut its arguments and gather its result. While it runs, `functions` gets the rows that
convolutions and norms need, and self-attention goes by the exchange that transformers use, too (`seams/attention.py`).
Attention to a text and linear layers see each pixel by itself.
"""

from __future__ import annotations

import inspect
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from ...compat import tree_map_only, without_function_modes
from ...errors import RequestError
from ...groups.mesh import Mesh
from ...hooks import Hooks
from ...models.bands import Bands, BandTraits
from ...models.spec import ALWAYS_WHOLE, CONTROL
from ...weights.loading import go_on
from ..arguments import Parameters
from ..attention import ParallelAttention, install_attention
from ..forward import ForwardSlot, NodeCode
from ..kernels.backends import Backend
from .functions import BandFunctions
from .layout import WITHOUT_BANDS, RowLayout
from .rows import RowBands
from .whole import WholePicture

LATENT_DIMS = 4


class BandedModel:
    """The hooks on a model."""

    def __init__(self, model: torch.nn.Module, spec: Bands, layout: RowLayout) -> None:
        self.spec = spec
        self.layout = layout
        self.parameters = Parameters(inspect.signature(model.forward))
        self.latents = next(iter(self.parameters.defaults))
        self.times = {self.latents: 1, **spec.rows}  # of arguments with rows
        self.known = {ALWAYS_WHOLE, *self.times, *spec.whole}
        traits = BandTraits(attends_over_rows=False, by_size=True)
        self.functions = BandFunctions(layout.bands, traits, go_on, "model", WITHOUT_BANDS)
        self.is_entered = False

    def install(self, model: torch.nn.Module, hooks: Hooks) -> None:
        hooks.before(model, self.enter, with_kwargs=True)
        hooks.after(model, self.leave, always_call=True)

    def enter(self, model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Cuts the model's arguments to this rank's band. Raises RequestError, on every rank alike."""
        name, takes = type(model).__name__, self.parameters
        values = takes.name(args, kwargs)
        if unknown := [each for each in values if each not in self.known and takes.is_given(each, values[each])]:
            raise RequestError(
                f"{name} was given {', '.join(unknown)}, which cannot be shared over ranks yet.", WITHOUT_BANDS
            )
        if missing := [each for each in self.spec.needed if values.get(each) is None]:
            raise RequestError(f"{name} was given no {', '.join(missing)}.", WITHOUT_BANDS)
        latents = values[self.latents]
        if latents.ndim != LATENT_DIMS:
            raise RequestError(f"{name} was given latents of shape {tuple(latents.shape)}.", WITHOUT_BANDS)
        if not self.layout.begin(*latents.shape[2:]):
            self.layout.slot.has_all_tokens = True  # every rank computes all of it
            return args, kwargs
        for each, times in self.times.items():
            cut = self.layout.cut_residual if each == CONTROL else partial(self.layout.cut_rows, times=times)
            values[each] = tree_map_only(torch.Tensor, cut, values.get(each))
        if self.layout.slot.code is NodeCode.BETWEEN_BLOCKS and isinstance(options := values.get(ALWAYS_WHOLE), dict):
            values[ALWAYS_WHOLE] = WholePicture(self.layout, self.spec).wrap_options(options)
            self.layout.slot.has_all_tokens = False
        self.functions.__enter__()
        self.is_entered = True
        return takes.pass_on(values, args, kwargs)

    def leave(self, _model: torch.nn.Module, _args: tuple, output: Any) -> Any:
        """Gathers the bands of a tensor, or of all in lists and dicts. output: None if the model raised an error."""
        if not self.is_entered:
            return None
        self.is_entered = False
        self.functions.__exit__(None, None, None)
        try:
            return tree_map_only(torch.Tensor, self.layout.gather_rows, output)
        finally:
            self.layout.bands.rows = 0


def share_rows(
    model: torch.nn.Module, spec: Bands, mesh: Mesh, slot: ForwardSlot, kernel: Backend, hooks: Hooks
) -> ParallelAttention:
    """Makes each rank compute a band of rows. Returns the attention of pixels to pixels."""
    layout = RowLayout(RowBands(mesh["sequence"]), len(attrgetter(spec.levels)(model)), slot)
    attention = ParallelAttention(mesh, layout, kernel)
    for path in spec.attention_paths(model):
        install_attention(model, path, [partial(attend_pixels, attention, layout, path)], hooks, slot)
    BandedModel(model, spec, layout).install(model, hooks)
    return attention


def attend_pixels(
    attention: ParallelAttention,
    layout: RowLayout,
    path: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **more: Any,
) -> torch.Tensor:
    """Computes attention of this rank's pixels, BHLD, to all pixels of their level. Raises RequestError for other
    tokens, or a mask.

    The mode of `functions` does not see what the exchange does: thousands of calls a step, of which none is its own.
    """
    if attn_mask is not None or key.shape[-2] != query.shape[-2]:
        raise RequestError(f"{path} attends under a mask, or to other pixels than its own.", WITHOUT_BANDS)
    streams = (layout.stream_of(query.shape[-2]),)
    with without_function_modes():
        return attention(path, streams, query, key, value, attn_mask, *args, **more)
