"""Renames the weights of a diffusers folder to ComfyUI's names, by tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from ...errors import ModelFileError
from .image import IMAGE_CLASSES
from .table import Config, Names, find_value
from .video import VIDEO_CLASSES

TABLES: Mapping[str, Names] = {**IMAGE_CLASSES, **VIDEO_CLASSES}
ADVICE = "Download the folder again, or use a single file of this model."
Count = str | Callable[[Config], int]
OTHER_FILE = "Use a single file of this model, in ComfyUI's format."


class Source(NamedTuple):
    """The diffusers tensors that are joined along dim 0 to one ComfyUI tensor. optional: the model may lack them."""

    names: tuple[str, ...]
    swapped: bool = False
    optional: bool = False


def find_table(model_class: str) -> Names:
    if model_class not in TABLES:
        raise ModelFileError(
            f"ComfyUI's names for the weights of diffusers' {model_class} are not known.",
            "Use a single file of this model, in ComfyUI's format, or run the folder in a script (docs/scripts.md).",
        )
    return TABLES[model_class]


def convert_names(model_class: str, config: Config, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the weights of a diffusers model by ComfyUI's names.

    A renamed weight is the given tensor itself and keeps its mapped pages. Joined and swapped weights are new tensors.
    This also works on the meta device.

    Raises ModelFileError for a class without a table, for a name that the table lacks, and for a missing weight.
    """
    table = find_table(model_class)
    given = [name for name in tensors if not matches(name, table.unused)]
    sources = own_sources(table, config, given) | row_sources(table, config, given)
    known = {name for source in sources.values() for name in source.names}
    if unknown := [name for name in given if name not in known]:
        raise ModelFileError(
            f"{len(unknown)} weights of this {model_class} have no name in ComfyUI. The first is {unknown[0]}.",
            OTHER_FILE,
        )
    converted = {}
    for own, source in sources.items():
        if missing := [name for name in source.names if name not in tensors]:
            if source.optional and len(missing) == len(source.names):
                continue
            raise ModelFileError(f"This {model_class} lacks the weight {missing[0]}.", ADVICE)
        joined = join([tensors[name] for name in source.names], source.swapped)
        converted[own] = joined.view(1, -1, 1, 1) if matches(own, table.per_channel) else joined
    like = next(iter(tensors.values()), torch.empty(0))
    for own, values in table.constants.items():
        converted[own] = torch.tensor(values, dtype=like.dtype, device=like.device)
    for marker, setting in table.markers.items():
        if config.get(setting):
            converted[marker] = torch.empty(0)
    return converted


def read_settings(model_class: str, config: Config, pipeline: str = "") -> dict[str, Any]:
    """Returns the fields of ComfyUI's config (`unet_config`) that the weights' shapes do not determine.
    pipeline: the class of the folder's pipeline.

    Raises ModelFileError for a class without a table, and for a setting that ComfyUI's class does not have.
    """
    table = find_table(model_class)
    for name, rule in table.fixed.items():
        if name in config and plain(config[name]) != (value := find_value(rule, config)):
            raise ModelFileError(
                f"ComfyUI has no {model_class} with {name}={config[name]!r}, only with {value!r}.", OTHER_FILE
            )
    found = {
        own: config.get(rule) if isinstance(rule, str) else find_value(rule, config)
        for own, rule in table.settings.items()
    }
    settings = {own: plain(value) for own, value in found.items() if value is not None}
    return {**settings, **table.by_pipeline.get(pipeline, {})}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def join(parts: list[torch.Tensor], swapped: bool) -> torch.Tensor:
    if swapped:
        parts = [half for part in parts for half in reversed(part.chunk(2))]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def own_sources(table: Names, config: Config, given: Collection[str]) -> dict[str, Source]:
    """Returns the sources from ComfyUI's own map of diffusers' names to its own.

    A row of the map may add the place of a part in the whole, and a function that swaps the halves. Several diffusers
    names may map to one ComfyUI name.
    """
    if table.own_map is None:
        return {}
    import comfy.utils

    function, sizes = table.own_map
    wholes: dict[str, Source] = {}
    parts: dict[str, dict[int, str]] = {}
    for theirs, own in getattr(comfy.utils, function)(sizes(config)).items():
        name, place, *swaps = (own, None) if isinstance(own, str) else own
        if place is not None:
            parts.setdefault(name, {})[place[1]] = theirs
        elif name not in wholes or theirs in given:
            wholes[name] = Source((theirs,), bool(swaps), matches(theirs, table.optional))
    joined = {name: tuple(names[start] for start in sorted(names)) for name, names in parts.items()}
    optional = {name: all(matches(theirs, table.optional) for theirs in names) for name, names in joined.items()}
    return wholes | {name: Source(names, optional=optional[name]) for name, names in joined.items()}


def row_sources(table: Names, config: Config, given: Iterable[str]) -> dict[str, Source]:
    """Returns the sources from the table's rows. A row covers a layer's tensors (weight, bias) in all blocks."""
    ends: dict[str, set[str]] = {}
    for name in given:
        pattern = leave_out_number(name, table.blocks)
        layer, _, end = pattern.rpartition(".")
        ends.setdefault(pattern, set()).add("")
        ends.setdefault(layer, set()).add(f".{end}")
    sources = {}
    for own, theirs in table.rows.items():
        names = (theirs,) if isinstance(theirs, str) else theirs
        optional = all(matches(name, table.optional) for name in names)
        found = set().union(*(ends.get(name, set()) for name in names))
        if not found and not optional:
            raise ModelFileError(f"The folder has no weights for {names[0]}.", ADVICE)
        for number in block_numbers(names[0], table.blocks, config):
            for end in sorted(found):
                of_block = tuple(f"{name}{end}".replace("*", number) for name in names)
                sources[f"{own}{end}".replace("*", number)] = Source(of_block, own in table.swapped, optional)
    return sources


def leave_out_number(name: str, blocks: Iterable[str]) -> str:
    """Replaces the number of the block in a name with `*`."""
    for prefix in blocks:
        if name.startswith(f"{prefix}."):
            number, _, rest = name.removeprefix(f"{prefix}.").partition(".")
            return f"{prefix}.*.{rest}" if number.isdigit() else name
    return name


def block_numbers(name: str, blocks: Mapping[str, Count], config: Config) -> Iterator[str]:
    """Yields the numbers of the blocks that have a layer of this name. A layer outside blocks yields one empty text."""
    prefix, star, _rest = name.partition(".*")
    if not star:
        yield ""
        return
    counted = blocks[prefix]
    count = config[counted] if isinstance(counted, str) else counted(config)
    yield from map(str, range(count if isinstance(count, int) else len(count)))
