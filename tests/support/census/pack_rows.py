"""What node packs do inside of a model, in the ways of real packs: the pack of habits, as stock and in the ranks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.changes import sample_after
from tests.support.census.controlnets import looped
from tests.support.census.rows import Row, as_stock, equal, habit, refused

PACK = Path(__file__).parents[1] / "habit_pack"
HABIT_NODE, PATCH_NODE = "ModelHabit", "PatchHabit"
BLOCK_HABITS = (
    "a block's forward", "the forward of a block's class", "a hook", "a hook before", "fewer blocks",
    "a block with weights", "a block's forward as an object patch", "attention for everybody", "a cache",
    "a counting closure", "a count on the module", "an attention override", "numbers on the module",
)  # fmt: skip
BETWEEN = ("fewer blocks", "a block with weights")  # what runs between the blocks: the ranks share these
PACK_MODELS = ("wan", "sd3-dual", "lumina", "unet", "flux")
MOMENTS = ("begin", "call", "inside", "callback")
PLANS: tuple[dict[str, int], ...] = ({}, {"ulysses": 2}, {"cfg": 2})


def of_pack(census: Any, row: Row, model: Any, name: str, moment: str) -> list[torch.Tensor]:
    """A habit of the pack at a moment, and the model without it after that."""
    (changed,) = census.run(HABIT_NODE, model=model, habit=name, moment=moment)
    return [census.sample(row, changed), census.sample(row, model)]


def of_pack_apart(census: Any, row: Row, model: Any, name: str) -> list[torch.Tensor]:
    """A habit with texts of two lengths, which ComfyUI gives to the model in two calls."""
    (changed,) = census.run(HABIT_NODE, model=model, habit=name, moment="begin")
    ((text, given),) = census.conditioning(row.model, "negative")
    return [census.sample(row, changed, negative=[[text[:, :7], given]])]


def counted(census: Any, row: Row, model: Any, name: str, steps: int) -> list[torch.Tensor]:
    """A habit, and what its code inside counts, where its pack reads it."""
    nodes = sys.modules[census.nodes.NODE_CLASS_MAPPINGS[HABIT_NODE].__module__]
    before = nodes.count_calls()
    sampled = of_pack(census, replace(row, steps=steps), model, name, "call")
    return [*sampled, torch.tensor([float(nodes.count_calls() - before)])]


def in_turns(census: Any, row: Row, model: Any, *names: str, **other: Any) -> list[torch.Tensor]:
    """Habits of two models that take turns in each step; empty for none. other: fields of the second one's row."""
    second = census.load(replace(row, **other), hasattr(model, "remote_module"))
    first, second = (
        census.run(HABIT_NODE, model=each, habit=name, moment="callback")[0] if name else each
        for each, name in zip((model, second), names, strict=True)
    )
    texts = {which: census.conditioning(row.model, which) for which in ("positive", "negative")}
    given = {"model": first, "model_negative": second, "cfg": row.cfg, **texts}
    return [census.custom(row, model, guider=census.run("DualModelGuider", **given)[0])]


def freed_between(census: Any, row: Row, model: Any, device: str, node: str, **given: str) -> list[torch.Tensor]:
    """A node, and the ranks' memory is freed before each step. device: that the group takes its ranks' for."""
    (changed,) = census.run(node, model=model, **given)

    def free(executor: Any, *args: Any, **kwargs: Any) -> Any:
        with patch.object(census.group, "device", device):
            assert not hasattr(model, "remote_module") or census.group.park()
        return executor(*args, **kwargs)

    changed.add_wrapper_with_key("predict_noise", "free", free)
    return [census.sample(row, changed), census.sample(row, model)]


def from_second_call(census: Any, row: Row, model: Any, name: str) -> list[torch.Tensor]:
    """A habit that begins with the second call of the model."""
    (changed,) = census.run(HABIT_NODE, model=model, habit=name, moment="inside")
    ((around,), calls) = changed.get_wrappers("diffusion_model", "habit"), count()
    changed.remove_wrappers_with_key("diffusion_model", "habit")

    def late(executor: Any, *args: Any, **kwargs: Any) -> Any:
        return around(executor, *args, **kwargs) if next(calls) else executor(*args, **kwargs)

    changed.add_wrapper_with_key("diffusion_model", "late", late)
    return [census.sample(row, changed)]


CACHE = counted, "a first-block cache", 5  # the count is of the steps in which it skips blocks

WHY_LOST = "another model took a turn, or memory was freed."
OTHER = "fp8_e4m3fn"  # a dtype, so that a file makes another model
counted_freed = partial(freed_between, habit="a counting closure", moment="begin")
LOST = f"What nodes keep inside of the model from step to step may be lost: {WHY_LOST}"


def pack_rows() -> Iterator[tuple[str, Row]]:
    """Each habit. Models, moments and plans take turns: how a habit's code comes into a model does not depend on where
    the model's blocks are."""
    for number, name in enumerate(BLOCK_HABITS):
        model, moment = PACK_MODELS[number % len(PACK_MODELS)], MOMENTS[number % len(MOMENTS)]
        row = replace(
            equal(model), plan=PLANS[number % len(PLANS)], shared="ulysses=2" if name in BETWEEN else "one rank"
        )
        yield f"{name}, {moment}, {model}", habit(row, of_pack, name, moment)


PACK_ROWS: dict[str, Row] = {
    **dict(pack_rows()),
    "a pack's count, read outside": habit(equal(), counted, "a count on the module", 2, shared="one rank"),
    "a pack's first-block cache, its weights by blocks": habit(
        equal(), *CACHE, shared="ulysses=2 × shared weights", plan={"ulysses": 2, "weights": "shared"}
    ),
    "a pack's first-block cache on Wan": habit(equal("wan"), *CACHE, shared="ulysses=2", plan={}),
    "a pack's patch of attention": habit(equal(), of_pack, "attention's output", "begin", shared="one rank"),
    "a pack's hook in a quantised file": habit(equal(), of_pack, "a hook", "begin", form="fp8", shared="one rank"),
    "a pack's block": habit(equal(), of_pack, "a replaced block", "begin", shared="ulysses=2"),
    "a pack's patch that mixes rows": habit(equal("unet"), of_pack, "rows that mix", "begin", shared="ulysses=2"),
    "a pack's hook on texts of two lengths": habit(equal(), of_pack_apart, "a hook", plan={}, shared="cfg=2"),
    "a pack's patch that mixes rows on texts of two lengths, by speed": habit(
        equal("unet"),
        of_pack_apart,
        "rows that mix",
        plan={"cfg": 2, "speeds": (1, 0.4)},
        latent=(2, 4, 16, 16),
        shared="cfg=2",
    ),
    "a pack's count on texts of two lengths": habit(
        equal(), of_pack_apart, "a counting closure", plan={}, shared="one rank"
    ),
    "a pack's derived class": habit(equal(), of_pack, "a derived class", "begin", shared="one rank"),
    "a pack's count on a class": habit(equal(), of_pack, "a count on a class", "begin", shared="one rank"),
    "a pack's class that draws random numbers": habit(
        as_stock(), of_pack, "a class that draws random numbers", "begin"
    ),
    "a pack's complex numbers": habit(as_stock(), of_pack, "complex numbers", "begin", less="one rank"),
    "a pack's function beside its routes": habit(
        equal(), of_pack, "a function beside routes", "begin", shared="one rank"
    ),
    **{
        f"a pack's count {name}": habit(equal(), *does, plan={}, steps=3, said=LOST, **fields)
        for name, does, fields in (
            ("in two models in turn", (partial(in_turns, dtype=OTHER), "a counting closure", "a hook"), {}),
            ("in a file as two models in turn", (in_turns, "a hook", "a counting closure"), {}),
            ("while Free unloads the ranks", (counted_freed, "cpu", HABIT_NODE), {"shared": "one rank"}),
            ("while Free parks them", (counted_freed, "cuda", HABIT_NODE), {"dtype": OTHER}),
        )
    },
    # The cache is filled again at a later step, so the result is another one.
    "a key-value cache while Free unloads the ranks": habit(
        equal("flux-2"), freed_between, "cpu", "FluxKVCache", plan={"cfg": 2}, cfg=1.0, steps=3, said=LOST, rounded=True
    ),
    "two models in turn, one of them in stages": habit(
        equal(),
        partial(in_turns, dtype=OTHER, plan={"ulysses": 2}),
        *("", ""),
        plan={"pipefusion": 2},
        steps=4,
        said=f"PipeFusion runs some steps whole: {WHY_LOST}",
    ),
    "a pack's count that begins once the ranks run in stages": habit(
        equal(), from_second_call, "a counting closure", plan={"pipefusion": 2}, less="one rank"
    ),
    "a function of a pack's __init__": habit(as_stock(), of_pack, "a function of the package itself", "begin"),
}


# What packs put in the place of the method that a call of the model begins with.
# By habit: the moment, the model, the plan (none is auto) and the plan that runs. A function that goes on to the method
# that it replaces runs around the call, which is shared as asked. Others run in the ranks, between the blocks.
ENTRIES: dict[str, tuple[str, str, dict[str, int], str]] = {
    "the model's forward": ("call", "flux", {"cfg": 2}, "cfg=2"),
    "the model's _forward": ("begin", "wan", {}, "cfg=2"),
    "the forward of the model's class": ("callback", "unet", {}, "cfg=2"),
    "a forward of the pack's own": ("begin", "sd3-dual", {}, "ulysses=2"),
    "a _forward of the pack's own": ("call", "unet", {}, "one rank"),
    "the model's forward as an object patch": ("begin", "flux", {}, "cfg=2"),
    "a hook on the model": ("callback", "wan", {"cfg": 2}, "cfg=2"),
}


def looped_with_another_forward(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A function around the calls of the model, which the Parallel Sampler does not make one by one."""
    module = model.model.diffusion_model
    forward = module.forward
    with patch.object(module, "forward", lambda *args, **kwargs: 1.1 * forward(*args, **kwargs)):
        return looped(census, row, model)


def looped_with(census: Any, row: Row, model: Any, function: str) -> list[torch.Tensor]:
    """Something that runs in each step, and that no ComfyUI of today has, under the Parallel Sampler."""
    model = model.clone()
    if function == "an option":
        model.model_options["sampler_next_function"] = lambda args: args
    elif function == "a place":
        model.add_wrapper_with_key("around_a_branch", "next", lambda run, *args, **given: run(*args, **given))
    samplers = sys.modules["comfy.samplers"]
    usual = samplers.cfg_function
    other = (lambda *args, **given: 1.1 * usual(*args, **given)) if function == "guidance" else usual
    with patch.object(samplers, "cfg_function", other):
        return looped(census, row, model)


def with_wrapper(census: Any, row: Row, model: Any, name: str, moment: str) -> list[torch.Tensor]:
    """A habit, and a wrapper of another node."""
    model = model.clone()
    model.add_wrapper_with_key("diffusion_model", "rows", lambda run, *args, **given: 1.2 * run(*args, **given))
    return of_pack(census, row, model, name, moment)


WHOLE = "a class of the whole model"
ENTRY_ROWS: dict[str, Row] = {
    **{
        name: habit(equal(model), of_pack, name, moment, plan=plan, shared=shared)
        for name, (moment, model, plan, shared) in ENTRIES.items()
    },
    # The call has begun by then.
    "the model's _forward, inside": habit(
        equal(), of_pack, "the model's _forward", "inside", ignored=True, shared="ulysses=2"
    ),
    f"{WHOLE}, call": habit(equal(), with_wrapper, WHOLE, "call", shared="ulysses=2"),
    f"{WHOLE} with its own forward": habit(
        equal(), with_wrapper, f"{WHOLE} with its own forward", "begin", plan={}, shared="ulysses=2"
    ),
    f"{WHOLE} around its forward": habit(as_stock(), with_wrapper, f"{WHOLE} around its forward", "begin"),
    **{
        f"{what} of tomorrow under the Parallel Sampler": habit(
            refused(f"cannot honour {said}"), looped_with, what, ours=True
        )
        for what, said in {
            "guidance": "a change of ComfyUI's cfg_function",
            "an option": "the option 'sampler_next_function'",
            "a place": "the wrapper 'next'",
        }.items()
    },
    "the model's forward under the Parallel Sampler": habit(
        refused("cannot honour a change of its forward"), looped_with_another_forward, ours=True
    ),
}


# What packs put at ComfyUI's places for functions. How a function comes to the ranks does not depend on its place, so
# models, moments and plans take turns. And some of these functions as somebody has read them.
# By habit: the model, the moment, the plan (none is auto) and the plan that runs. Around blocks, and at some places of
# a UNet, the ranks can have all tokens.
PATCHES: dict[str, tuple[str, str, dict[str, int], str]] = {
    "before attention": ("flux", "begin", {}, "one rank"),
    "before attention to the text": ("unet", "sampling", {"ulysses": 2}, "ulysses=2"),
    "a text that is written over": ("unet", "sampling", {"ulysses": 2}, "ulysses=2"),
    "behind attention": ("flux", "call", {"cfg": 2}, "one rank"),
    "attention to the text in one block": ("unet", "begin", {"cfg": 2}, "ulysses=2"),
    "other places of a UNet": ("unet", "begin", {}, "one rank"),
    "fewer pixels in the depth": ("unet", "begin", {"ulysses": 2}, "one rank"),
    "a block that is skipped": ("sd3-dual", "call", {}, "ulysses=2"),
    "a block in its place": ("wan", "inside", {"ulysses": 2}, "ulysses=2"),
    "a single block in its place": ("flux", "begin", {}, "ulysses=2"),
    "behind each block": ("wan", "sampling", {"ulysses": 2}, "ulysses=2"),
    "attention in windows": ("unet", "callback", {"ulysses": 2}, "one rank"),
    "attention to an image in a region": ("unet", "begin", {"cfg": 2}, "ulysses=2"),
}


def patched(census: Any, row: Row, model: Any, name: str, moment: str) -> list[torch.Tensor]:
    """A habit at a moment, and the model without it after that."""
    (changed,) = census.run(PATCH_NODE, model=model, habit=name, of=row.model, moment=moment)
    return [census.sample(row, changed), sample_after(census, row, model)]


CHUNKS = "a feed-forward in chunks"
PATCH_ROWS: dict[str, Row] = {
    **{
        name: habit(equal(model), patched, name, moment, plan=plan, shared=shared)
        for name, (model, moment, plan, shared) in PATCHES.items()
    },
    CHUNKS: habit(equal("zimage"), of_pack, CHUNKS, "inside", plan={}, shared="one rank"),
}
# By the name of a function or class that has a row of facts, the habit that puts it inside.
READ = {
    "replacing.<locals>.replaced": "a block in its place",
    "WithReference": "attention to the text in one block",
    "Chunked": f"{CHUNKS} as an object patch",
}
REPLACING, REFERENCE, CHUNKED = READ


def read(
    census: Any, row: Row, model: Any, name: str, *, text: str = "", holds: bool = True, rows: bool = False
) -> list[torch.Tensor]:
    """name: in `READ`. text: that was read, if not its own."""
    found: Any = importlib.import_module("pack.nodes.inside.facts")
    node = census.nodes.NODE_CLASS_MAPPINGS[PATCH_NODE]
    functions: Any = sys.modules[node.__module__.replace("patch_habits", "patches")]
    target = functions.replacing(0.7) if name == REPLACING else getattr(functions, name)
    own = found.row(
        "Habit", f"{found.PACK}/patches", name, text=text or found.hash_text(target, ()), holds=lambda _v: holds,
        splits_tokens=True, splits_rows=rows,
    )  # fmt: skip
    given = {"model": model, "habit": READ[name], "moment": "begin"}
    (changed,) = census.run(HABIT_NODE, **given) if name == CHUNKED else census.run(PATCH_NODE, of=row.model, **given)
    with patch.dict(found.KNOWN, [own]):
        return [census.sample(row, changed)]


READ_ROWS: dict[str, Row] = {
    "a block that was read, with its rows apart": habit(
        equal(), partial(read, rows=True), REPLACING, plan={"cfg": 2}, shared="cfg=2"
    ),
    "a feed-forward of a text that nobody has read": habit(
        equal("wan"), partial(read, text="another"), CHUNKED, shared="one rank"
    ),
    "a feed-forward for which the row does not hold": habit(
        equal("wan"), partial(read, holds=False), CHUNKED, shared="one rank"
    ),
    "attention to the text that was read": habit(equal("unet"), read, REFERENCE, shared="ulysses=2"),
    "a feed-forward that was read": habit(equal("wan"), read, CHUNKED, shared="ulysses=2"),
}
