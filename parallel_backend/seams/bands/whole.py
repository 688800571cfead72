"""Shows nodes' functions inside of a UNet the whole picture: its rows are gathered before them, and cut after them.

So a function sees what it would see on one device, whatever it does. All ranks compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ...compat import tree_map_only, version_of, without_function_modes
from ...models.bands import Bands, Place
from .layout import RowLayout
from .rows import ROWS


class WholePicture:
    """Makes functions see the whole picture. layout: of the running forward."""

    def __init__(self, layout: RowLayout, spec: Bands) -> None:
        self.layout = layout
        self.spec = spec

    def wrap_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a call's options with such functions in place of the nodes' own."""
        found = dict(options)
        for part, places in self.spec.places.items():
            found[part] = {
                name: tree_map_only(object, partial(self.wrap, place=places.get(name)), functions)
                for name, functions in options.get(part, {}).items()
            }
        return found

    def wrap(self, function: Callable[..., Any], place: Place | None) -> Callable[..., Any]:
        if place is None:
            return function

        def run(*given: Any) -> Any:
            *args, options = given
            bands = args[: place.given]
            with without_function_modes():
                pictures = [self.gather(each) for each in bands]
            shown = {
                **options,
                **{name: self.whole_shape(options[name]) for name in self.spec.shapes if name in options},
            }
            with self.layout.showing_whole():
                output = function(*pictures, *args[place.given :], shown)
            options.update({name: value for name, value in shown.items() if name not in self.spec.shapes})
            with without_function_modes():
                for band, picture in zip(bands, pictures, strict=True):
                    if isinstance(picture, torch.Tensor) and version_of(picture):
                        band.copy_(self.cut(picture))
                if not isinstance(output, tuple):
                    return self.cut(output)
                return (*map(self.cut, output[: place.returned]), *output[place.returned :])

        return run

    def gather(self, band: Any) -> Any:
        """Returns the whole picture, in a tensor that counts what is written into it."""
        if not isinstance(band, torch.Tensor):
            return band
        whole = self.layout.gather_pixels(band) if band.ndim == 3 else self.layout.gather_rows(band)
        with torch.inference_mode(False):
            return whole.clone()

    def cut(self, whole: Any) -> Any:
        """The inverse of `gather`. Raises RequestError for a picture of another size."""
        if not isinstance(whole, torch.Tensor):
            return whole
        return self.layout.cut_pixels(whole) if whole.ndim == 3 else self.layout.cut_rows(whole)

    def whole_shape(self, shape: list[int]) -> list[int]:
        """Returns the shape of the whole picture where this rank's band has this shape."""
        rows, width = shape[ROWS:]
        level = self.layout.levels[int(self.layout.stream_of(rows * width))]
        return [*shape[:ROWS], level.height, level.width]
