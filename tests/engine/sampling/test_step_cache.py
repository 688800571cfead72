"""Step caches under every plan equal the caches by definition in one process, and skip what those skip."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from parallel_backend.axes import BATCH_AXES
from parallel_backend.diffusers_model import DiffusersModel
from parallel_backend.errors import RequestError
from parallel_backend.groups.mesh import Axis, Mesh
from parallel_backend.models import spec_named
from parallel_backend.plan import ParallelPlan
from parallel_backend.sampling.caches import FIRST_BLOCK, TAYLORSEER, CacheSettings
from parallel_backend.sampling.denoiser import Denoiser, Watch
from parallel_backend.sampling.step_cache import StepCache
from parallel_backend.sampling.stepper import Stepper
from tests.support.cases.families import FAMILIES
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.library_plans import BY_FRAME, LONG
from tests.support.cases.pipefusion_cases import scheduler_of
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

TOLERANCE = 1e-5


def case(library: str, name: str, kind: str, plan: dict[str, int], **more: Any) -> dict[str, Any]:
    words = " ".join(f"{key}={value}" for key, value in more.items())
    return {"id": f"{name} | {kind} | {json.dumps(plan)} {words}", "library": library, "name": name, "kind": kind,
            "plan": plan, **more}  # fmt: skip


def is_known(row: str, model_class: str) -> bool:
    """Whether the class's blocks can be skipped together. A ControlNet, which adds to them, is for stock samplers."""
    spec = spec_named(model_class)
    assert spec
    return not (spec.uncached or spec.unstaged or spec.unshared or row in (*LONG, *BY_FRAME) or "controlnet" in row)


# One stream, two, two that are joined, and those with a refiner before; each way to split once.
CASES = [
    case("comfyui", "flux-dev", FIRST_BLOCK, {"ulysses": 2}, fetched=True),
    case("comfyui", "flux-dev", TAYLORSEER, {"ulysses": 2}),
    case("comfyui", "zimage", FIRST_BLOCK, {"ring": 2}),
    case("diffusers", "flux-dev", FIRST_BLOCK, {"ulysses": 2}, own=True),
    case("diffusers", "flux-dev", FIRST_BLOCK, {"cfg": 2}, short=True),
    case("diffusers", "pixart-alpha", TAYLORSEER, {"cfg": 2}),
    # Two rows for four ranks: two have none, and what is fetched waits for them.
    case("diffusers", "flux2-dev", FIRST_BLOCK, {"cfg": 2, "dp": 2}, fetched=True),
]
PLANS = [{"ring": 2, "ulysses": 2}, {"cfg": 2, "ulysses": 2}, {"ulysses": 3}, {"cfg": 2, "dp": 2}]
CASES += [
    pytest.param(case(library, "flux-dev", kind, plan, fetched=fetched), marks=[pytest.mark.slow])
    for library in ("comfyui", "diffusers")
    for kind in (FIRST_BLOCK, TAYLORSEER)
    for plan in PLANS
    for fetched in (False, True)
    if library == "diffusers" or not plan.keys() & BATCH_AXES
]
TOKENS = {"ulysses": 2}
CASES += [
    pytest.param(each, marks=[pytest.mark.slow])
    for kind in (FIRST_BLOCK, TAYLORSEER)
    for each in [
        *(case("diffusers", name, kind, TOKENS) for name in FAMILIES if is_known(name, FAMILIES[name].model_class)),
        *(case("comfyui", name, kind, TOKENS) for name, row in ROWS.items() if is_known(name, row.model_class)),
    ]
]
# Ranks of which the last has another threshold: where it alone would have blocks run they run, and where it alone would
# have them skipped they run, too.
FAULTS = [
    (case("comfyui", "wan-t2v", FIRST_BLOCK, {"ulysses": 2}, last=0.0), 0),
    (case("comfyui", "wan-t2v", FIRST_BLOCK, {"ulysses": 2}, last=1e9), None),
]
NOTHING = [
    case("comfyui", "flux-dev", FIRST_BLOCK, {"ulysses": 2}, threshold=0.0),
    case("diffusers", "flux-dev", FIRST_BLOCK, {"ulysses": 2}, threshold=0.0),
]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, ranks: RankPool, comfyui: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """The cases of the tests that run, by id."""
    root = tmp_path_factory.mktemp("caches")
    by_world: dict[int, list[dict[str, Any]]] = {}
    for name in ("case", "fault", "nothing"):
        for each, *_ in running(request, name):
            by_world.setdefault(ParallelPlan.from_json(each["plan"]).world_size, []).append(each)
    found: dict[str, dict[str, Any]] = {}
    for world, cases in by_world.items():
        (root / "cases.json").write_text(json.dumps(cases))
        ranks.run(world, "cached.cache_ranks", str(root / "cases.json"), str(root / "out.json"))
        found.update(json.loads((root / "out.json").read_text()))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_cache_on_ranks_equals_the_cache_in_one_process(case: dict, results: dict[str, dict[str, Any]]) -> None:
    result = results[case["id"]]
    skipped, forwards = result["skipped"]
    assert result["expected"] == [skipped, forwards]
    assert 0 < skipped < forwards
    assert result["error"] <= TOLERANCE
    assert result["lossy"] > TOLERANCE, "what is skipped makes no difference, and so shows nothing"
    assert not result["left"], "it leaves something on the model"


@pytest.mark.parametrize(("fault", "skipped"), FAULTS, ids=lambda value: value["id"] if isinstance(value, dict) else "")
def test_a_rank_that_would_decide_otherwise_goes_with_the_others(
    fault: dict, skipped: int | None, results: dict[str, dict[str, Any]]
) -> None:
    result = results[fault["id"]]
    assert result["skipped"][0] == (result["expected"][0] if skipped is None else skipped)
    if skipped is None:
        assert result["error"] <= TOLERANCE
    else:
        assert result["equal"]


@pytest.mark.parametrize("nothing", NOTHING, ids=lambda case: case["id"])
def test_a_threshold_of_zero_changes_no_bit(nothing: dict, results: dict[str, dict[str, Any]]) -> None:
    result = results[nothing["id"]]
    assert result["skipped"][0] == 0
    assert result["equal"]


class Failure(Exception):
    pass


class Fails(Watch):
    """Ends a run by an error in its fourth step."""

    def stepped(self, step: int, timestep: float, denoised: torch.Tensor | None) -> None:
        if step == 3:
            raise Failure


@pytest.mark.parametrize("kind", [FIRST_BLOCK, TAYLORSEER])
def test_a_run_that_fails_leaves_nothing_to_the_next(kind: str) -> None:
    transformer = alone()
    latents, _, conditions = FAMILIES["flux-dev"].inputs(1, 8, 8)
    own = [set(vars(module)) for module in transformer.model.modules()]

    def sample(watch: Watch) -> torch.Tensor | None:
        settings = CacheSettings(kind, threshold=0.5, interval=2)
        return Denoiser(transformer).sample(
            latents, Stepper(scheduler_of("flow")), conditions, cache=settings, watch=watch
        )

    right, watch = sample(Watch()), Watch()
    with pytest.raises(Failure):
        sample(Fails())
    assert [set(vars(module)) for module in transformer.model.modules()] == own
    again = sample(watch)
    assert right is not None
    assert again is not None
    assert again.equal(right)
    assert watch.skipped
    assert watch.skipped.skipped


@pytest.mark.parametrize("plan", [{"patches": 2}, {"pipefusion": 2, "patches": 1}], ids=str)
def test_a_cache_is_refused_where_blocks_or_tokens_are_apart(plan: dict[str, int]) -> None:
    with pytest.raises(
        RequestError, match=r"(?s)'first block' decides for all blocks and all tokens at once.*cache=none"
    ):
        CacheSettings(FIRST_BLOCK).check(ParallelPlan(**plan))


@pytest.mark.parametrize(
    ("model_class", "why"),
    [
        ("comfy.ldm.wan.model.VaceWanModel", "cannot be skipped together: those of VACE run between the others"),
        ("comfy.ldm.wan.model.WanModel_S2V", "cannot be skipped together: it adds sound between them"),
        ("comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel", "The blocks of Module are not known here"),
        ("of.nobody", "The blocks of Module are not known here"),
    ],
)
def test_a_class_whose_blocks_cannot_be_skipped_is_refused_by_name(model_class: str, why: str) -> None:
    model: Any = SimpleNamespace(mesh=alone().mesh, model=torch.nn.Module(), spec=spec_named(model_class))
    with pytest.raises(RequestError, match=why):
        StepCache(model, CacheSettings(FIRST_BLOCK))


def alone() -> DiffusersModel:
    """A family in one process."""
    plan = ParallelPlan()
    mesh = Mesh(
        plan, torch.device("cpu"), dict.fromkeys((*plan.degrees(), "batch", "sequence"), Axis(None, 1, 0)), None
    )
    return DiffusersModel(FAMILIES["flux-dev"].build(), mesh)
