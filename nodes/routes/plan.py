"""POST /paralleldit/plan: what a Parallel Plan node would do, before it is queued. Reads headers of models alone."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from server import PromptServer

from ...parallel_backend.axes import BATCH_AXES
from ...parallel_backend.costs.auto import Work
from ...parallel_backend.costs.forward import Forward
from ...parallel_backend.costs.predict import Prediction
from ...parallel_backend.errors import PlanError, RequestError
from ...parallel_backend.groups.mesh_layout import RankPart, rank_parts
from ...parallel_backend.models import spec_for
from ...parallel_backend.models.comfyui import host_spec
from ...parallel_backend.models.comfyui.checks import patch_of, sizes_of
from ...parallel_backend.plan import ParallelPlan
from ...parallel_backend.weights.loading import DTYPES
from ...parallel_backend.weights.sizes import sizes_of_source
from ...worker.settings import SettingsError
from ...worker.wire.json_object import parse_object
from ..costs.plans import ModelCosts, is_covered
from ..load_model import folder_dtype
from ..model.families import family_for
from ..model.host_file import OWN_CHOICE, WEIGHT_DTYPES, HostFile, describe_host_file
from ..model.model_files import describe_folder, list_checkpoints, list_models, why_not_listed
from ..parallel_plan import (
    AUTO,
    MANUAL,
    ResolvedPlan,
    auto_host_plan,
    devices_of_machine,
    fit_to_machine,
    plan_of,
    resolve_host_plan,
    resolve_plan,
)
from ..plan_words import Remark, devices_of_auto, remark, why_auto
from ..workers.group import GROUPS, device_count, device_type
from .memory import Foresight, ModelMemory, Picture

MAX_BYTES = 1 << 16
MAX_ITEMS = 64
MAX_SIZE = 1 << 20  # of a picture, in pixels or frames
MAX_RANKS = 256  # more are counted, and not told one by one
BEST = 3  # plans that are told of
PARALLEL_SAMPLER = "ParallelDiT_Sampler"
LATENT_DIMS = 3  # at most, beside batch and channels: frames, height and width


class Sampler(NamedTuple):
    """A node that samples with the model. cfg, picture: None where the editor cannot tell."""

    type: str
    cfg: float | None
    picture: Picture | None = None

    @property
    def is_stock(self) -> bool:
        return self.type != PARALLEL_SAMPLER


class Loader(NamedTuple):
    """A loader that the plan goes to, and what samples with its model. dtype: a key of WEIGHT_DTYPES, else its own
    choice. checkpoint: whether it takes checkpoints alone."""

    model_name: str
    samplers: list[Sampler]
    dtype: str = AUTO
    group: int = 1
    checkpoint: bool = False


class Question(NamedTuple):
    """plan: None is auto."""

    plan: dict[str, Any] | None
    loaders: list[Loader]


class Bounds(NamedTuple):
    """What bounds a plan for a model. resolve: the plan that was asked for, or None for auto, to what runs.

    guided: whether an automatic plan splits guidance. heads: how many; None where that is not known. by_call: where an
    automatic plan follows from what a sampling brings, how; `resolve` makes none then. costs: of its plans, where they
    can be told.
    """

    resolve: Callable[..., ResolvedPlan]
    heads: int | None
    memory: ModelMemory
    guided: bool = False
    by_call: Callable[[Work], ResolvedPlan] | None = None
    costs: ModelCosts | None = None


def add_plan_route() -> None:
    """Registers the route with ComfyUI's server."""
    PromptServer.instance.routes.post("/paralleldit/plan")(plan_route)


async def plan_route(request: web.Request) -> web.Response:
    """The answer to a question in JSON, see `read_question` and `answer`; 400 with a sentence for anything else."""
    body = b""
    async for chunk in request.content.iter_chunked(MAX_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            return web.Response(status=413, text=f"A question about a plan is {MAX_BYTES} bytes at most.")
    try:
        question = read_question(parse_object(body))
    except ValueError as error:
        return web.Response(status=400, text=f"This is no question about a plan: {error}.")
    try:
        return web.json_response(await asyncio.to_thread(answer, question))
    except SettingsError as error:
        return web.Response(status=500, text=str(error))


def read_question(asked: dict[str, Any]) -> Question:
    """From {"values": {"mode": "manual", "cfg": 2, …}, "loaders": [{"model_name": …, "dtype": "bf16", "group": 1,
    "samplers": [{"type": "KSampler", "cfg": 4.0, "picture": {"width": 1024, "height": 1024}}]}]}. Raises ValueError for
    anything else.
    """
    values = part(asked, "values", dict)
    if values.get("mode") not in (AUTO, MANUAL):
        raise ValueError(f"values.mode is {values.get('mode')!r:.40}, and it is auto or manual")
    degrees = {name: value for name, value in values.items() if name != "mode"}
    if any(not isinstance(value, (int, float, str)) for value in degrees.values()):
        raise ValueError("values has something that is no number and no text")
    loaders = []
    for loader in entries(asked, "loaders"):
        samplers = [
            Sampler(
                part(sampler, "type", str),
                part(sampler, "cfg", (int, float), None),
                picture_of(part(sampler, "picture", dict, None)),
            )
            for sampler in entries(loader, "samplers")
        ]
        dtype, group = part(loader, "dtype", str, AUTO), part(loader, "group", int, 1)
        checkpoint = part(loader, "checkpoint", bool, False)
        name, group = part(loader, "model_name", str), min(max(group, 1), GROUPS)
        loaders.append(Loader(name, samplers, dtype, group, checkpoint))
    return Question(degrees if values["mode"] == MANUAL else None, loaders)


def picture_of(asked: dict[str, Any] | None) -> Picture | None:
    """What an empty latent is of. Raises ValueError."""
    if asked is None:
        return None
    sizes = {name: part(asked, name, int) for name in asked}
    if not {"width", "height"} <= sizes.keys() <= set(Picture._fields) or not all(
        0 < size <= MAX_SIZE for size in sizes.values()
    ):
        raise ValueError(f"picture has other sizes than {', '.join(Picture._fields)}, each from 1 to {MAX_SIZE}")
    return Picture(**sizes)


def entries(asked: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects, which may be absent. Raises ValueError."""
    found = part(asked, name, list, [])
    if len(found) > MAX_ITEMS or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"{name} is no list of {MAX_ITEMS} objects at most")
    return found


def part(asked: dict[str, Any], name: str, kind: type | tuple[type, ...], *default: Any) -> Any:
    """The value of this name, of this kind; a default stands for one that is absent or null. Raises ValueError."""
    value = asked.get(name)
    if value is None and default:
        return default[0]
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise ValueError(f"{name} is missing or of another type")
    return value


def answer(question: Question) -> dict[str, Any]:
    """What would run, or the error that the backend would raise and the widgets that it is about.

    plan: in words. world: its ranks, and for each in `ranks` what it holds. remarks: what else there is to say of it.
    memory: what they keep of the weights and need, see `Foresight.to_json`; null where no model is known. predicted: as
    `predictions` has it. note: why it is not the plan that was asked for. unknown: why a loader's model is not known.
    Raises SettingsError.
    """
    samplers = [sampler for loader in question.loaders for sampler in loader.samplers]
    models, unknown = find_models(question.loaders)
    common = {"device": device_type(), "unknown": unknown, "error": "", "widgets": []}
    try:
        asked = None if question.plan is None else plan_of(question.plan)
        resolved, remarks = resolve(asked, models, samplers)
        if resolved and any(sampler.is_stock for sampler in samplers):
            resolved.plan.check_step_mode()
    except PlanError as error:
        nothing = {"plan": "", "world": 0, "ranks": [], "memory": None, "predicted": None, "remarks": [], "note": []}
        return {**common, **nothing, "error": str(error), "widgets": list(error.fields)}
    if resolved is None:
        return {
            **common,
            "plan": "",
            "world": device_count(),
            "ranks": [],
            "memory": None,
            "predicted": None,
            "remarks": remarks_json(remarks),
            "note": [],
        }
    plan, note = resolved
    if plan.cfg > 1 and samplers and all(sampler.cfg == 1 for sampler in samplers):
        remarks = [*remarks, remark("no_guidance")]
    foresight = foresee(plan, models[0], question.loaders) if models else None
    remarks = [*remarks, *(foresight.remarks() if foresight else ())]
    return {
        **common,
        "plan": str(plan),
        "world": plan.world_size,
        "patches": plan.patch_count,
        "ranks": ranks_of(plan, models[0] if models else None, has_branches(question.loaders)),
        "memory": foresight and foresight.to_json(),
        "predicted": predictions(plan, models[0], samplers) if models else None,
        "remarks": remarks_json(remarks),
        "note": remarks_json(note),
    }


def foresee(plan: ParallelPlan, model: Bounds, loaders: list[Loader]) -> Foresight:
    """What the plan's ranks keep, need and fetch for a model, and what samples with it."""
    samplers = [sampler for loader in loaders for sampler in loader.samplers]
    pictures = [one.picture for one in samplers if one.picture]
    is_guided = not samplers or any(one.cfg != 1 for one in samplers)
    return Foresight.of(plan, model.memory, pictures, is_guided, loaders[0].group)


def resolve(
    plan: ParallelPlan | None, models: list[Bounds], samplers: list[Sampler]
) -> tuple[ResolvedPlan | None, list[Remark]]:
    """The plan for the first of the models, once it is sure that none forbids it, and why an automatic one is as it is;
    None for an automatic plan that depends on what is not known. Raises PlanError.
    """
    if plan is not None:
        plan.check_weights()
        return ([m.resolve(plan) for m in models][0], []) if models else (fit_to_machine(plan), [remark("unchecked")])
    if models and models[0].by_call:
        return expected(models[0], samplers)
    chosen = models[0].resolve(None) if models else None if device_count() > 1 else ResolvedPlan(ParallelPlan())
    model = (models[0].heads or 1, models[0].guided) if models else None
    return chosen and ResolvedPlan(chosen.plan), why_auto(devices_of_machine(), chosen and chosen.plan, model)


def expected(model: Bounds, samplers: list[Sampler]) -> tuple[ResolvedPlan | None, list[Remark]]:
    """As `resolve`, where what a sampling brings decides: for a single image, by the guidance of the samplers."""
    forward = forward_of(model, samplers)
    asked = (Work(forward=forward), Work(2, has_branches=True, forward=forward))
    alone, guided = (model.by_call(each) for each in asked if model.by_call)
    has_guidance = {None if one.cfg is None else one.cfg != 1 for one in samplers} or {None}
    if guided.plan == alone.plan or has_guidance in ({True}, {False}):
        plan, why = guided if True in has_guidance else alone
        said = [*why, remark("images_first")] if device_count() > 1 and plan.dp == 1 else [*why]
        return ResolvedPlan(plan), said
    why = devices_of_auto(devices_of_machine())
    return None, [*why, remark("by_call", guided=str(guided.plan), alone=str(alone.plan))]


def forward_of(model: Bounds, samplers: list[Sampler]) -> Forward | None:
    """What a row of the largest picture takes; None where nobody knows what is sampled, or the model cannot be
    counted."""
    shapes = [shape for each in samplers if each.picture and (shape := model.memory.latents(each.picture))]
    if model.costs is None or not shapes:
        return None
    return model.costs.of_latents(max(shapes, key=math.prod))


def predictions(plan: ParallelPlan, model: Bounds, samplers: list[Sampler]) -> dict[str, Any] | None:
    """What a step is predicted to take: of this plan, as `plan`, and of the best that the machine can have, as `best`;
    each with its words, seconds and bytes a rank. is_measured: whether by what was measured of this machine. alone:
    whether one device is the fastest. None where nobody knows what is sampled."""
    forward, pictures = forward_of(model, samplers), [each.picture for each in samplers if each.picture]
    if forward is None or model.costs is None or not is_covered(plan):
        return None
    guided = any(each.cfg != 1 for each in samplers)
    work = Work((1 + guided) * max(each.batch_size for each in pictures), has_branches=guided, forward=forward)
    found, own = model.costs.ranked(forward, work), model.costs.predict(forward, work, plan)
    return {
        "plan": prediction_json(own),
        "best": [prediction_json(each) for each in found[:BEST]],
        "alone": bool(found) and found[0].plan.token_ways == 1 and found[0].plan.ways(BATCH_AXES) > work.parts,
        "is_measured": model.costs.is_measured,
    }


def prediction_json(predicted: Prediction) -> dict[str, Any]:
    return {
        "plan": str(predicted.plan),
        "seconds": predicted.seconds,
        "bytes": predicted.bytes,
        "fits": predicted.fits,
    }


def has_branches(loaders: list[Loader]) -> bool:
    """Whether everything that samples has guidance and hands its whole loop over: then a half of the batch is cond, the
    other uncond. A stock sampler's forwards hold either, in any order.
    """
    samplers = [sampler for loader in loaders for sampler in loader.samplers]
    return bool(samplers) and not any(one.is_stock or one.cfg in (None, 1) for one in samplers)


def ranks_of(plan: ParallelPlan, model: Bounds | None, has_branches: bool) -> list[dict[str, Any]]:
    """What each rank holds, in JSON; nothing for more ranks than anyone looks at."""
    if plan.world_size > MAX_RANKS:
        return []
    parts = rank_parts(plan, model.heads if model else None, (model.memory.sizes.blocks or None) if model else None)
    branches = ("cond", "uncond") if has_branches and (plan.dp, plan.cfg) == (1, 2) else None
    return [rank_json(part) | {"branch": branches and branches[part.places["cfg"]]} for part in parts]


def rank_json(part: RankPart) -> dict[str, Any]:
    """Ranges of blocks and heads are from the first to the last, both counted. share, stage: which, of how many. rows:
    of the batch, a fraction from where to where."""
    return {
        "rank": part.rank,
        "share": part.share,
        "rows": part.rows,
        "stage": part.stage,
        "blocks": part.blocks and [part.blocks[0], part.blocks[-1]],
        "heads": part.heads and [part.heads[0], part.heads[-1]],
        "tokens": part.tokens,
        "head_share": part.head_share,
        "weight_share": part.weight_share,
    }


def remarks_json(remarks: list[Remark] | tuple[Remark, ...]) -> list[dict[str, Any]]:
    return [{"key": each.key, "values": each.values, "text": each.text} for each in remarks]


def find_models(loaders: list[Loader]) -> tuple[list[Bounds], list[str]]:
    """The models of the loaders, each once, and why others are not known."""
    known, unknown = [], []
    for name, dtype, checkpoint in dict.fromkeys((one.model_name, one.dtype, one.checkpoint) for one in loaders):
        listed = list_checkpoints() if checkpoint else list_models()
        try:
            if name not in listed:
                raise RequestError(*why_not_listed(name))
            known.append(bounds_of(listed[name], stamp(listed[name]), dtype))
        except (RequestError, OSError) as error:
            unknown.append(str(error))
    return known, unknown


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes with the file, or with any file of the folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    states = ((file, file.stat()) for file in files if file.is_file())
    return tuple((str(file), state.st_mtime_ns, state.st_size) for file, state in states)


@functools.lru_cache(maxsize=32)
def bounds_of(path: Path, _stamp: tuple, dtype: str = AUTO) -> Bounds:
    """Of the model there, as a loader of that dtype takes it. _stamp: of the files, whose headers are read again when
    it changes. Raises RequestError."""
    if path.is_file():
        return bounds_of_host_file(describe_host_file(path, WEIGHT_DTYPES.get(dtype, OWN_CHOICE)))
    description = describe_folder(path)
    if (family := family_for(description.model_class)) is None:
        raise RequestError(f"{description.model_class} runs in scripts only (docs/scripts.md).")
    spec, config, model = spec_for(description.model_class), description.config, family.build(description)
    chosen = DTYPES.get(dtype) or folder_dtype(description, model)
    model.model_config.set_inference_dtype(chosen, None)
    parameters = sum(shape.numel() for shape in description.shapes.values())
    sizes = sizes_of_source(description.source(next(name for name, one in DTYPES.items() if one == chosen)))
    memory = ModelMemory(sizes, parameters, model, spec.geometry(config)[1])
    resolve = functools.partial(resolve_plan, config=config, spec=spec)
    return Bounds(resolve, spec.sizes(config).heads, memory, spec.guided(config))


def bounds_of_host_file(file: HostFile) -> Bounds:
    """Of a file that ComfyUI's own class runs."""
    module = file.module
    spec = host_spec(type(module))
    heads = sizes_of(module, spec).heads if spec and spec.blocks else None
    costs = file.costs()
    resolve_own = functools.partial(resolve_host_plan, module=module)
    auto = functools.partial(auto_host_plan, module=module, costs=costs)
    patch = patch_of(module, spec, LATENT_DIMS) if spec and spec.blocks else ()
    memory = ModelMemory(file.sizes, sum(one.numel() for one in module.parameters()), file.model, patch)
    return Bounds(resolve_own, heads, memory, by_call=auto, costs=costs)
