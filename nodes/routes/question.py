"""Reads what the editor asks about a plan: the node's values, and the model and sizes in the graph around it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..parallel_plan import AUTO, MANUAL
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
    values = read_field(asked, "values", dict)
    if values.get("mode") not in (AUTO, MANUAL):
        raise ValueError(f"values.mode is {values.get('mode')!r:.40}, and must be auto or manual")
    degrees = {name: value for name, value in values.items() if name != "mode"}
    if any(not isinstance(value, (int, float, str)) for value in degrees.values()):
        raise ValueError("values has an entry that is neither a number nor a text")
    files = read_field(asked, "files", dict, {})
    if len(files) > MAX_ITEMS or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"files are not at most {MAX_ITEMS} names")
    samplers = [
        Sampler(
            read_field(sampler, "type", str),
            read_field(sampler, "cfg", (int, float), None),
            read_picture(read_field(sampler, "picture", dict, None)),
        )
        for sampler in read_entries(asked, "samplers")
    ]
    dtype, group = read_field(asked, "weight_dtype", str, ""), read_field(asked, "group", int, 1)
    return Question(values["mode"], degrees, min(max(group, 1), GROUPS), files, dtype, samplers)


def read_picture(asked: dict[str, Any] | None) -> Picture | None:
    """Reads the sizes of an empty latent. Raises ValueError."""
    if asked is None:
        return None
    sizes = {name: read_field(asked, name, int) for name in asked}
    if not {"width", "height"} <= sizes.keys() <= set(Picture._fields) or not all(
        0 < size <= MAX_SIZE for size in sizes.values()
    ):
        raise ValueError(f"picture must have sizes among {', '.join(Picture._fields)}, each from 1 to {MAX_SIZE}")
    return Picture(**sizes)


def read_entries(asked: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Reads a list of objects, which may be absent. Raises ValueError."""
    found = read_field(asked, name, list, [])
    if len(found) > MAX_ITEMS or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"{name} is not a list of at most {MAX_ITEMS} objects")
    return found


def read_field(asked: dict[str, Any], name: str, kind: type | tuple[type, ...], *default: Any) -> Any:
    """Reads a value by name and checks its type. A default replaces an absent or null value. Raises ValueError."""
    value = asked.get(name)
    if value is None and default:
        return default[0]
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise ValueError(f"{name} is missing or has the wrong type")
    return value
