"""What the editor asks about a plan: the node's values, and the model and sizes in the graph around it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...parallel_backend.costs.forward import Work
from ...parallel_backend.errors import PlanError
from ...parallel_backend.plan import ParallelPlan
from ..model.host_file import HostFile
from ..parallel_plan import AUTO, MANUAL, fit_to_machine, resolve_plan
from ..plan_words import ResolvedPlan
from ..workers.group import GROUPS

MAX_ITEMS = 64
MAX_SIZE = 1 << 20  # of a picture, in pixels or frames
PARALLEL_SAMPLER = "ParallelDiT_Sampler"


class Picture(NamedTuple):
    """What is sampled, in the fields of an empty latent's node: pixels, frames and count."""

    width: int
    height: int
    length: int = 1
    batch_size: int = 1

    def shrink(self, factor: int) -> Picture:
        """Returns a single picture with sides divided by the factor."""
        return self._replace(width=self.width // factor, height=self.height // factor, batch_size=1)


class Sampler(NamedTuple):
    """A node that samples with the model. cfg, picture: None if the editor cannot tell."""

    type: str
    cfg: float | None
    picture: Picture | None = None

    @property
    def is_stock(self) -> bool:
        return self.type != PARALLEL_SAMPLER


class Question(NamedTuple):
    """mode, values, group: of the node. files: that are chosen at the node that makes the model, by widget; empty if
    the editor cannot tell. weight_dtype: chosen there. samplers: that use the model."""

    mode: str
    values: dict[str, Any]
    group: int
    files: dict[str, str]
    weight_dtype: str
    samplers: list[Sampler]

    @property
    def pictures(self) -> list[Picture]:
        """What is sampled, as far as known."""
        return [each.picture for each in self.samplers if each.picture]

    @property
    def guided(self) -> bool | None:
        """Whether both cond and uncond are computed; None if samplers differ or do not say."""
        found = {None if each.cfg is None else each.cfg != 1 for each in self.samplers}
        return found.pop() if len(found) == 1 else None

    @property
    def may_guide(self) -> bool:
        return self.guided is not False

    @property
    def loops(self) -> bool:
        """Whether the ranks run every sampler's loop."""
        return bool(self.samplers) and not any(each.is_stock for each in self.samplers)


def read_question(asked: dict[str, Any]) -> Question:
    """Reads the JSON of a question. Raises ValueError for anything else.

    {"values": {"mode": "manual", "cfg": 2, …},
     "group": 1, "files": {"unet_name": …}, "weight_dtype": "default",
     "samplers": [{"type": "KSampler", "cfg": 4.0, "picture": {"width": 1024, "height": 1024}}]}
    """
    values, files, samplers = asked.get("values"), asked.get("files") or {}, asked.get("samplers") or []
    if not isinstance(values, dict) or values.get("mode") not in (AUTO, MANUAL):
        raise ValueError("it has no values with the mode auto or manual")
    if not all(isinstance(value, (int, float, str)) for value in values.values()):
        raise ValueError("values has an entry that is neither a number nor a text")
    if (
        not isinstance(files, dict)
        or len(files) > MAX_ITEMS
        or not all(isinstance(each, str) for each in files.values())
    ):
        raise ValueError(f"files are not at most {MAX_ITEMS} names")
    if not isinstance(samplers, list) or len(samplers) > MAX_ITEMS:
        raise ValueError(f"samplers are not at most {MAX_ITEMS}")
    dtype, group = asked.get("weight_dtype") or "", asked.get("group") or 1
    if not isinstance(dtype, str) or type(group) is not int:
        raise ValueError("weight_dtype is no text, or group is no number")
    degrees = {name: value for name, value in values.items() if name != "mode"}
    group = min(max(group, 1), GROUPS)
    return Question(values["mode"], degrees, group, files, dtype, [*map(read_sampler, samplers)])


def read_sampler(asked: Any) -> Sampler:
    """Raises ValueError."""
    match asked:
        case {"type": str(kind)} if type(cfg := asked.get("cfg")) in (int, float, type(None)):
            return Sampler(kind, cfg, read_picture(asked.get("picture")))
    raise ValueError("samplers has an entry without a type, or with a cfg that is no number")


def read_picture(sizes: Any) -> Picture | None:
    """Reads the sizes of an empty latent. Raises ValueError."""
    if sizes is None:
        return None
    if (
        not isinstance(sizes, dict)
        or not {"width", "height"} <= sizes.keys() <= {*Picture._fields}
        or not all(type(size) is int and 0 < size <= MAX_SIZE for size in sizes.values())
    ):
        raise ValueError(f"picture must have sizes among {', '.join(Picture._fields)}, each from 1 to {MAX_SIZE}")
    return Picture(**sizes)


class Sampled(NamedTuple):
    """file: of the model. question: about its plan, which says what is sampled."""

    file: HostFile
    question: Question

    def latents(self, picture: Picture) -> list[int] | None:
        """Returns the shape of a picture's latents, (B, C, H, W) or (B, C, F, H, W). Returns None for other dims."""
        of = self.file.model.latent_format
        if of.latent_dimensions not in (2, 3):
            return None
        frames = [(picture.length - 1) // of.temporal_downscale_ratio + 1] if of.latent_dimensions == 3 else []
        sides = [size // of.spacial_downscale_ratio for size in (picture.height, picture.width)]
        return [picture.batch_size, of.latent_channels, *frames, *sides]

    @property
    def largest(self) -> Picture | None:
        """The largest picture that is sampled; None if unknown."""
        shapes = {picture: self.latents(picture) for picture in self.question.pictures}
        known = {picture: math.prod(shape) for picture, shape in shapes.items() if shape}
        return max(known, key=known.__getitem__, default=None)

    def work(self, guided: bool) -> Work:
        """Returns the work of a step, with the cost of a row if it can be counted."""
        picture, costs = self.largest, self.file.costs
        shape = self.latents(picture) if picture else None
        forward = costs.count_latents(shape) if shape else None
        parts = (1 + guided) * (picture.batch_size if picture else 1)
        return costs.recall(Work(parts, has_branches=guided, forward=forward, loops=self.question.loops))

    @property
    def largest_work(self) -> Work:
        """The work of a step, with guidance if that is possible."""
        return self.work(self.question.may_guide)


def resolve_asked(plan: ParallelPlan, sampled: Sampled | None) -> ResolvedPlan:
    """Turns a person's plan into the plan that runs. sampled: None if the model is unknown. Raises PlanError."""
    plan.check_weights()
    return resolve_plan(plan, sampled.file.module, sampled.file.sizes) if sampled else fit_to_machine(plan)


def runs_on_all_ranks(plan: ParallelPlan, sampled: Sampled | None) -> bool:
    """Whether the model allows the plan, and this machine has its ranks."""
    try:
        return resolve_asked(plan, sampled).plan.world_size == plan.world_size
    except PlanError:
        return False
