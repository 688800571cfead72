"""The pack of habits, as stock and in the ranks: what node packs do inside of a model, in the ways of real packs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.support.census.rows import Row, as_stock, equal, habit

Does = Callable[[Any, Row, Any], list[torch.Tensor]]
PACK, HABIT_NODE = Path(__file__).parents[1] / "habit_pack", "ModelHabit"
BLOCK_HABITS = (
    "a block's forward", "the forward of a block's class", "a hook", "a hook before", "fewer blocks",
    "a block with weights", "a block's forward as an object patch", "attention for everybody", "a cache",
    "a counting closure", "a count on the module", "an attention override", "numbers on the module",
)  # fmt: skip
BETWEEN = ("fewer blocks", "a block with weights")  # what runs between the blocks: the ranks share these
PACK_MODELS = ("wan", "sd3-dual", "lumina", "unet", "flux")
MOMENTS = ("begin", "call", "inside", "callback")
PLANS: tuple[dict[str, int], ...] = ({}, {"ulysses": 2}, {"cfg": 2})


def of_pack(name: str, moment: str) -> Does:
    """A habit of the pack at a moment, and the model without it after that."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        (changed,) = census.run(HABIT_NODE, model=model, habit=name, moment=moment)
        return [census.sample(row, changed), census.sample(row, model)]

    return does


def of_pack_apart(name: str) -> Does:
    """A habit with texts of two lengths, which ComfyUI gives to the model in two calls."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        (changed,) = census.run(HABIT_NODE, model=model, habit=name, moment="begin")
        ((text, given),) = census.conditioning(row.model, "negative")
        return [census.sample(row, changed, negative=[[text[:, :7], given]])]

    return does


def counted(name: str, steps: int) -> Does:
    """A habit, and what its code inside counts, where its pack reads it."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        nodes = sys.modules[census.nodes.NODE_CLASS_MAPPINGS[HABIT_NODE].__module__]
        before = nodes.count_calls()
        sampled = of_pack(name, "call")(census, replace(row, steps=steps), model)
        return [*sampled, torch.tensor([float(nodes.count_calls() - before)])]

    return does


def in_turns(*names: str, **other: Any) -> Does:
    """Habits of two models that take turns in each step; empty for none. other: fields of the second one's row."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        second = census.load(replace(row, **other), hasattr(model, "stand_in"))
        first, second = (
            census.run(HABIT_NODE, model=each, habit=name, moment="callback")[0] if name else each
            for each, name in zip((model, second), names, strict=True)
        )
        texts = {which: census.conditioning(row.model, which) for which in ("positive", "negative")}
        given = {"model": first, "model_negative": second, "cfg": row.cfg, **texts}
        return [census.custom(row, model, guider=census.run("DualModelGuider", **given)[0])]

    return does


def freed_between(name: str, device: str) -> Does:
    """A habit, and the ranks' memory is freed before each step. device: that the group takes its ranks' for."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        (changed,) = census.run(HABIT_NODE, model=model, habit=name, moment="begin")

        def free(executor: Any, *args: Any, **kwargs: Any) -> Any:
            with patch.object(census.group, "setup", census.group.setup._replace(device=device)):
                assert not hasattr(model, "stand_in") or census.group.park()
            return executor(*args, **kwargs)

        changed.add_wrapper_with_key("predict_noise", "free", free)
        return [census.sample(row, changed), census.sample(row, model)]

    return does


CACHE = counted("a first-block cache", 5)  # the count is of the steps in which it skips blocks

WHY_LOST = "another model took a turn, or memory was freed."
LOST = f"What nodes keep inside of the model from step to step may be lost: {WHY_LOST}"


def pack_rows() -> Iterator[tuple[str, Row]]:
    """Each habit. Models, moments and plans take turns: how a habit's code comes into a model does not depend on where
    the model's blocks are."""
    for number, name in enumerate(BLOCK_HABITS):
        model, moment = PACK_MODELS[number % len(PACK_MODELS)], MOMENTS[number % len(MOMENTS)]
        row = replace(
            equal(model), plan=PLANS[number % len(PLANS)], shared="ulysses=2" if name in BETWEEN else "one rank"
        )
        yield f"{name}, {moment}, {model}", habit(row, of_pack(name, moment))


PACK_ROWS: dict[str, Row] = {
    **dict(pack_rows()),
    "a pack's count, read outside": habit(equal(), counted("a count on the module", 2), shared="one rank"),
    "a pack's first-block cache, its weights by blocks": habit(
        equal(), CACHE, shared="ulysses=2 × shared weights", plan={"ulysses": 2, "weights": "shared"}
    ),
    "a pack's first-block cache on Wan": habit(equal("wan"), CACHE, shared="ulysses=2", plan={}),
    "a pack's patch of attention": habit(equal(), of_pack("attention's output", "begin"), shared="one rank"),
    "a pack's hook in a quantised file": habit(equal(), of_pack("a hook", "begin"), form="fp8", shared="one rank"),
    "a pack's block": habit(equal(), of_pack("a replaced block", "begin"), shared="ulysses=2"),
    "a pack's patch that mixes rows": habit(equal("unet"), of_pack("rows that mix", "begin"), shared="ulysses=2"),
    "a pack's hook on texts of two lengths": habit(equal(), of_pack_apart("a hook"), plan={}, shared="cfg=2"),
    "a pack's patch that mixes rows on texts of two lengths, by speed": habit(
        equal("unet"),
        of_pack_apart("rows that mix"),
        plan={"cfg": 2, "speeds": (1, 0.4)},
        latent=(2, 4, 16, 16),
        shared="cfg=2",
    ),
    "a pack's count on texts of two lengths": habit(
        equal(), of_pack_apart("a counting closure"), plan={}, shared="one rank"
    ),
    "a pack's derived class": habit(equal(), of_pack("a derived class", "begin"), shared="one rank"),
    "a pack's count on a class": habit(equal(), of_pack("a count on a class", "begin"), shared="one rank"),
    "a pack's class that draws random numbers": habit(
        as_stock(), of_pack("a class that draws random numbers", "begin")
    ),
    "a pack's complex numbers": habit(as_stock(), of_pack("complex numbers", "begin"), less="one rank"),
    "a pack's function beside its routes": habit(
        equal(), of_pack("a function beside routes", "begin"), shared="one rank"
    ),
    **{
        f"a pack's count {name}": habit(equal(), does, plan={}, steps=3, said=LOST, **fields)
        for name, does, fields in (
            ("in two models in turn", in_turns("a counting closure", "a hook", dtype="fp8_e4m3fn"), {}),
            ("in a file as two models in turn", in_turns("a hook", "a counting closure"), {}),
            ("while Free unloads the ranks", freed_between("a counting closure", "cpu"), {"shared": "one rank"}),
            ("while Free parks them", freed_between("a counting closure", "cuda"), {"dtype": "fp8_e4m3fn"}),
        )
    },
    "two models in turn, one of them in stages": habit(
        equal(),
        in_turns("", "", dtype="fp8_e4m3fn", plan={"ulysses": 2}),
        plan={"pipefusion": 2},
        steps=4,
        said=f"PipeFusion runs some steps whole: {WHY_LOST}",
    ),
    "a function of a pack's __init__": habit(as_stock(), of_pack("a function of the package itself", "begin")),
}
