"""What a model does in one process, compared with its spec: where tokens attend, and with how many heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from parallel_backend.hooks import Hooks
from parallel_backend.models import known_spec
from parallel_backend.models.checks import attention_sizes_of
from parallel_backend.models.spec import ModelSpec
from tests.support.cases.families import UNEVEN, Family
from tests.support.stream_probe import Recorder, Run, listed, misplaced_streams


def lengths_of(run: Run) -> set[int]:
    """The lengths of a block's streams, and of all of them together."""
    dim, values = run.blocks.dim, [run.given.get(name) for name in run.blocks.tokens]
    each = [value if isinstance(value, (tuple, list)) else (value,) for value in values]
    tokens = [item for items in each for item in items if isinstance(item, torch.Tensor) and item.ndim > dim]
    lengths = [math.prod(item.shape[dim : dim + max(1, item.ndim - 2)]) for item in tokens]
    return {*lengths, sum(lengths)}


def mistakes_in_family(family: Family, spec: ModelSpec) -> list[str]:
    """What the family's class does in another way than the spec says, in words."""
    model, (batch, *grid, height, width) = family.build(), family.shapes[UNEVEN]
    inputs, turned = family.inputs(batch, *grid, height, width), family.inputs(batch, *grid, width, height)
    if prepare := known_spec(family.model_class).prepare:
        prepare(model, Hooks())
    found = mistakes_in(model, spec, lambda: family.reference(model, *inputs))
    return found + misplaced_streams(
        model,
        spec,
        lambda: family.reference(model, *inputs),
        lambda: family.reference(model, inputs[0] + 1, *inputs[1:]),
        lambda: family.reference(model, *turned),
    )


def mistakes_in(model: torch.nn.Module, spec: ModelSpec, call: Callable[[], object]) -> list[str]:
    """What the model does in another way than the spec says, once each, in words. call: calls it."""
    sizes, recorder = attention_sizes_of(model, spec), Recorder(model, spec, attends=True)
    with torch.no_grad(), recorder:
        call()

    def found() -> Iterator[str]:
        sizes_of_heads = []  # of attention that the spec lists
        for run, path, query, key in recorder.seen:
            blocks, is_own = run.blocks, key.shape[-2] in lengths_of(run)
            where = f"{path} of {blocks.path}"
            if not listed(blocks, path):
                if is_own and "" not in blocks.attention:
                    yield f"{where} attends to tokens, and `attention` does not list it"
                if not is_own or "" not in blocks.attention:
                    continue
            sizes_of_heads.append(query.shape[3])
            if query.shape[1] != sizes.heads:
                yield f"{where} has {query.shape[1]} heads, and {sizes.heads} were read"
            if (own := sizes.kv_heads) and not are_repeated(key, own):
                yield f"{where} does not repeat {own} heads of keys"
        if (largest := max(sizes_of_heads, default=sizes.head_dim)) != sizes.head_dim:
            yield f"the largest heads have {largest} dims, and {sizes.head_dim} were read"

    return list(dict.fromkeys(found()))


def are_repeated(key_BHSD: torch.Tensor, heads: int) -> bool:
    """Whether these are so many heads, each repeated one after the other."""
    group, rest = divmod(key_BHSD.shape[1], heads)
    return not rest and torch.equal(key_BHSD, key_BHSD[:, ::group].repeat_interleave(group, 1))
