"""Splits the batch of a model that a script's pipeline calls. Each rank runs its rows, and every rank returns all of
them.

Names decide which arguments have the batch in their first dim. Sizes cannot: four position ids may meet a batch of
four. A tensor with an unknown name is refused, because we do not know how to cut it.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
import torch.distributed as dist

from ..errors import RequestError
from ..groups.collectives import gather
from ..groups.mesh import Axis
from ..hooks import Hooks
from ..models import Adapter
from .forward import ForwardSlot

BATCH_DIM = 0
LATENTS = ("hidden_states", "x")
NEW_EACH_STEP = (*LATENTS, "timestep", "t")
# In addition to the adapter's conditions.
BATCH_FIRST = (
    *NEW_EACH_STEP,
    "cap_feats",
    "attention_mask",
    "encoder_attention_mask",
    "img_shapes",
    "inpaint_latents",
    "control_latents",
)
LAYERED = ("id_vit_hidden",)  # a batch for each of several layers of an encoder
SHARED = ("img_ids", "txt_ids", "image_rotary_emb", "ofs", "rope_interpolation_scale")  # the same for all rows
Batch = torch.Tensor | list[torch.Tensor]
TOLERANCE = 1e-2  # relative difference of equal inputs that different hardware may cause


class BatchSplit:
    """Hooks on a model whose caller makes the same call on every rank, with tensors or with lists of one tensor per
    row.

    If the batch is smaller than the axis, a rank without rows runs a row of another rank and drops the result. It needs
    the output's shape. This costs no time, because it would wait for the other ranks anyway. So a slow rank that would
    get no row by its speed gets as many as the others.
    """

    def __init__(self, model: torch.nn.Module, adapter: Adapter, axis: Axis, slot: ForwardSlot, hooks: Hooks) -> None:
        self.adapter = adapter
        self.slot = slot
        self.whole_axis = self.axis = axis
        self.batch_first = tuple(dict.fromkeys((*BATCH_FIRST, *adapter.conditions)))
        self.signature = inspect.signature(model.forward)
        self.agreed: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.size = 0
        hooks.before(model, self.enter, with_kwargs=True)
        hooks.after(model, self.leave)

    def enter(self, _model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Cuts the arguments to this rank's rows. Raises RequestError, on every rank alike. All arguments are passed by
        name, because decorators of diffusers look for some of them there."""
        self.slot.begin()
        arguments = self.signature.bind(*args, **kwargs).arguments
        given = flatten(arguments)
        self.check_names(given)
        self.check_agreement({name: given[name] for name in self.batch_first if is_batch(given.get(name))})
        self.size = next(len(given[name]) for name in LATENTS if name in given)
        self.axis = self.whole_axis if all(self.whole_axis.sizes(self.size)) else self.whole_axis.evenly
        return (), {name: self.take(name, value) for name, value in arguments.items()}

    def leave(self, _model: torch.nn.Module, _args: tuple, output: Any) -> Any:
        """Joins the rows of all ranks, in the form that the caller asked for."""
        rows = output[0] if torch.is_tensor(output[0]) else torch.stack(output[0])
        local = rows[: self.axis.own_size(self.size)]
        whole = gather(local, BATCH_DIM, self.size, self.axis)
        whole = whole if torch.is_tensor(output[0]) else list(whole)
        return (whole, *output[1:]) if isinstance(output, tuple) else type(output)(sample=whole)

    def take(self, name: str, value: Any) -> Any:
        """Returns this rank's rows of an argument. Several entries per row, such as two images, stay together."""
        if isinstance(value, dict):
            return {key: self.take(key, inner) for key, inner in value.items()}
        if name in LAYERED and value is not None:
            return [self.take_rows(name, layer) for layer in value]
        if name in self.batch_first and isinstance(value, list):
            return value[self.axis.own(self.size)] or value[:1]
        if name not in self.batch_first or not torch.is_tensor(value) or not value.ndim:
            return value
        return self.take_rows(name, value)

    def take_rows(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Returns this rank's rows of a tensor. One row is for all."""
        if len(value) == 1:
            return value
        if len(value) % self.size:
            raise RequestError(f"{name} is for a batch of {len(value)}, hidden_states for one of {self.size}.")
        rows = value.unflatten(BATCH_DIM, (self.size, -1))
        mine = rows[self.axis.own(self.size) if self.axis.own_size(self.size) else slice(1)]
        return mine.flatten(0, 1).contiguous()

    def check_names(self, given: dict[str, Any]) -> None:
        """Raises RequestError for an unknown argument that is more than a number."""
        for name, value in given.items():
            plain = value is None or isinstance(value, (bool, int, float, str))
            if not plain and name not in (*self.batch_first, *SHARED):
                raise RequestError(
                    f"{self.adapter.model_class} was called with {name}, which cannot be split over ranks yet.",
                    "Leave out what brings it (IP-Adapter, ControlNet, skipped layers), or use the plain pipeline.",
                )

    def check_agreement(self, tensors: dict[str, Batch]) -> None:
        """Raises RequestError if ranks got different prompts or noise. It runs when a call of the pipeline begins,
        which the new conditions show. After that, each step passes the same tensors."""
        conditions = [row for name, value in tensors.items() if name not in NEW_EACH_STEP for row in parts_of(value)]
        if all(self.agreed.get(id(value)) is value for value in conditions):
            return
        numbers = torch.stack([fingerprint(tensors.get(name)) for name in self.batch_first])
        device = next(parts_of(tensors[name])[0].device for name in LATENTS if name in tensors)
        lowest, highest = find_extremes(numbers, device)
        (numel, norm, ramp), (_, largest_norm, _) = (highest - lowest).unbind(1), highest.unbind(1)
        for index, name in enumerate(self.batch_first):
            integer = name in tensors and not parts_of(tensors[name])[0].is_floating_point()
            allowed = 0.0 if integer else TOLERANCE * largest_norm[index]
            if numel[index] or max(norm[index], ramp[index]) > allowed:
                raise RequestError(
                    f"The ranks were given different {name}.",
                    "Call the pipeline with the same prompts and the same generator on every rank: the plan shares "
                    "them out.",
                )
        self.agreed.update({id(value): value for value in conditions})


def flatten(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments by name, including those inside of dicts."""
    flat = {}
    for name, value in arguments.items():
        flat.update(flatten(value) if isinstance(value, dict) else {name: value})
    return flat


def is_batch(value: Any) -> bool:
    """Whether a value is a tensor, or a list of one per row."""
    return torch.is_tensor(value) or (isinstance(value, list) and bool(value) and all(map(torch.is_tensor, value)))


def parts_of(value: Batch) -> list[torch.Tensor]:
    return value if isinstance(value, list) else [value]


def fingerprint(value: Batch | None) -> torch.Tensor:
    """Returns three numbers that differ for different tensors: the size, the norm, and the product with a ramp."""
    if value is None:
        return torch.zeros(3)
    flat = torch.cat([part.detach().flatten().float() for part in parts_of(value)])
    ramp = torch.linspace(-1, 1, flat.numel(), device=flat.device)
    return torch.stack([flat.new_tensor(flat.numel()), flat.norm(), (flat * ramp).sum()]).cpu()


def find_extremes(numbers: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the least and the greatest of each number over all ranks. device: where the default group can reduce
    them."""
    both = torch.stack([-numbers, numbers]).to(device)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    least, greatest = both.cpu()
    return -least, greatest
