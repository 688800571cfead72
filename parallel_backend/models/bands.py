"""What the engine must know of a class that convolves over a picture, as data, and whether a model is as it says.

Ranks share such a picture in bands of rows (`seams/bands`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
KERNELS, STRIDES = (1, 3), (1, 2)  # of padded convolutions, in rows
CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.Conv3d)

# torch's layers that are right in bands, by the Python module that defines them: each row depends on itself alone, or
# `seams/bands` gets the others.
TORCH: Mapping[str, tuple[str, ...]] = {
    "torch.nn.modules.activation": ("GELU", "ReLU", "SiLU"),
    "torch.nn.modules.batchnorm": ("BatchNorm2d",),
    "torch.nn.modules.container": ("ModuleDict", "ModuleList", "ParameterDict", "Sequential"),
    "torch.nn.modules.conv": ("Conv2d", "Conv3d"),
    "torch.nn.modules.dropout": ("Dropout",),
    "torch.nn.modules.linear": ("Identity", "Linear"),
    "torch.nn.modules.module": ("Module",),
    "torch.nn.modules.normalization": ("GroupNorm", "LayerNorm"),
    "torch.nn.modules.padding": ("ZeroPad2d",),
    "torch.nn.modules.pixelshuffle": ("PixelShuffle", "PixelUnshuffle"),
    "torch.nn.modules.sparse": ("Embedding",),
    "torch.nn.modules.upsampling": ("Upsample",),
}


class Place(NamedTuple):
    """A place of a model for nodes' functions. given, returned: how many of the first arguments and of the first
    results are pixels, as tokens (B, pixels, C) or as a picture (B, C, H, W). The last argument is the options."""

    given: int
    returned: int = 1


@dataclass(frozen=True)
class Bands:
    """A class whose ranks each compute some rows of the latents, which are its first argument.

    Every argument of its forward must be listed in one of the fields below. An unlisted one is refused.
    """

    # The classes of its modules that are right in bands, by the Python module that defines them. A class inside of
    # another one is listed by its own name. Any other module is refused.
    layers: Mapping[str, tuple[str, ...]]
    # The submodules in which pixels attend to pixels, by the class of the modules that have them.
    attention: Mapping[str, str]
    # An attribute of these modules that is true where pixels attend to the text alone.
    attends_to_text: str
    # The path to a list with an entry for each level. Each has half the rows of the one before, rounded up.
    levels: str
    # Lists of layers, in running order; "path.*" is a list of such lists. The model runs each layer once per forward,
    # one after the other, so their weights can be fetched in turn. A model may lack some of these lists.
    lists: tuple[str, ...] = ()
    # Names of modules that mix frames. In them, a pixel attends to itself in other frames, not to other pixels.
    over_time: tuple[str, ...] = ()
    # Arguments with rows, at any level: tensors, in lists and dicts or not; and how many times as many rows they have.
    rows: Mapping[str, int] = field(default_factory=dict)
    # Arguments that every rank takes as they are.
    whole: tuple[str, ...] = ()
    # Arguments that have to be given: without a text, pixels attend to one another in its place.
    needed: tuple[str, ...] = ()
    # By part of nodes' options, the places where rows are gathered for functions that need them. Functions at other
    # places may change how many pixels there are.
    places: Mapping[str, Mapping[str, Place]] = field(default_factory=dict)
    # Options with the shape of a tensor (B, C, H, W).
    shapes: tuple[str, ...] = ()

    def layer_lists(self, model: torch.nn.Module) -> Iterator[str]:
        """Returns the paths of the model's `lists`."""
        there = dict(model.named_children())
        for path in self.lists:
            name, _, each = path.partition(".")
            if name in there:
                yield from (f"{name}.{own}" for own, _ in there[name].named_children()) if each else (name,)

    def attention_paths(self, model: torch.nn.Module) -> list[str]:
        """Returns the paths of the modules in which pixels attend to pixels."""
        found = ((path, block, self.attention.get(type(block).__name__)) for path, block in model.named_modules())
        return [
            f"{path}.{own}"
            for path, block, own in found
            if own and not getattr(block, self.attends_to_text) and not {*path.split(".")} & {*self.over_time}
        ]

    def attention_sizes(self, model: torch.nn.Module) -> tuple[int, int]:
        """Returns the least number of heads, and the head dim that the fewest kernels take."""
        modules: list[Any] = [model.get_submodule(path) for path in self.attention_paths(model)]
        heads = [each.heads for each in modules]
        dims = [each.to_q.out_features // each.heads for each in modules]
        return min(heads, default=1), max(dims, key=lambda dim: (dim % 8 > 0, dim), default=0)


@dataclass(frozen=True, kw_only=True)
class BandTraits:
    """What a class does that runs in bands of rows.

    attends_over_rows: whether its `scaled_dot_product_attention` is over space. whole_sizes: `numel` of a band returns
    that of the whole, for a model that splits its work by size: all ranks must split it alike. by_size: whether the
    model repeats rows by the size of the result, as UNets do; the last band may have one row less. causal_frames:
    whether attention's masks show a pixel those of its own and of earlier frames.
    """

    attends_over_rows: bool = True
    whole_sizes: bool = False
    by_size: bool = False
    causal_frames: bool = False


@dataclass(frozen=True)
class VaeClass(BandTraits):
    """A VAE class that can be split.

    modules: the classes of its modules, by the Python module that defines them. draws_noise: the ranks need the same
    random state. least_rows: of a latent, that each rank needs for the convolutions over them. replaced: by class of
    module and method, the function that replaces it; it gets the module and the bands before the arguments. tiles:
    whether the class itself cuts its input into tiles; then ranks share these instead of rows (`SharedTiles`), and any
    module may be in it. attend: an attribute of modules that attend over space, with the function. chunks: an attribute
    that is true for a VAE that moves parts of a video to the device itself.
    """

    modules: Mapping[str, tuple[str, ...]]
    draws_noise: bool = False
    least_rows: int = 1
    tiles: bool = False
    attend: str = ""
    chunks: str = ""
    replaced: Mapping[str, Mapping[str, Callable[..., Any]]] = field(default_factory=dict)


VAES: dict[str, VaeClass] = {}  # by module and name


def differences_in_bands(model: torch.nn.Module, bands: Bands) -> Iterator[str]:
    """Lists in words what of a model is not known to be right in bands."""
    first, *others = list(inspect.signature(type(model).forward).parameters.values())[1:]
    takes = {each.name for each in others if each.kind not in VARIABLE}
    yield from (f"it has no argument {name}" for name in sorted({*bands.rows, *bands.needed} - takes))
    yield from (
        f"it has an argument {name}, which its spec does not list"
        for name in sorted(takes - {*bands.rows, *bands.whole, *bands.needed})
    )
    unknown: dict[str, str] = {}  # what is not known, and the first layer that is so
    for path, module in model.named_modules():
        kind = type(module)
        name = kind.__qualname__.rpartition(".")[2]
        if name not in bands.layers.get(kind.__module__, ()):
            unknown.setdefault(f"of the class {name} ({kind.__module__})", path)
        elif isinstance(module, CONVOLUTIONS) and not is_known_convolution(module):
            unknown.setdefault("a convolution of an unknown form", path)
        elif name in bands.attention:
            if not hasattr(module, bands.attends_to_text):
                yield f"its {name} has no {bands.attends_to_text}"
            yield from lacking(module, (bands.attention[name],), f"{name}: ")
    yield from (f"its layer {path} is {what}" for what, path in unknown.items())


def lacking(module: torch.nn.Module, paths: Iterable[str], where: str) -> Iterator[str]:
    """Lists the submodules that do not exist."""
    for path in paths:
        try:
            module.get_submodule(path)
        except AttributeError:
            yield f"{where}it has no {path}"


def is_known_convolution(layer: Any) -> bool:
    """Whether each of its rows sees a row above and one below, or no other, or those that it makes one of."""
    kernel, stride, padding, dilation = (
        each[-2] for each in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    if (kernel, padding, dilation) == (stride, 0, 1):
        return True
    return kernel in KERNELS and stride in STRIDES and padding == kernel // 2 and dilation == 1
