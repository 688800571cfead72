"""`library.own_loop_ranks`: what pipelines' own loops do under a plan.

Returns what each rank found, and its latents by case.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend import ParallelPlan, parallelize, unparallelize
from tests.support.cases.families import FAMILIES
from tests.support.cases.library_cases import CALLS, sd3_with_encoders, seeded
from tests.support.cases.own_loop_cases import (
    INT4,
    LOOPS,
    LOOPS_OF_TWO,
    OWN_CALLS,
    PATCHES,
    LoopCase,
    pipeline_of,
)


def looped(case: LoopCase) -> dict[str, torch.Tensor]:
    """Latents of a pipeline's call, and of the same call again."""
    loop, pipeline = LOOPS[case.loop], pipeline_of(case)
    parallelize(pipeline, case.plan)
    first, again = (CALLS[loop.call].run(pipeline, 1, seeded()) for _ in range(2))
    if pipeline.transformer.parallel_transformer.pipeline.kinds:
        raise SystemExit(f"{case} keeps keys and values when its call has ended.")
    unparallelize(pipeline)
    return {f"{case}": loop.latents(first), f"{case}, again": loop.latents(again)}


def own_call(name: str) -> tuple[dict[str, torch.Tensor], dict[str, list[int]]]:
    """What a whole pipeline's call returns, and how many rows its encoders and its decoder had here, by call."""
    call, pipeline = OWN_CALLS[name], sd3_with_encoders()
    rows: dict[str, list[int]] = {"text_encoder": [], "decoder": []}
    watched = {"text_encoder": pipeline.text_encoder.text_model.encoder.layers[0], "decoder": pipeline.vae.decoder}
    for part, module in watched.items():
        module.register_forward_pre_hook(lambda _, args, part=part: rows[part].append(len(args[0])))
    parallelize(pipeline, call.plan, vae=call.vae, images=call.images)
    found = call.run(pipeline)
    unparallelize(pipeline)
    return found, rows


class Loop:
    """A loop around Flux's model that does what a test wants. It counts what runs in this rank."""

    def __init__(self, plan: ParallelPlan) -> None:
        self.transformer: Any = FAMILIES["flux-dev"].build()
        self.scheduler = SimpleNamespace(timesteps=torch.tensor([1.0, 0.5]))
        self.plain: Any = FAMILIES["flux-dev"].build()
        self.counted: Counter[str] = Counter()
        self.transformer.transformer_blocks[0].register_forward_hook(lambda *_: self.counted.update(["block"]))
        parallelize(self, plan)
        self.worst = 0.0

    def conditions(self, seed: int, tokens: int = 6) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "encoder_hidden_states": torch.randn(1, tokens, 32, generator=generator),
            "pooled_projections": torch.randn(1, 16, generator=generator),
            "txt_ids": torch.zeros(tokens, 3),
        }

    def ask(self, step: int, conditions: dict[str, torch.Tensor], shift: float = 0.0) -> None:
        """Calls the model, and compares with the plain one. shift: of the latents."""
        generator = torch.Generator().manual_seed(100 + step)
        ids = torch.cat([torch.zeros(12, 1), torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0))], 1)
        given = {
            "hidden_states": torch.randn(1, 12, 16, generator=generator) + shift,
            "timestep": torch.tensor([1.0 - step / 10]),
            "guidance": torch.ones(1),
            "img_ids": ids,
            **conditions,
        }
        with torch.no_grad():
            expected = self.plain(**given, return_dict=False)[0]
            got = self.transformer(**given, return_dict=False)[0]
        self.worst = max(self.worst, ((got - expected).norm() / expected.norm()).item())


@contextmanager
def warned() -> Iterator[io.StringIO]:
    """What the log warns of meanwhile."""
    told, log = io.StringIO(), logging.getLogger()
    handler, before = logging.StreamHandler(told), log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    try:
        yield told
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def loops() -> dict[str, Any]:
    """What loops with guidance in two calls found: the worst error, how many blocks ran here by step, and what the log
    says."""
    found: dict[str, Any] = {}
    for name in LOOPS_OF_TWO:
        with warned() as told:
            found[name] = {**loop_of_two(name), "told": told.getvalue()}
    return found


def loop_of_two(name: str) -> dict[str, Any]:
    loop = Loop(ParallelPlan(cfg=2))
    cond, uncond, other = (loop.conditions(seed) for seed in range(3))
    ran = []
    for step in range(6):
        before = loop.counted["block"]
        if name == "other conditions each step":
            cond, uncond = (loop.conditions(10 * step + seed) for seed in range(2))
        loop.ask(step, cond)
        if name == "other prompt" and step == 3:
            uncond = other
        if name == "written" and step == 3:
            uncond["encoder_hidden_states"].mul_(2)
        skips = name == "never two" or name == "one call" and step in (2, 3)
        if not skips:
            apart = name == "always other latents" or name == "other latents" and step > 2
            loop.ask(step, uncond, 0.1 if apart else 0.0)
        if name == "other order" and step == 3:
            cond, uncond = uncond, cond
        ran.append(loop.counted["block"] - before)
    unparallelize(loop)
    return {"worst": loop.worst, "ran": ran}


def on_ranks() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    world = dist.get_world_size()
    results: dict[str, torch.Tensor] = {}
    for case in (*PATCHES, INT4):
        if case.plan.world_size == world:
            results.update(looped(case))
    found = loops() if world == 2 else {}
    for name in OWN_CALLS if world == 2 else ():
        tensors, found[name] = own_call(name)
        results.update({f"{name}, {key}": each for key, each in tensors.items()})
    return found, results
