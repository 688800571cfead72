"""The CUDA path without a GPU: both libraries on tensors that say they are on one, see `tests/support/labelled`.

What is shown: the numbers are right, no tensor is left on another device, attention's kernels get strides that they
take, and the host waits for the device in no block, and a small number of times a forward. Forwards of ComfyUI's
classes go the whole way from its process to the ranks and back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cases.families import FAMILIES
from tests.support.cases.host import CASES as ROWS
from tests.support.cases.library_plans import plans
from tests.support.labelled.own_waits import WAITS, WAITS_INSIDE
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

# Its programs of ranks start CUDA's runtime, which says so.
pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="torch's build for CUDA asks a driver about tensors that say they are on a card",
)
Case = tuple[str, str, dict[str, int]]
T4 = "7.5"  # the compute capability of a card without the flash kernel, and without kernels for bf16
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2, f"fp16 on {T4}": 5e-3, f"bf16 on {T4}": 5e-2}  # of the CPU in fp32
ALONE: dict[str, int] = {}
# At the end of a forward that goes the whole way, rank 0 waits for its device, and for its prediction's copy. ComfyUI's
# process waits to compare what the ranks hold, and to send the latents.
AT_THE_END = {"comfyui": 2}
OF_COMFYUI = 2
OF_VAE = {"vae": 1, "host-vae": 1}  # the latents or pixels that a VAE is given
HALVES = [  # with masks, whose strides half precision is strict about, and without
    ("diffusers", name, {"ring": 2})
    for name in ("hunyuanvideo", "chroma-masked", "qwenimage-mask", "lumina2-masked", "flux-dev")
]
ON_T4 = [HALVES[0], HALVES[-1]]  # with masks, and without
# What a step has more: guidance by two calls, and a ControlNet's residuals.
STEPS = [
    ("comfyui", "flux-dev × 2", {"cfg": 2}),
    ("comfyui", "flux-controlnet", {"ulysses": 2}),
]
# By size, the conditions of a call (one is the schedule), the bytes of its latents and of its prediction, and whether
# the model returns rows that are not one after the other, which one kernel gathers.
ADDED = {
    "Flux, 1024×1024": (4, 1 << 20, 0),
    "SDXL, 1024×1024": (3, 1 << 18, 0),
    "Wan, 480×832, 81 frames": (2, 8386560, 1),
}
NUMBER = 4  # bytes, of the timestep and of the noise level
STAGES = [
    ("diffusers", name, {"pipefusion": 2, "patches": patches})
    for name, patches in (("flux-dev", 2), ("pixart-alpha", 1))
]
# Of each kind one, or what differs on a GPU: which rows a rank has, and attention. Each of two ranks does what one
# does, and exchanges rows.
VAES = {
    "vae": ("odd height, batch of 2", "more ranks than rows", "no attention", "dc", "cogvideox", "hunyuan-video"),
    "host-vae": ("hunyuan-video", "wan-2.1", "ltx-0.9", "cosmos"),
}


def waits(library: str, name: str) -> int:
    """How often the host waits by the model's own code."""
    return WAITS.get(f"{library} {name}", 0) + WAITS_INSIDE.get(name, 0)


def models() -> Iterator[Case]:
    """Of each class the model in which the host waits most, under one plan in turn, or on one rank. Its other models
    differ in inputs and sizes."""
    most: dict[tuple[str, str], str] = {}
    for library, own in (("diffusers", FAMILIES), ("comfyui", ROWS)):
        for name in sorted(own, key=lambda name: -waits(library, name)):
            most.setdefault((library, own[name].model_class), name)
    for place, ((library, _), name) in enumerate(most.items()):
        able = plans(library, name)
        yield library, name, able[place % len(able)] if able else ALONE


def cases() -> list[Any]:
    two_ranks = [(library, name, {"dp": 2}) for library, names in VAES.items() for name in names]
    by_dtype = {"fp32": [*models(), *two_ranks, *STAGES, *STEPS], "bf16": HALVES}
    by_dtype |= {f"{half} on {T4}": ON_T4 for half in ("fp16", "bf16")}
    return [
        pytest.param(*case, dtype, id=f"{'-'.join(map(str, case))}-{dtype}")
        for dtype, several in by_dtype.items()
        for case in several
    ]


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest,
    comfyui: Path,
    labelled_ranks: RankPool,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[dict]]:
    """What each rank tells of the cases that this session runs."""
    root = tmp_path_factory.mktemp("labelled")
    found = {}
    wanted = running(request, "library", "name", "plan", "dtype")
    for world in sorted({2 if case[2] else 1 for case in wanted}):
        own = [case for case in wanted if (2 if case[2] else 1) == world]
        folder = root / str(world)
        folder.mkdir()
        by_rank = labelled_ranks.run(world, "cuda.labelled_ranks", own, str(folder))
        found |= {case: [told[case] for told in by_rank] for case in by_rank[0]}
    return found


@pytest.mark.parametrize(("library", "name", "plan", "dtype"), cases())
def test_a_model_runs_on_a_gpus_path(
    library: str, name: str, plan: dict[str, int], dtype: str, told: dict[str, list[dict]]
) -> None:
    by_rank = told[json.dumps([library, name, plan, dtype])]
    for rank, found in enumerate(by_rank):
        assert "failed" not in found, f"rank {rank}: {found['failed']}"
        assert sum(found["inside"].values()) <= WAITS_INSIDE.get(name, 0), found["inside"]
        own = WAITS.get(f"{library} {name}", 0)
        allowed = 0 if "pipefusion" in plan else OF_VAE.get(library, 0) + AT_THE_END.get(library, 0) + own
        assert sum(found["outside"].values()) <= allowed, found["outside"]
        assert sum(found["comfyui"].values()) <= OF_COMFYUI, found["comfyui"]
    assert by_rank[0]["error"] <= TOLERANCE[dtype]


def test_one_rank_adds_to_a_step_what_is_listed_and_no_more(
    labelled_ranks: RankPool, comfyui: Path, tmp_path: Path
) -> None:
    """On the whole way from ComfyUI's process to the rank and back, beyond what stock asks of its GPU."""
    (told,) = labelled_ranks.run(1, "cuda.step_ranks", str(tmp_path))
    for name, (conditions, latents, gathers) in ADDED.items():
        found = told[name]
        stock, process, rank = (Counter(found[each]) for each in ("stock", "comfyui", "rank"))
        assert found["error"] == 0
        # Each condition is compared with what the rank holds by two kernels, and all answers are read at once.
        assert process == {
            "kernels": 2 * conditions + 1, "waits": 2, "copies": 4, "messages": 1, "to_gpu": latents,
            "from_gpu": latents + 2 * NUMBER, "allocations": 2 * conditions + 2,
        }, found["waits at"]  # fmt: skip
        rank.subtract(stock)
        assert +rank == {
            "waits": 2, "copies": 4, "messages": 1, "to_gpu": latents + 2 * NUMBER, "from_gpu": latents,
            "allocations": 3 + gathers, **({"kernels": 1} if gathers else {}),
        }, found["waits at"]  # fmt: skip


def test_cards_that_one_rank_cannot_connect_ahead_are_given_up_by_all(labelled_ranks: RankPool) -> None:
    labelled_ranks.run(2, "cuda.labelled_ranks:connect_ahead")
