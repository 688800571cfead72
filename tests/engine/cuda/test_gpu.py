"""On real GPUs, or with --device cpu on the CPU: the promises that `test_labelled` makes without one, and others.

Every model of both libraries computes what the CPU does, on one rank and under each plan; groups are built again and
again with their device bound, parked weights leave the device, and a lack of memory ends a request and no more. The
report of `python3 dev.py gpu` counts the tests by their property "group", and shows the largest "error" of each.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_backend.plan import ParallelPlan
from parallel_backend.seams.exchange.ring import plain_attention_with_lse
from parallel_backend.seams.kernels.backends import choose_backend
from tests.support.cases.families import FAMILIES, WIDE, Family
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.library_plans import LONG, allows, plans
from tests.support.cases.references import relative_error
from tests.support.cases.vaes.diffusers_vaes import ON_DEVICES as VAES
from tests.support.cases.vaes.host_vaes import WITHOUT_NOISE
from tests.support.group.direct_group import FLUX, DirectGroup, direct_on
from tests.support.group.memory import full_card, little_memory
from tests.support.labelled.own_waits import WAITS_INSIDE
from tests.support.ranks.cuda.fresh import run_ranks
from tests.support.ranks.cuda.libraries import DTYPES
from tests.support.ranks.cuda.resumed import told_by_ranks
from tests.support.tiers import running
from worker.errors import OutOfMemory
from worker.host.client import WorkerGroup

pytestmark = pytest.mark.gpu

Case = tuple[str, str, dict[str, Any], str]
# Of the CPU in fp32, whose sums go in another order; or of what the plain class itself loses on the same device.
FP32, BF16, WORSE_THAN_PLAIN = 1e-4, 2e-2, 1.5
ALONE: dict[str, Any] = {}
KERNELS = ("native", "cudnn", "flash", "flash3")  # sage computes in 8 bits and promises less
STAGED, COMPILED = ("flux-dev", "pixart-alpha", "sd3.5", "wan-t2v"), ("dit", "flux-dev", "wan-t2v")
ON_ALL_CARDS = {"diffusers": ("pixart-alpha", "flux-dev", "wan-t2v"), "comfyui": ("flux-dev", "qwen-image", "wan-vace")}
MANY_HEADS = FLUX.of_config(num_attention_heads=4)
# Of its latents: the hidden states of the others dwarf whatever a rank, or its card, has left.
SMALL, LARGE, HUGE = (16, 16), (160, 160), (1024, 1024)
TAKEN = 1.02  # times what tensors need: the last step's messages may be under way when the request ends
NEAR_NOTHING = 0.25  # of the weights: kernels keep some memory to work in
CARDS = torch.cuda.device_count() or 2
RANKS = max(2, CARDS)  # two share a single card
MESHES_SECONDS = 300.0


def of_the_whole_machine() -> dict[str, int]:
    """A plan of two axes, where there are ranks for it."""
    return {"ring": RANKS // 2, "ulysses": 2} if RANKS % 2 == 0 else {"ring": RANKS}


def cases() -> Iterator[tuple[bool, Case]]:
    """Each with whether it is one of each kind, which run without --slow."""
    for library, names in (("diffusers", FAMILIES), ("comfyui", ROWS)):
        for place, name in enumerate(names):
            able = plans(library, name)
            for plan, dtype in itertools.product([ALONE, *able], ("fp32", "bf16")):
                in_turn = not plan or able.index(plan) == place % min(2, len(able))
                yield in_turn and dtype == "fp32", (library, name, plan, dtype)
    stages = [{"pipefusion": 2, "patches": patches} for patches in (1, 2)]
    for place, (plan, name) in enumerate(itertools.product(stages, STAGED)):
        yield not place, ("diffusers", name, plan, "fp32")
    for plan, row in itertools.product(stages, ROWS):
        if row not in LONG and allows(row, plan):
            yield row == "flux-dev", ("comfyui", row, plan, "fp32")
    if CARDS > 2:
        for library, names in ON_ALL_CARDS.items():
            for name, dtype in itertools.product(names, ("fp32", "bf16")):
                yield True, (library, name, of_the_whole_machine(), dtype)
    for place, name in enumerate(VAES):
        for plan in (ALONE, {"dp": 2}):
            yield not place, ("vae", name, plan, "fp32")
    for name, plan in itertools.product(WITHOUT_NOISE, (ALONE, {"dp": 2})):
        yield name == "wan-2.1", ("host-vae", name, plan, "fp32")
    for name, kernel in itertools.product(FAMILIES, KERNELS):
        yield name == "flux-dev", ("diffusers", name, {"attention": kernel}, "bf16")
    for name in COMPILED:
        yield False, ("compiled", name, ALONE, "bf16")


CASES = [
    pytest.param(*case, marks=[] if is_quick else [pytest.mark.slow], id="-".join(map(str, case)))
    for is_quick, case in cases()
]
DEEP = [
    ("memory", "deep", plan, "fp32")
    for plan in ({"ring": 2}, {"pipefusion": 2, "patches": 4}, {"ring": 2, "ulysses": 2})
]


def world_size(plan: dict[str, Any]) -> int:
    return ParallelPlan.from_json(plan).world_size


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """The kind: "cuda" or "cpu"."""
    return request.config.getoption("--device")


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest,
    device: str,
    comfyui: Path,
    own_ranks: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[dict[str, Any]]]:
    """What each rank tells of the cases that this session runs."""
    root, found = tmp_path_factory.mktemp("cases"), {}
    wanted = running(request, "library", "name", "plan", "dtype")
    for world in sorted({world_size(plan) for _, _, plan, _ in wanted}):
        own = [case for case in wanted if world_size(case[2]) == world]
        found |= told_by_ranks(device, world, own, root)
    return found


@pytest.fixture
def by_rank(
    library: str,
    name: str,
    plan: dict[str, Any],
    dtype: str,
    device: str,
    told: dict[str, list[dict[str, Any]]],
    record_property: Callable[[str, object], None],
) -> list[dict[str, Any]]:
    """What each rank tells of the test's case."""
    words = " ".join(f"{axis}={degree}" for axis, degree in plan.items()) or "one rank"
    shared = ", two ranks on one card" if device == "cuda" and world_size(plan) > CARDS else ""
    record_property("group", f"{library}, {words}, {dtype}{shared}")
    found = told[json.dumps([library, name, plan, dtype])]
    for rank, each in enumerate(found):
        if "failed" in each:
            pytest.fail(f"rank {rank}: {each['failed']}", pytrace=False)
        if "refused" in each:
            pytest.skip(each["refused"])
    return found


@pytest.mark.parametrize(("library", "name", "plan", "dtype"), CASES)
def test_a_model_computes_what_it_does_on_the_cpu(
    library: str,
    name: str,
    plan: dict[str, Any],
    dtype: str,
    by_rank: list[dict[str, Any]],
    record_property: Callable[[str, object], None],
) -> None:
    error = by_rank[0]["error"]
    record_property("error", error)
    assert error <= max(FP32 if dtype == "fp32" else BF16, WORSE_THAN_PLAIN * by_rank[0].get("plain", 0.0))
    for found in by_rank:
        assert not found["inside"] or name in WAITS_INSIDE, f"the host waits inside of blocks: {found['inside']}"


@pytest.mark.parametrize("keys", [1, 77])
@pytest.mark.parametrize("is_masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_auto_has_a_kernel_for_each_dtype_that_this_card_runs(
    name: str, is_masked: bool, keys: int, device: str, record_property: Callable[[str, object], None]
) -> None:
    """Also under ring, whose kernels torch does not choose. cuDNN's takes no single key."""
    dtype, generator = DTYPES[name], torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(2, 4, tokens, 64, generator=generator).to(dtype) for tokens in (50, keys, keys))
    mask = torch.randn(2, 1, 50, keys, generator=generator).to(dtype) if is_masked else None
    right, right_lse = plain_attention_with_lse(q, k, v, mask, None)
    given = [each if each is None else each.to(device) for each in (q, k, v, None, mask)]
    found = choose_backend("auto", given[0].device, dtype, 64, ring=1).attend(*given)
    shared, lse = choose_backend("auto", given[0].device, dtype, 64, ring=2).attend_with_lse(*given)
    error = max(relative_error(each.cpu().float(), right.float()) for each in (found, shared))
    record_property("group", f"attention=auto, {name}")
    record_property("error", error)
    assert error <= (FP32 if name == "fp32" else BF16)
    torch.testing.assert_close(lse.cpu(), right_lse, atol=BF16, rtol=BF16)


@pytest.mark.parametrize(
    ("library", "name", "plan", "dtype"),
    [
        pytest.param(*case, marks=[] if world_size(case[2]) == 2 else [pytest.mark.slow], id=str(case[2]))
        for case in DEEP
    ],
)
def test_a_sampling_takes_the_memory_that_is_predicted(
    library: str, name: str, plan: dict[str, Any], dtype: str, by_rank: list[dict[str, Any]]
) -> None:
    for found in by_rank:
        print("MiB " + ", ".join(f"{what} {size / 2**20:.1f}" for what, size in found.items() if what != "case"))
        assert found["taken"] <= TAKEN * found["needed"]
        assert found["needed"] <= found["predicted"]


@pytest.mark.parametrize("plan", [of_the_whole_machine(), {"pipefusion": RANKS}], ids=["tokens", "stages"])
def test_a_mesh_of_all_cards_is_built_again_and_again(
    plan: dict[str, int], device: str, own_ranks: None, tmp_path: Path
) -> None:
    """With the device bound, as torchrun's ranks have it: a group whose name comes again would wait for ever."""
    names = tmp_path / "names"
    began = time.monotonic()
    codes, said = run_ranks(
        tmp_path,
        RANKS,
        "cuda.mesh_rank",
        [json.dumps(plan), str(names), device],
        lambda: time.monotonic() - began < MESHES_SECONDS,
    )
    assert codes == [0] * RANKS, said


@pytest.fixture(scope="module")
def group(device: str, own_ranks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    group = WorkerGroup(device, tmp_path_factory.mktemp("group") / "logs")
    yield group
    group.stop()


def two_at_most(group: WorkerGroup, folder: Path, family: Family) -> DirectGroup:
    return direct_on(group, folder, family, ulysses=min(2, CARDS))


def test_a_parked_group_leaves_its_memory_to_others_until_it_is_used(
    device: str, group: WorkerGroup, tmp_path: Path
) -> None:
    """The CPU's has no accelerator to free: it unloads."""
    direct = two_at_most(group, tmp_path, WIDE)
    right, weights = direct.forward(8, 8), Path(direct.source.files[0]).stat().st_size
    loads, free = group.status()["counts"]["load"], 0
    if device == "cuda":
        assert group.used_device_bytes() >= weights
        free, _ = torch.cuda.mem_get_info()
    assert group.park()
    assert group.used_device_bytes() < NEAR_NOTHING * weights
    if device == "cuda":
        assert torch.cuda.mem_get_info()[0] - free > (1 - NEAR_NOTHING) * weights
        assert group.status()["state"] == "parked"
    direct.load()
    assert direct.forward(8, 8).equal(right)
    assert group.status()["counts"]["load"] == loads + (device == "cpu")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_outlives_a_lack_of_memory_on_any_rank(
    rank: int, device: str, group: WorkerGroup, tmp_path: Path
) -> None:
    if device == "cuda" and rank >= CARDS:
        pytest.skip("needs two GPUs, and there is one here")
    direct = two_at_most(group, tmp_path, MANY_HEADS)
    before, pids = direct.forward(*SMALL), direct.pids()
    lack = full_card(rank) if device == "cuda" else little_memory(pids[rank])
    with lack, pytest.raises(OutOfMemory, match=f"Rank {rank} ran out of memory"):
        direct.forward(*(HUGE if device == "cuda" else LARGE))
    direct.load()
    assert relative_error(direct.forward(*SMALL), before) <= FP32
    assert direct.pids() == pids
