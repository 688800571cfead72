"""Files on a GPU's path without a GPU: loaded by ComfyUI's own code, on a labelled card, in every format.

The reference is the same file on the CPU, where `tests/comfyui/files/test_census.py` compares such files with the stock
loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.engine.cuda.test_labelled import pytestmark  # noqa: F401
from tests.support.cases.files.formats import FORMATS
from tests.support.files.deeper import deepen
from tests.support.files.write_gguf import write_gguf
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_program
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running
from worker.comfyui.gguf_blocks import FORMATS as BLOCKS

NAME = "longcat-image"
TOLERANCE = 1e-5
BLOCKS_OF_ONE = 8
PART = 0.75  # of the weights, which a card has room for
OLD, ADA = (7, 5), (8, 9)  # cards that cannot and can multiply in fp8
# What one weight's change takes meanwhile, as fp32 numbers of the largest: it is made anew in some passes.
PASSES = {"mxfp8": 5}
ALONE: dict[str, int] = {}
CAST = "fp32 in bf16"  # a file whose weights are computed with in another dtype than it has them in
STORED = {"plain fp8": "float8_e4m3fn", CAST: "bfloat16"}  # others in float32
FORMS = ["fp32", *FORMATS, "gguf"]
IN_GATE = ("plain fp8", "fp8", "gguf")  # of what the others are one more of
CASES = [
    *((form, ALONE, ADA, 1.0) for form in FORMS),
    *((form, ALONE, ADA, PART) for form in ("fp32", "plain fp8", "fp8", "int8", "gguf")),
    *((form, {"ring" if place % 2 else "ulysses": 2}, ADA, 1.0) for place, form in enumerate(FORMS)),
    ("fp8", ALONE, OLD, 1.0),
    (CAST, ALONE, ADA, 1.0),
]
Told = list[dict[str, Any]]  # by rank


def cases() -> list[Any]:
    slow = [case for case in CASES if case[0] not in IN_GATE and (case[1] or case[3] < 1)]
    return [pytest.param(case, id=key(case), marks=[pytest.mark.slow] if case in slow else []) for case in CASES]


@pytest.fixture(scope="module")
def files(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model in each format."""
    base = tmp_path_factory.mktemp("formats")
    write_cases(comfyui, base, [NAME])
    folder = base / "models" / "diffusion_models"
    plain, packed = (folder / f"{NAME}.{end}" for end in ("safetensors", "gguf"))
    deepen(plain, BLOCKS_OF_ONE)
    run_program(comfyui, "tests.support.files.quantise", plain, *FORMATS)
    write_gguf(load_file(plain), packed, [*reversed(BLOCKS)])  # in whose blocks are those with a table
    made = {form: folder / f"{NAME}-{form}.safetensors" for form in FORMATS}
    return {"fp32": plain, CAST: plain, "gguf": packed, **made}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Of their own: without inference mode nothing else is to run."""
    with RankPool(tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.fixture(scope="module")
def every(request: pytest.FixtureRequest, comfyui: Path, files: dict[str, Path], ranks: RankPool) -> dict[str, Told]:
    """What each rank tells of the cases that this session runs. A process has a card for good."""
    found: dict[str, Told] = {}
    jobs: dict[tuple, list] = {}
    for (case,) in running(request, "case"):
        jobs.setdefault((case[2], 2 if case[1] else 1), []).append(case)
    for (capability, world), cases in jobs.items():
        asked = [
            (key(case), str(files[case[0]]), STORED.get(case[0], "float32"), "float32", case[1], case[3])
            for case in cases
        ]
        by_rank = ranks.run(world, "cuda.file_ranks", capability, asked)
        found |= {name: [told[name] for told in by_rank] for name in by_rank[0]}
    return found


@pytest.fixture
def told(case: tuple, every: dict[str, Told]) -> Told:
    """Of the test's case."""
    for rank, found in enumerate(every[key(case)]):
        assert "failed" not in found, f"rank {rank}: {found['failed']}"
    return every[key(case)]


def key(case: tuple) -> str:
    """case: the form, the plan, the card's capability, and the share of the weights that it has room for."""
    return "-".join(map(str, case))


@pytest.mark.parametrize("case", cases())
def test_a_file_runs_on_a_gpus_path_and_stays_quantised(case: tuple, told: Told) -> None:
    """Counted in bytes on the card: also with an adapter, while it is put on, and when it is off again."""
    form, plan, _, share = case
    for found in told:
        assert not found["inside"], found["inside"]
        assert not found["outside"], "what a forward is given comes from pinned memory: " + str(found["outside"])
        assert found["loaded"] <= share * found["weights"]
        assert (found["pinned"] > 0) == (share < 1), "weights that wait in RAM are pinned there"
        assert found["adapted"] <= 1.01 * share * found["weights"] + found["factors"]
        passes = PASSES.get(form, 3) + (share < 1)  # a weight that is fetched has no place that it could be made in
        work = passes * 4 * found["largest"]
        assert found["peak"] <= share * found["weights"] + found["factors"] + work
        assert not found["copied"], "what is put back has memory of its own, beside the file's pages"
        if "ulysses" in plan:
            assert found["beside"] == [0, *[1] * BLOCKS_OF_ONE], "rows of the MLP are computed while keys travel"
    plain, adapted, plain_again = told[0]["errors"]
    assert max(plain, adapted, plain_again) <= TOLERANCE
    assert told[0]["changed"] > 0.1, "the adapter changes nothing"


@pytest.mark.parametrize("case", [(CAST, ALONE, ADA, 1.0)], ids=str)
def test_no_model_in_another_dtype_is_made_in_ram(case: tuple, told: Told) -> None:
    assert told[0]["in RAM"] == 0 < told[0]["loaded"]
