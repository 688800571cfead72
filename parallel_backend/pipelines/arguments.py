"""The arguments with which a pipeline calls its transformer: which have a row for each picture, and which stay the same
from step to step.

Names decide which arguments have the batch in their first dim. Sizes cannot: four position ids may meet a batch of
four. A tensor with an unknown name is refused, because we do not know how to cut it.
"""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from ..apply_plan import shares_tokens
from ..compat import is_compiled, list_tensors, tree_leaves, tree_map_only
from ..errors import RequestError
from ..groups.calls import Call
from ..groups.mesh import Axis
from ..models import ModelSpec
from ..plan import ParallelPlan
from ..seams.kept import first_equal
from .agreement import Batch, check_same, is_batch

BATCH_DIM = 0
LATENTS = ("hidden_states", "x", "sample")
TIMESTEP = ("timestep", "timesteps", "t")
NEW_EACH_STEP = (*LATENTS, *TIMESTEP)
# fmt: off
BATCH_FIRST = (
    *NEW_EACH_STEP,
    # texts
    "cap_feats", "encoder_hidden_states", "encoder_hidden_states_t5", "input_ids", "pooled_embeds",
    "pooled_projections", "text_embeds",
    # their masks, and places of all tokens
    "attention_mask", "encoder_attention_mask", "encoder_hidden_states_mask", "position_ids", "text_embedding_mask",
    "text_embedding_mask_t5", "video_coords",
    # pictures
    "condition_mask", "control_latents", "encoder_hidden_states_image", "id_cond", "inpaint_latents",
    # numbers
    "aspect_ratio", "class_labels", "crop_coords", "guidance", "image_meta_size", "img_shapes", "original_size",
    "resolution", "style", "target_size", "time_ids", "timestep_cond",
)
# fmt: on
LAYERED = ("id_vit_hidden", "encoder_hidden_states_llama3")  # a batch for each of several layers of an encoder
SHARED = (  # the same for all rows
    "img_ids",
    "txt_ids",
    "image_rotary_emb",
    "ofs",
    "rope_interpolation_scale",
    "padding_mask",
    "visual_rope_pos",
    "text_rope_pos",
    "scale_factor",
    "input_img_latents",
)
MOST_VALUES = 8  # how many values of an argument are known at the same time


@dataclass(frozen=True)
class ModelCall:
    """A call of the transformer.

    changing: latents and timestep, by name. constant: the other arguments. Equal values are the same objects in all
    calls of a sampling, if calls are told apart by them.
    """

    changing: dict[str, Any]
    constant: dict[str, Any]

    @property
    def latents(self) -> Batch:
        return next(self.changing[name] for name in LATENTS if name in self.changing)

    @property
    def size(self) -> int:
        """The batch size."""
        return len(self.latents)

    @property
    def key(self) -> tuple:
        """What the constant arguments are known by."""
        leaves = tree_leaves(self.constant)
        return (*self.constant, *(id(each) if torch.is_tensor(each) else repr(each) for each in leaves))

    @property
    def kind(self) -> tuple:
        """What the form of the prediction depends on: the forms of all tensors, and autocast."""
        tensors = list_tensors((self.changing, self.constant))
        device = list_tensors(self.latents)[0].device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cast, *((each.shape, each.dtype) for each in tensors)

    def for_step(self) -> Call:
        """Returns the call as `StepPipeline` takes it."""
        timestep = next((self.changing[name] for name in TIMESTEP if name in self.changing), 0.0)
        parts = list_tensors(self.latents)
        latents = parts[0] if isinstance(self.latents, torch.Tensor) else torch.stack(parts)
        return Call((latents, torch.as_tensor(timestep)), self.constant)


class ModelArguments:
    """Reads the arguments of a model's calls, checks them, and cuts them to rows."""

    def __init__(self, model: torch.nn.Module, spec: ModelSpec, plan: ParallelPlan, identifies: bool) -> None:
        """identifies: whether calls are told apart by their constant arguments."""
        self.model = model
        self.plan = plan
        self.spec = spec
        self.identifies = identifies
        self.batch_first = tuple(name for name in (*BATCH_FIRST, *LAYERED) if name not in spec.unsplit)
        self.signature = inspect.signature(model.forward)
        self.agreed: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.forget()

    def forget(self) -> None:
        """Drops the values of the last sampling."""
        self.known: list[torch.Tensor] = []

    def read(self, args: tuple, kwargs: dict[str, Any]) -> ModelCall:
        """Returns a call. Raises RequestError, on every rank alike. All arguments are passed by name, because
        decorators of diffusers look for some of them there."""
        arguments = self.signature.bind(*args, **kwargs).arguments
        given = flatten(arguments)
        self.check_names(given)
        self.check_agreement({name: given[name] for name in self.batch_first if is_batch(given.get(name))})
        changing = {name: value for name, value in arguments.items() if name in NEW_EACH_STEP}
        constant = {name: value for name, value in arguments.items() if name not in NEW_EACH_STEP}
        if self.identifies:
            constant = tree_map_only(torch.Tensor, self.identify, constant)
        return ModelCall(changing, constant)

    def identify(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of an earlier call with the same values, or this one if there is none."""
        found = first_equal(self.known, value)
        del self.known[: -MOST_VALUES * len(self.signature.parameters)]
        return found

    def cut(self, call: ModelCall, rows: Axis) -> dict[str, Any]:
        """Returns this rank's rows of a call's arguments. rows: the batch as an axis splits it."""
        given = {**call.changing, **call.constant}
        return {name: self.take(name, value, call.size, rows) for name, value in given.items()}

    def take(self, name: str, value: Any, size: int, rows: Axis) -> Any:
        """Returns this rank's rows of an argument. Several entries per row, such as two images, stay together."""
        if isinstance(value, dict):
            return {key: self.take(key, inner, size, rows) for key, inner in value.items()}
        if name in LAYERED and value is not None:
            return [self.take_rows(name, layer, size, rows) for layer in value]
        if name in self.batch_first and isinstance(value, list):
            return value[rows.own(size)]
        if name not in self.batch_first or not torch.is_tensor(value) or not value.ndim:
            return value
        return self.take_rows(name, value, size, rows)

    def take_rows(self, name: str, value: torch.Tensor, size: int, rows: Axis) -> torch.Tensor:
        """Returns this rank's rows of a tensor. One row is for all."""
        if len(value) == 1:
            return value
        if len(value) % size:
            raise RequestError(f"{name} is for a batch of {len(value)}, hidden_states for one of {size}.")
        return value.unflatten(BATCH_DIM, (size, -1))[rows.own(size)].flatten(0, 1).contiguous()

    def check_names(self, given: dict[str, Any]) -> None:
        """Raises RequestError for an unknown argument that is more than a number."""
        for name, value in given.items():
            plain = value is None or isinstance(value, (bool, int, float, str))
            if not plain and name not in (*self.batch_first, *SHARED, *self.spec.unsplit):
                raise RequestError(
                    f"{self.spec.model_class} was called with {name}, which cannot be split over ranks yet.",
                    "Leave out what brings it (IP-Adapter, ControlNet, skipped layers), or use the plain pipeline.",
                )

    def check_agreement(self, tensors: dict[str, Batch]) -> None:
        """Raises RequestError if ranks got different prompts or noise, or if the model was compiled meanwhile. It runs
        when a call of the pipeline begins, which the new conditions show. After that, each step passes the same
        tensors."""
        conditions = list_tensors({name: value for name, value in tensors.items() if name not in NEW_EACH_STEP})
        if all(self.agreed.get(id(value)) is value for value in conditions):
            return
        refuse_compiled(self.model, self.plan)
        device = next(list_tensors(tensors[name])[0].device for name in LATENTS if name in tensors)
        check_same(tensors, self.batch_first, device)
        self.agreed.update({id(value): value for value in conditions})


def refuse_compiled(model: torch.nn.Module, plan: ParallelPlan) -> None:
    """Raises RequestError if a script has compiled a model, or a part of it whose tokens ranks share. Blocks of a class
    share what is compiled, and torch does not ask whether they have the same hooks: a block would run without those
    that share its tokens."""
    parts = model.named_modules() if shares_tokens(plan) else [("", model)]
    path = next((path for path, module in parts if is_compiled(module)), None)
    if path is not None:
        part = path or "as a whole"
        raise RequestError(
            f"This {type(model).__name__} was compiled by itself ({part}), so that its blocks cannot be shared.",
            "Leave out its compile() or compile_repeated_blocks(), and use compile=on in the plan.",
        )


def flatten(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments by name, including those inside of dicts."""
    flat = {}
    for name, value in arguments.items():
        flat.update(flatten(value) if isinstance(value, dict) else {name: value})
    return flat
