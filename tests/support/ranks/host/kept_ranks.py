"""`host.kept_ranks PLANS STEPS`:
samples with HiDream-O1 under one plan after the other, on the same weights, and by the plain class. Saves by plan and
sampling the largest relative error of a call, and by rank how many of the image's tokens its blocks got in each step.

A sampling has its prompts, each a call of its own, with a reference image or without. Every step brings new tensors, as
requests do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.compat import tree_map_only
from parallel_backend.groups.calls import Call
from parallel_backend.groups.mesh import build_mesh
from parallel_backend.models.checks import modules_at
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.plan import ParallelPlan
from tests.support.cases.host import CASES
from tests.support.cases.references import relative_error
from tests.support.ranks.host_ranks import flat

from comfy.ldm.hidream_o1.conditioning import build_extra_conds  # isort: skip

HEIGHT, WIDTH = 96, 160
TMS = 151673
Sampling = list[tuple[int, int]]  # by prompt: tokens of text, and which reference image, 0 for none
SAMPLINGS: dict[str, Sampling] = {
    "text": [(9, 0), (5, 0)],
    "another prompt": [(9, 0), (12, 0)],
    "reference": [(9, 1), (5, 1)],
    "another reference": [(9, 2), (5, 1)],
    "two references with one text": [(9, 1), (9, 2)],
    "more prompts than are kept": [(9, 0), (5, 0), (12, 0)],
}


def conditions(words: int, reference: int, noise: torch.Tensor) -> dict[str, Any]:
    """What ComfyUI makes of a prompt and a reference image."""
    ids = torch.tensor([[*range(11, 10 + words), TMS]])
    images = torch.rand(2, 1, 64, 96, 3, generator=torch.Generator().manual_seed(1))
    made = build_extra_conds(ids, noise, [images[reference - 1]] if reference else None)
    return {name: value for name, value in made.items() if name != "token_types"}


def steps_of(sampling: Sampling, steps: int) -> Iterator[list[Call]]:
    """The calls of each step, with latents and timesteps that no other step has."""
    generator = torch.Generator().manual_seed(3)
    for timestep in torch.linspace(900, 300, steps):
        noise = torch.randn(1, 3, HEIGHT, WIDTH, generator=generator)
        given = [conditions(*prompt, noise) | {"transformer_options": {}} for prompt in sampling]
        yield [Call((noise, timestep[None]), tree_map_only(torch.Tensor, torch.clone, kwargs)) for kwargs in given]


def plain(model: Any, sampling: Sampling, count: int) -> list[torch.Tensor]:
    """What the class gives. All calls stay in memory: the class takes two reference images for one if the second is
    where the first was."""
    model.clear_kv_cache()
    steps = list(steps_of(sampling, count))
    with torch.inference_mode():
        return [flat(model(*args, **kwargs)) for calls in steps for args, kwargs in calls]


def note_length(lengths: list[int], _block: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
    """Notes how many tokens a block is given on this rank."""
    lengths.append(next(iter([*args, *kwargs.values()])).shape[1])


def on_ranks(degrees: list[dict], steps: int) -> list[dict]:
    """PLANS: a list, of which the ranks take one after the other."""
    plans = [ParallelPlan.from_json(each) for each in degrees]
    model = CASES["hidream-o1"].build()
    meshes = [build_mesh(plan, torch.device("cpu")) for plan in plans]
    wanted = {}
    if dist.get_rank() == 0:
        wanted = {name: plain(model, sampling, steps) for name, sampling in SAMPLINGS.items()}
    module, found = ParallelModel(model, meshes[0], torch.float32), []
    for mesh in meshes:
        module.replan(mesh)
        (first, *_), lengths = modules_at(model, "language_model.layers"), list[int]()
        module.hooks.before(first, partial(note_length, lengths), with_kwargs=True)
        errors, seen = {}, {}
        for name, sampling in SAMPLINGS.items():
            lengths.clear()
            got = [module.run_calls(calls, steps) for calls in steps_of(sampling, steps)]
            seen[name] = list(lengths)
            if wanted:
                flats = [flat(each) for outputs in got for each in outputs or ()]
                errors[name] = max(relative_error(*pair) for pair in zip(flats, wanted[name], strict=True))
            module.forget()  # as a rank does before another sampling
        by_rank: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, seen)
        found.append({"errors": errors, "seen": by_rank})
    return found
