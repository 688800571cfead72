"""How ranks may share calls with what nodes put inside of the model, and whether they compile its blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ...parallel_backend.axes import BATCH_AXES, STAGE_AXES, TOKEN_AXES
from ...parallel_backend.costs.forward import ForwardCost, Work
from ...parallel_backend.plan import ParallelPlan
from ...worker.comfyui.call_keys import ALL_TOKENS, COMPILED, FACTS, KERNEL, NODE_FUNCTIONS, PATCHES, REPLACED
from ...worker.wire.tree import PLAIN
from .facts import Facts

# Values of `torch.compile`'s arguments.
WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune", "cudagraphs", "triton.cudagraphs")
Options = Mapping[str, Any]


def join(reasons: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(reasons))


def list_unshared(asked: Sequence[Options], plan: ParallelPlan, work: Work) -> Iterator[str]:
    """Yields the functions that would see only a part of what they need, by name. asked, work: see `limit_work`."""
    # Whether each rank runs calls with all their rows. Shares by speed cut them.
    are_whole = not work.parallel_calls % plan.ways(BATCH_AXES) and not plan.speeds
    for facts in (each for options in asked for each in options.get(FACTS, ())):
        needs = (
            (STAGE_AXES, False, "blocks"),
            (TOKEN_AXES, facts.splits_tokens or facts.between, "tokens"),
            (BATCH_AXES, facts.splits_rows or are_whole, "rows of the batch"),
        )
        for axes, is_right, what in needs:
            split = [f"{axis}={getattr(plan, axis)}" for axis in axes if getattr(plan, axis) > 1]
            if axes == STAGE_AXES and plan.patches > 1:
                split.append(f"patches={plan.patches}")
            if split and not is_right:
                yield f"{facts.place} of {facts.node} under {', '.join(split)} (it needs all {what} in one place)"


def limit_work(work: Work, asked: Sequence[Options]) -> Work:
    """Returns the work with what the nodes' functions allow to share. asked: the options of its calls."""
    facts: list[Facts] = [each for options in asked for each in options.get(FACTS, ())]
    tokens, rows = all(each.splits_tokens or each.between for each in facts), all(each.splits_rows for each in facts)
    chosen = {f", {options[name]}" for options in asked for name in (COMPILED, KERNEL) if options.get(name)}
    work = replace(work, chosen="".join(sorted(chosen)), splits_tokens=tokens, splits_rows=rows)
    if work.forward:
        gathers = max((count_gathers(each, work.forward) for each in asked), default=0)
        work = replace(work, forward=replace(work.forward, gathers=gathers))
    runs_apart = not rows and len(asked) > 1 and all(each.is_stateless for each in facts)
    return replace(work, parallel_calls=len(asked)) if runs_apart else work


def count_gathers(options: Options, forward: ForwardCost) -> int:
    """Returns how often a forward gathers all tokens for functions: after each block, or in each block of a UNet once
    for each place."""
    if ALL_TOKENS not in options:
        return 0
    functions = options.get(NODE_FUNCTIONS, {})
    places = sum(len(functions.get(part, ())) for part in (PATCHES, REPLACED)) if forward.exchanges else 1
    return forward.count * places


def compile_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those `torch.compile` arguments of ComfyUI's node with which the ranks compile the blocks; none if they
    do not, as for CUDA graphs: ranks exchange and fetch into other memory in each forward, and a CUDA graph would read
    the old one."""
    if not arguments:
        return {}
    backend, mode, options = arguments["backend"], arguments.get("mode"), arguments.get("options") or {}
    asked = [each for each in (mode, backend, *(name for name in options if options[name])) if each in WITH_CUDA_GRAPHS]
    if asked or not isinstance(backend, str):
        why = f"whose {asked[0]} makes CUDA graphs" if asked else "whose backend is a function here"
        log_once(f"The ranks run the model without torch.compile, {why}.")
        return {}
    log_once(f"The ranks compile the model's blocks ({backend}), which takes the first step longer.")
    options = {name: value for name, value in options.items() if type(value) in PLAIN}
    return {"backend": backend, "mode": mode, "dynamic": arguments.get("dynamic"), "options": options}


@cache
def log_once(words: str) -> None:
    logging.info("[ParallelDiT] %s", words)
