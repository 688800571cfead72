"""Finds out whether all ranks were given the same, and takes decisions that all ranks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..compat import list_tensors
from ..errors import RequestError
from ..groups.collectives import gather_numbers

Batch = torch.Tensor | list[torch.Tensor]
TOLERANCE = 1e-2  # relative difference of equal inputs that different hardware may cause


def all_agree(answer: bool) -> bool:
    """Whether all ranks answer yes."""
    return all(own for (own,) in gather_numbers((int(answer),), None))


def check_same(tensors: Mapping[str, Batch], names: Sequence[str], device: torch.device) -> None:
    """Raises RequestError, on every rank alike, if ranks have different tensors. names: those that a tensor may have.
    device: where the default group can reduce numbers."""
    if dist.get_world_size() == 1:
        return
    numbers = torch.stack([fingerprint(tensors.get(name)) for name in names])
    both = torch.stack([-numbers, numbers]).to(device)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    negative_lowest, highest = both.cpu()
    (numel, norm, ramp), (_, largest_norm, _) = (highest + negative_lowest).unbind(1), highest.unbind(1)
    for index, name in enumerate(names):
        integer = name in tensors and not list_tensors(tensors[name])[0].is_floating_point()
        allowed = 0.0 if integer else TOLERANCE * largest_norm[index]
        if numel[index] or max(norm[index], ramp[index]) > allowed:
            raise RequestError(
                f"The ranks were given different {name}.",
                "Call the pipeline with the same prompts and the same generator on every rank: the plan shares "
                "them out.",
            )


def is_batch(value: Any) -> bool:
    """Whether a value is a tensor, or a list of one per row."""
    return torch.is_tensor(value) or (isinstance(value, list) and bool(value) and all(map(torch.is_tensor, value)))


def fingerprint(value: Batch | None) -> torch.Tensor:
    """Returns three numbers that differ for different tensors: the size, the norm, and the product with a ramp."""
    if value is None:
        return torch.zeros(3)
    flat = torch.cat([part.detach().flatten().float() for part in list_tensors(value)])
    ramp = torch.linspace(-1, 1, flat.numel(), device=flat.device)
    return torch.stack([flat.new_tensor(flat.numel()), flat.norm(), (flat * ramp).sum()]).cpu()
