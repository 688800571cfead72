"""Quantised files, merges of them, and adapters of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.cases.files.formats import FORMATS
from tests.support.census.changes import sample_after
from tests.support.census.h3_rows import plain
from tests.support.census.rows import ON_ONE_RANK, Row, as_stock, equal, habit, one_rank
from tests.support.census.weights.merges import OTHER, add, load_other, other
from tests.support.files.adapters import ADAPTERS, make_adapter

# Their activations are rounded: by a scale of all tokens at hand, or to 16 values, so that a last bit becomes a step.
ROUNDED = ("int8", "int8 convrot", "w4a4")
# The formats of a first and a second model.
MERGED = (("fp8", ""), ("plain fp8", ""), ("", "plain fp8"))


def adapted(census: Any, row: Row, model: Any, kind: str) -> list[torch.Tensor]:
    """An adapter of the blocks' layers, and the model without it after that."""
    weights = load_file(census.base / "models" / "diffusion_models" / f"{row.model}.safetensors")
    name = census.written("loras", make_adapter(kind, weights))
    return [census.sample(row, census.adapt(row, model, 0.8, name)), sample_after(census, row, model)]


def merged(census: Any, row: Row, model: Any, form: str, is_changed: bool = False) -> list[torch.Tensor]:
    """A merge with a second model in this format. is_changed: the ranks cannot run what a node does to it."""
    found = add(census, row, model, load_other(census, row, model, other(row, OTHER), form), None)
    if is_changed:
        found.model_options["transformer_options"]["optimized_attention_override"] = lambda function, *args, **kwargs: (
            1.1 * function(*args, **kwargs)
        )
    return [census.sample(row, found)]


def merge_rows() -> Iterator[tuple[str, Row]]:
    for first, second in MERGED:
        name, row = f"a merge of {first or 'fp32'} and {second or 'fp32'}", replace(equal(), form=first)
        yield name, habit(row, merged, second, shared="ulysses=2")
        yield f"{ON_ONE_RANK}{name}", habit(one_rank(row), merged, second)
        yield f"{ON_ONE_RANK}{name}, as stock", habit(as_stock(), partial(merged, is_changed=True), second, form=first)


FILE_ROWS: dict[str, Row] = {
    **{f"a file in {form}": habit(equal(), plain, form=form, rounded=form in ROUNDED) for form in FORMATS},
    **{f"{ON_ONE_RANK}a file in {form}": habit(one_rank(equal()), plain, form=form) for form in FORMATS},
    **dict(merge_rows()),
    **{f"an adapter, {kind}": habit(equal(), adapted, kind) for kind in ADAPTERS if kind != "LoCon"},
    **{f"an adapter in fp8, {kind}": habit(equal(), adapted, kind, form="fp8") for kind in ("LoRA", "LoKr")},
    # It alone has convolutions in three parts.
    "an adapter of a UNet, LoCon": habit(equal("unet"), adapted, "LoCon"),
}
