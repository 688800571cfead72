"""PipeFusion equals its serial oracle, whatever the stages, the sequence parallelism, the guidance split."""

from __future__ import annotations

import itertools
import json
import math
from functools import cache

import pytest
import torch

from parallel_backend.models import known_spec, model_classes
from tests.support.cases import oracle
from tests.support.cases.pipefusion_cases import STAGED, STEPS, case_inputs, family_of, scheduler_of
from tests.support.cases.references import relative_error
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

TOLERANCE = 1e-5
HYBRIDS = [{}, {"ulysses": 2}, {"ring": 2}, {"cfg": 2}]


def case(
    family: str,
    scheduler: str,
    patches: int,
    sync_steps: int,
    short_negative: bool = False,
    speeds: tuple[float, ...] = (),
    **degrees: int,
) -> dict:
    plan = {**degrees, "patches": patches, "sync_steps": sync_steps} | ({"speeds": speeds} if speeds else {})
    return {
        "name": f"{family} {scheduler} {json.dumps(plan)}{' short negative' if short_negative else ''}",
        "family": family,
        "scheduler": scheduler,
        "plan": plan,
        "short_negative": short_negative,
        "world": math.prod(degrees.values()),
    }


# The full square on one family, and on the others enough to reach every branch.
STAGES, PATCHES, SYNC_STEPS = (2, 3, 4), (1, 2, 3, 5), (1, 3)


def is_cut(family: str) -> bool:
    """Whether images of the class can be cut into patches."""
    return bool(known_spec(family_of(family).model_class).image)


def is_slow(stages: int, patches: int, sync_steps: int, hybrid: int) -> bool:
    """Of places in the square's sides. The gate has each number of stages with each of patches, and each hybrid with
    every value of each other side; what is left open takes its values in turn, so that they meet in pairs, too."""
    is_in_turn = sync_steps == (stages + patches + hybrid) % 2
    return not is_in_turn or (hybrid > 0 and stages != (patches + hybrid) % 3)


CASES = [
    pytest.param(
        case("dit", "flow", PATCHES[each[1]], SYNC_STEPS[each[2]], pipefusion=STAGES[each[0]], **HYBRIDS[each[3]]),
        marks=[pytest.mark.slow] if is_slow(*each) else [],
    )
    for each in itertools.product(*(range(len(side)) for side in (STAGES, PATCHES, SYNC_STEPS, HYBRIDS)))
]
CASES += [case("dit", "flow", 3, 1, pipefusion=1, **hybrid) for hybrid in HYBRIDS]
CASES += [case("dit", name, 3, 2, pipefusion=2) for name in ("ddim", "dpm++", "euler", "heun", "unipc")]
CASES += [
    case(family, "flow", 3, 1, pipefusion=2, **hybrid)
    for family in STAGED
    if family != "dit" and is_cut(family)
    for hybrid in ({}, {"ulysses": 2})
]
CASES += [case("flux-dev", "flow", 2, 1, pipefusion=3)]
# Stages that begin and end in a list that takes text and image joined, or between the lists.
CASES += [case("flux2-dev", "flow", 2, 1, pipefusion=stages) for stages in (3, 4)]
CASES += [
    case(family, "flow", 3, 2, short_negative=True, pipefusion=2, **hybrid)
    for family, hybrid in (
        ("flux-dev", {}),
        ("flux-dev", {"ulysses": 2}),
        ("flux2-dev", {"ulysses": 2}),
        ("pixart-alpha", {"cfg": 2}),
    )
]
# Stages in proportion to the speed of their devices, and each patch's tokens too.
CASES += [case(family, "flow", 3, 1, pipefusion=2, speeds=(1, 0.4)) for family in ("dit", "flux-dev")]
CASES += [case("dit", "flow", 2, 1, pipefusion=2, speeds=(1, 0.5, 0.25, 1), **hybrid) for hybrid in HYBRIDS[1:]]
CASES += [
    case("dit", "flow", 4, 2, pipefusion=stages, **hybrid) for stages, hybrid in ((2, {}), (3, {}), (2, {"cfg": 2}))
]
ALL_SYNC = [case("dit", "flow", 3, STEPS, pipefusion=2), case("pixart-alpha", "dpm++", 2, STEPS, pipefusion=2)]
# Stages alone, for models whose image cannot be cut to patches.
ALL_SYNC += [case(family, "flow", 1, STEPS, pipefusion=2) for family in STAGED if not is_cut(family)]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, ranks: RankPool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """The latents of the cases of the tests selected, by name; all of a world size are run at once."""
    root, found = tmp_path_factory.mktemp("pipefusion"), {}
    selected = [case for (case,) in running(request, "case")]
    for name in {case["family"] for case in selected}:
        family_of(name).save(root / name)
    for world in sorted({case["world"] for case in selected}):
        own = [{**case, "folder": str(root / case["family"])} for case in selected if case["world"] == world]
        for _, made in ranks.run(world, "family_ranks", own, cases=len(own)):
            found |= made
    return found


@cache
def expected(
    family: str, scheduler: str, patches: int, sync_steps: int | None, short_negative: bool = False
) -> torch.Tensor:
    made = family_of(family)
    latents, conditions, negative = case_inputs(family, short_negative)
    return oracle.sample(
        made.build(), known_spec(made.model_class), made.reference, scheduler_of(scheduler), latents, conditions,
        negative, 3.0, patches, sync_steps, patch=made.patch, timestep_scale=made.timestep_scale,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pipefusion_equals_its_serial_oracle(case: dict, results: dict[str, torch.Tensor]) -> None:
    plan = case["plan"]
    wanted = expected(case["family"], case["scheduler"], plan["patches"], plan["sync_steps"], case["short_negative"])
    assert relative_error(results[case["name"]], wanted) <= TOLERANCE


def test_every_class_with_stages_is_compared() -> None:
    assert {family_of(name).model_class for name in STAGED} == {
        name for name in model_classes() if known_spec(name).blocks and not known_spec(name).unstaged
    }


@pytest.mark.parametrize("case", ALL_SYNC, ids=lambda case: case["name"])
def test_steps_that_are_all_sync_are_exact_sampling(case: dict, results: dict[str, torch.Tensor]) -> None:
    assert relative_error(results[case["name"]], expected(case["family"], case["scheduler"], 1, None)) <= TOLERANCE
