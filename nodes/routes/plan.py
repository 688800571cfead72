"""POST /paralleldit/plan: says what a Parallelize Model node would do before it is queued. Reads only model headers."""

from __future__ import annotations

import asyncio
import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from ...parallel_backend.axes import BATCH_AXES, TOKEN_AXES
from ...parallel_backend.costs.choose import list_divisors
from ...parallel_backend.device import Card
from ...parallel_backend.errors import ModelFileError, PlanError, RequestError
from ...parallel_backend.groups.mesh_layout import RankPart, rank_parts
from ...parallel_backend.models import spec_of
from ...parallel_backend.models.checks import attention_sizes_of
from ...parallel_backend.plan import ParallelPlan
from ...worker.settings import SettingsError
from ...worker.wire.file_marks import mark_files
from ...worker.wire.json_object import parse_object
from ..model.host_file import PICKLE_SUFFIXES, WEIGHT_DTYPES, HostFile, describe_host_file
from ..parallel_plan import AUTO, explain_devices, fit_to_machine, parse_plan
from ..plan_words import Remark, ResolvedPlan, remark, remarks_to_json
from ..workers.group import device_count, device_type, is_second_group, why_no_group
from ..workers.room import list_plan_cards
from . import MAX_BODY, ROUTES
from .loaded_file import find_loaded, list_missing
from .memory_estimate import MemoryEstimate
from .offers import list_offers, offer_fitting
from .predicted import expect_plan, predict_plans
from .question import Question, Sampled, Sampler, read_question, resolve_asked, runs_on_all_ranks
from .remedies import list_remedies

MAX_RANKS = 256  # more are counted, but not listed


@ROUTES.post("/paralleldit/plan")
async def plan_route(request: web.Request) -> web.Response:
    """Answers a question in JSON, see `read_question` and `answer`. Answers 400 with a sentence for anything else."""
    try:
        question = read_question(parse_object(await request.clone(client_max_size=MAX_BODY).read()))
    except ValueError as error:
        return web.Response(status=400, text=f"This is not a question about a plan: {error}.")
    try:
        return web.json_response(await asyncio.to_thread(answer, question))
    except SettingsError as error:
        return web.Response(status=500, text=str(error))


def answer(question: Question) -> dict[str, Any]:
    """Returns what would run, or the error that the backend would raise, with the widgets that caused it.

    plan: in words.
    tried: which of how many plans this is, while auto tries plans; else null.
    world: its number of ranks; `ranks` says what each of them holds.
    remarks: on it.
    memory: what the ranks keep of the weights and need, see `MemoryEstimate.to_json`; null if no model is known.
    predicted: see `predict_plans`.
    sized: whether the sampled size is known.
    note: what a person should know first: why the plan differs from the requested one, or what leaves ranks idle.
    missing: the model whose file is not there, with its folder in models/; in a list.
    unknown: why the model's file cannot be read, in a list.
    is_auto: whether auto chooses the plan. values: the plan's. is_lossy: whether it changes the image.
    offers: other plans that a person may want instead, see `list_offers`; values are null for auto.
    Raises SettingsError.
    """
    file, missing, unknown = find_model(question)
    sampled = Sampled(file, question) if file else None
    found: dict[str, Any] = {
        "device": device_type(),
        "missing": missing,
        "unknown": unknown,
        "is_auto": question.mode == AUTO,
    }
    found |= {"plan": "", "world": 0, "ranks": [], "memory": None, "predicted": None, "sized": False, "values": None}
    found |= {"remarks": [], "note": [], "is_lossy": False, "offers": [], "error": "", "widgets": []}
    if why_no_group():
        alone = fit_to_machine(ParallelPlan())
        return found | {"plan": str(alone.plan), "world": 1, "note": remarks_to_json(alone.note)}
    asked = None
    try:
        asked = parse_plan(question.mode, question.values)
        resolved, remarks = resolve(asked, sampled, bool(missing))
    except PlanError as error:
        return found | {"error": str(error), "widgets": list(error.fields), "offers": offer_fitting(asked, sampled)}
    if resolved is None:
        return found | {"world": device_count(), "remarks": remarks_to_json(remarks)}
    found |= describe_resolved(question, sampled, asked, resolved, remarks)
    return found | {"offers": list_offers(asked, resolved.plan, sampled, found["predicted"])}


def describe_resolved(
    question: Question,
    sampled: Sampled | None,
    asked: ParallelPlan | None,
    resolved: ResolvedPlan,
    remarks: list[Remark],
) -> dict[str, Any]:
    """Returns what `answer` says of the plan that runs. asked: by a person; None for auto."""
    plan, memory, predicted = resolved.plan, None, None
    if sampled:
        work, costs = sampled.largest_work, sampled.file.costs
        plan = costs.choose_patches(work, plan)
        estimate = MemoryEstimate.of(plan, sampled)
        memory = {**estimate.to_json(), "remedies": remedies_to_json(estimate)}
        remarks = [*remarks, *estimate.remarks(costs.predict(work, plan).computing if work.forward else 0)]
        predicted = predict_plans(plan, sampled)
    note = [*resolved.note]
    if is_second_group(question.group):
        note.append(remark("second_group", group=question.group))
    if asked is not None:
        note += explain_idle_axes(plan, sampled, question)
        note += [remark(f"lossy_{name}", name=getattr(plan, name)) for name in plan.lossy_fields]
    return {
        "plan": str(plan),
        "values": plan.to_json(),
        "is_lossy": bool(plan.lossy_fields),
        "tried": resolved.tried,
        "world": plan.world_size,
        "ranks": describe_ranks(plan, sampled, list_branches(question.samplers)),
        "memory": memory,
        "predicted": predicted,
        "sized": sampled is not None and sampled.largest is not None,
        "remarks": remarks_to_json(remarks),
        "note": remarks_to_json(note),
    }


def remedies_to_json(estimate: MemoryEstimate) -> dict[str, Any] | None:
    """Returns what would fit, as `found`, and the locale's words for it. Returns null if nothing is wrong. whole_would
    means: it fits now, because weights are fetched or ComfyUI's partial loading holds them."""
    if estimate.fits and not estimate.is_fetched_by_auto:
        return None
    found = list_remedies(estimate)
    is_loaded = estimate.fits or not estimate.sizes.blocks
    if is_loaded and not found:
        return None
    words = "whole_would" if is_loaded else "would_fit" if found else "nothing_fits"
    return {"words": words, "found": remarks_to_json(found)}


def explain_idle_axes(plan: ParallelPlan, sampled: Sampled | None, question: Question) -> list[Remark]:
    """Says which axis of a person's plan has nothing to split, and how its ranks could be used instead."""
    guided, pictures = question.may_guide, question.pictures
    if plan.cfg > 1 and not guided:
        return [explain_idle_axis(plan, sampled, "cfg", 1, "no_guidance")]
    parts = max((picture.batch_size for picture in pictures), default=0) * (1 + guided)
    if plan.dp == 1 or plan.ways(BATCH_AXES) <= parts or len(pictures) < max(1, len(question.samplers)):
        return []
    used = max(each for each in list_divisors(plan.dp) if each * plan.cfg <= max(parts, plan.cfg))
    return [explain_idle_axis(plan, sampled, "dp", used, "no_batch", parts=parts, ways=plan.ways(BATCH_AXES))]


def explain_idle_axis(
    plan: ParallelPlan, sampled: Sampled | None, axis: str, used: int, key: str, **values: int
) -> Remark:
    """Says that an axis has work for `used` of its groups only, and with which plan the model would use all ranks."""
    rest = getattr(plan, axis) // used
    others = (replace(plan, speeds=(), **{axis: used, to: getattr(plan, to) * rest}) for to in reversed(TOKEN_AXES))
    other = next((each for each in others if sampled and runs_on_all_ranks(each, sampled)), None)
    return remark(key, plan=str(other), **values) if other else remark(f"{key}_alone", **values)


def resolve(
    plan: ParallelPlan | None, sampled: Sampled | None, lacks_file: bool
) -> tuple[ResolvedPlan | None, list[Remark]]:
    """Returns the plan and the remarks on it. Raises PlanError if the model does not allow a requested plan.

    The plan is None if it is automatic and depends on something unknown.
    plan: what is asked for; None means auto.
    lacks_file: whether the model's file is missing.
    """
    if plan is not None:
        unchecked = [] if sampled else [remark("unchecked_file" if lacks_file else "unchecked")]
        return resolve_asked(plan, sampled), unchecked
    if sampled:
        return expect_plan(sampled)
    if (count := device_count()) <= 1:
        return ResolvedPlan(ParallelPlan()), explain_devices()
    return None, [*explain_devices(), remark("needs_file" if lacks_file else "needs_model", ranks=count)]


def list_branches(samplers: list[Sampler]) -> tuple[str, ...]:
    """Returns what the halves of a step's batch are under guidance, in order. Empty without guidance, or if samplers
    differ. A loop begins with cond, and a stock sampler's step with uncond."""
    orders = {("uncond", "cond") if one.is_stock else ("cond", "uncond") for one in samplers}
    return orders.pop() if len(orders) == 1 and all(one.cfg != 1 for one in samplers) else ()


def describe_ranks(plan: ParallelPlan, sampled: Sampled | None, branches: tuple[str, ...]) -> list[dict[str, Any]]:
    """Describes in JSON what each rank holds. The list is empty if there are too many ranks to look at. branches: see
    `list_branches`."""
    if plan.world_size > MAX_RANKS:
        return []
    heads = blocks = None
    if sampled:
        module, blocks = sampled.file.module, sampled.file.sizes.blocks or None
        spec = spec_of(type(module))
        heads = attention_sizes_of(module, spec).heads if spec and spec.attends else None
    parts = rank_parts(plan, heads, blocks)
    if (plan.dp, plan.cfg) != (1, 2):
        branches = ()
    pairs = itertools.zip_longest(parts, list_plan_cards(plan)[: len(parts)])
    return [
        rank_json(part, card) | {"branch": branches[part.coordinates["cfg"]] if branches else None}
        for part, card in pairs
    ]


def rank_json(part: RankPart, card: Card | None) -> dict[str, Any]:
    """The fields of the part. Ranges of blocks and heads name the first and the last, both included.

    card: null on the CPU, and for another machine.
    """
    ends = {name: each and [each[0], each[-1]] for name, each in (("blocks", part.blocks), ("heads", part.heads))}
    return {**vars(part), **ends, "card": card and {"index": card.index, "name": card.name, "total": card.total}}


def find_model(question: Question) -> tuple[HostFile | None, list[dict[str, str]], list[str]]:
    """Returns the model that a question is about, the file that is missing, and why a file cannot be read."""
    path = find_loaded(question.files)
    if path is None:
        return None, list_missing(question.files), []
    try:
        if path.suffix.lower() in PICKLE_SUFFIXES:
            raise ModelFileError(
                f"{path.name} is a pickle checkpoint, which is not read before the run.",
                "Its plan is known after the first run.",
            )
        files = [each for each in sorted(path.rglob("*")) if each.is_file()] or [path]
        return read_headers(path, mark_files(files), question.weight_dtype), [], []
    except (RequestError, OSError) as error:
        return None, [], [str(error)]


@functools.lru_cache(maxsize=32)
def read_headers(path: Path, _mark: str, dtype: str) -> HostFile:
    """Returns the model at this path, with weights of that dtype (by default ComfyUI's choice). Raises RequestError.
    _mark: of the files. Their headers are read again when it changes."""
    return describe_host_file(path, *WEIGHT_DTYPES.get(dtype, (None, False)))
