"""Reads what the editor asks about a plan: the node's values, and the models and sizes in the graph around it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..load_model import DEFAULT
from ..parallel_plan import AUTO, MANUAL
from ..workers.group import GROUPS
from .memory_estimate import Picture

MAX_ITEMS = 64
MAX_SIZE = 1 << 20  # of a picture, in pixels or frames
PARALLEL_SAMPLER = "ParallelDiT_Sampler"


class Sampler(NamedTuple):
    """A node that samples with the model. cfg, picture: None if the editor cannot tell."""

    type: str
    cfg: float | None
    picture: Picture | None = None

    @property
    def is_stock(self) -> bool:
        return self.type != PARALLEL_SAMPLER


class Loader(NamedTuple):
    """A loader that the plan goes to, and the samplers that use its model. dtype: a key of WEIGHT_DTYPES, else the
    loader's own choice. checkpoint: whether it only loads checkpoints."""

    model_name: str
    samplers: list[Sampler]
    dtype: str = DEFAULT
    group: int = 1
    checkpoint: bool = False


class Question(NamedTuple):
    """mode, values: of the node. loaders: the plan goes to."""

    mode: str
    values: dict[str, Any]
    loaders: list[Loader]

    @property
    def samplers(self) -> list[Sampler]:
        return [sampler for loader in self.loaders for sampler in loader.samplers]


def read_question(asked: dict[str, Any]) -> Question:
    """Reads the JSON of a question. Raises ValueError for anything else.

    {"values": {"mode": "manual", "cfg": 2, …},
     "loaders": [{"model_name": …, "dtype": "bf16", "group": 1, "samplers": [
        {"type": "KSampler", "cfg": 4.0, "picture": {"width": 1024, "height": 1024}}]}]}
    """
    values = read_field(asked, "values", dict)
    if values.get("mode") not in (AUTO, MANUAL):
        raise ValueError(f"values.mode is {values.get('mode')!r:.40}, and must be auto or manual")
    degrees = {name: value for name, value in values.items() if name != "mode"}
    if any(not isinstance(value, (int, float, str)) for value in degrees.values()):
        raise ValueError("values has an entry that is neither a number nor a text")
    loaders = []
    for loader in read_entries(asked, "loaders"):
        samplers = [
            Sampler(
                read_field(sampler, "type", str),
                read_field(sampler, "cfg", (int, float), None),
                read_picture(read_field(sampler, "picture", dict, None)),
            )
            for sampler in read_entries(loader, "samplers")
        ]
        dtype, group = read_field(loader, "dtype", str, DEFAULT), read_field(loader, "group", int, 1)
        checkpoint = read_field(loader, "checkpoint", bool, False)
        name, group = read_field(loader, "model_name", str), min(max(group, 1), GROUPS)
        loaders.append(Loader(name, samplers, dtype, group, checkpoint))
    return Question(values["mode"], degrees, loaders)


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
