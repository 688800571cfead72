"""Shares the rows of a batch between ranks where a pipeline calls its text encoders and its VAE's decoder.

The pipeline's tokenizer has brought all prompts to one length by then, and its noise is drawn for all pictures. So the
result is what one device gets, whatever the prompts and the generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..compat import CALL, tree_leaves, tree_map_only
from ..errors import RequestError
from ..groups.collectives import collect, gather
from ..groups.mesh import Axis, Mesh
from ..hooks import Hooks
from ..seams.arguments import Parameters
from .agreement import check_same

BATCH_DIM = 0
ENCODER = "text_encoder"  # how the names of text encoders begin
INPUTS = ("input_ids", "attention_mask")  # of an encoder, a row for each prompt
USE_CACHE = "use_cache"
ALL, FIRST = IMAGES = ("all", "first")


class PipelineComponents:
    """Replaces the calls of a pipeline's text encoders and decoder until the hooks are removed.

    A rank without rows computes one of another rank and drops it, because it needs the form of the result. This costs
    no time, because it would wait for the other ranks anyway.
    rows: all ranks. pictures: the ranks that decode other pictures; fewer where several share the rows of one.
    """

    def __init__(self, pipeline: Any, mesh: Mesh, shares_vae: bool, images: str, hooks: Hooks) -> None:
        """shares_vae: whether ranks share the rows of a picture. images: which ranks get all pictures."""
        self.device = mesh.device
        self.rows = Axis(dist.group.WORLD, dist.get_world_size(), dist.get_rank())
        self.pictures = mesh["dp"].evenly if shares_vae else self.rows
        self.images = images
        self.names = [*encoders_of(pipeline), *(["vae"] if getattr(pipeline, "vae", None) else [])]
        for name, encoder in encoders_of(pipeline).items():
            before, parameters = getattr(encoder, CALL), Parameters(inspect.signature(encoder.forward))
            hooks.replace(encoder, CALL, partial(self.encode, name, before, parameters))
        if vae := getattr(pipeline, "vae", None):
            hooks.replace(vae, "decode", partial(self.decode, vae.decode))

    def describe(self) -> str:
        """Says in words what is shared."""
        return f"{self.rows.degree} ranks share the batch of {' and '.join(self.names)}"

    def encode(self, name: str, call: Callable[..., Any], parameters: Parameters, *args: Any, **kwargs: Any) -> Any:
        """Returns what an encoder returns for all prompts, without keys that it would keep for words to come. Raises
        RequestError, on every rank alike, if ranks have different prompts."""
        values = parameters.name(args, kwargs)
        tensors = {key: value for key, value in values.items() if torch.is_tensor(value)}
        check_same({name: values[name] for name in INPUTS if name in tensors}, INPUTS, self.device)
        sizes = {len(value) for value in tensors.values()}
        if sizes == {1} or len(sizes) != 1 or not tensors.keys() <= {*INPUTS}:
            return call(*args, **kwargs)
        (size,) = sizes
        own = self.own_rows(self.rows, size)
        values.update({key: value[own] for key, value in tensors.items()})
        args, kwargs = parameters.pass_on(values, args, kwargs)
        if USE_CACHE in parameters.defaults and USE_CACHE not in values:
            kwargs[USE_CACHE] = False
        return self.join(call(*args, **kwargs), size, self.rows, name, ALL)

    def decode(self, call: Callable[..., Any], latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns what the decoder returns for all latents; with `images` FIRST, for this rank's own on other ranks
        than the first."""
        size = len(latents)
        if size == 1 or self.pictures.degree == 1:
            return call(latents, *args, **kwargs)
        own = self.own_rows(self.pictures, size)
        cut = lambda each: each[own] if each.ndim and len(each) == size else each  # noqa: E731
        args, kwargs = tree_map_only(torch.Tensor, cut, (args, kwargs))
        return self.join(call(latents[own], *args, **kwargs), size, self.pictures, "vae", self.images)

    def own_rows(self, axis: Axis, size: int) -> slice:
        return axis.own(size) if axis.own_size(size) else slice(1)

    def join(self, result: Any, size: int, axis: Axis, name: str, images: str) -> Any:
        """Returns the result for all rows. Raises RequestError, on every rank alike, for a result that is more than
        tensors with a row for each."""
        given, own = axis.own_size(size) or 1, axis.own_size(size)
        for each in tree_leaves(result):
            if each is not None and not (torch.is_tensor(each) and each.ndim and len(each) == given):
                raise RequestError(
                    f"The result of {name} has a {type(each).__name__}, of which ranks cannot join rows.",
                    "Call the pipeline with one prompt at a time.",
                )

        def joined(part: torch.Tensor) -> torch.Tensor:
            local = part[:own].contiguous()
            if images == ALL:
                return gather(local, BATCH_DIM, size, axis)
            whole = collect(local, BATCH_DIM, size, axis)
            return part if whole is None else whole

        return tree_map_only(torch.Tensor, joined, result)


def encoders_of(pipeline: Any) -> dict[str, torch.nn.Module]:
    """Returns a pipeline's text encoders by name."""
    components = getattr(pipeline, "components", {})
    return {
        name: each
        for name, each in components.items()
        if name.startswith(ENCODER) and isinstance(each, torch.nn.Module)
    }
