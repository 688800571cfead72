"""A model larger than a rank's card runs from what is there and what is fetched there block by block."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.files.deeper import deepen
from tests.support.files.write_gguf import write_gguf
from tests.support.host.stock_prompts import write_cases
from tests.support.programs import run_program
from tests.support.ranks.pool import RankPool

NAME = "longcat-image"
BLOCKS = 12  # of one stream
ROOM = 0.75  # of the weights, that the card of `placed_rank` has room for beside a small call


@pytest.fixture(scope="module")
def files(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model in each form."""
    base = tmp_path_factory.mktemp("placed")
    write_cases(comfyui, base, [NAME])
    folder = base / "models" / "diffusion_models"
    plain = folder / f"{NAME}.safetensors"
    deepen(plain, BLOCKS)
    run_program(comfyui, "tests.support.files.quantise", plain, "fp8")
    packed = folder / f"{NAME}.gguf"
    save_file(write_gguf(load_file(plain), packed, ["Q8_0"]), folder / "packed.safetensors")
    return {"fp32": plain, "fp8": folder / f"{NAME}-fp8.safetensors", "gguf": packed}


@pytest.mark.parametrize(("form", "world"), [("fp32", 1), ("fp32", 2), ("fp8", 1), ("gguf", 1)])
def test_a_model_that_is_too_large_for_the_card_is_there_in_part_and_gives_the_same(
    form: str, world: int, comfyui: Path, files: dict[str, Path], ranks: RankPool
) -> None:
    """Also with an adapter, and without it again; a larger call sends more of it away. A lack of memory is told with
    its tokens."""
    for rank, found in enumerate(ranks.run(world, "files.placed_rank", str(comfyui), str(files[form]), ROOM)):
        total = found["total"]
        assert found["whole"] == total
        assert found["checks"] >= found["blocks"] > BLOCKS, "how much has been read could not be told, nor given up"
        assert found["resident when larger"] < found["resident"] <= ROOM * total
        assert found["resident with an adapter"] <= ROOM * total
        given = ("equal", "adapted", "as before", "equal when larger", "and smaller again")
        errors = {name: found[name] for name in given}
        assert max(errors.values()) == 0.0, errors
        assert found["changed"] == (rank == 0)  # which alone has a result
        assert "16 tokens of latents" in found["out of memory"]
        if world > 1:
            assert found["stage"] < total, "a stage has the blocks of others on its card"


def test_before_a_prompt_the_contexts_of_cards_count(comfyui: Path, tmp_path: Path) -> None:
    """Flux, which two cards of 24 GB hold whole beside small contexts, is fetched in part beside usual ones."""
    sampler = {"type": "KSampler", "cfg": 1.0, "picture": {"width": 1024, "height": 1024}}
    asks = {"group": 1, "files": {"unet_name": "flux"}, "weight_dtype": "default", "samplers": [sampler]}

    def ask(weights: str, contexts: tuple[float, float]) -> list[object]:
        values = {"mode": "manual", "ulysses": 2, "weights": weights}
        return [[24, 24], {}, {"values": values, **asks}, 0, 64, contexts]

    asked = [ask("auto", (0.1, 0.2)), ask("auto", (0.5, 0.4)), ask("whole", (0.5, 0.4))]
    small, usual, whole = run_program(comfyui, "tests.support.host.plans_on_cards", tmp_path, given=asked)
    assert small["memory"]["fetched"] == 0 < usual["memory"]["fetched"]
    assert usual["memory"]["fits"] == [True, True] and usual["predicted"]["plan"]["fits"]
    assert whole["memory"]["fits"] == [False, True], "on the second card ComfyUI has no context"
    assert whole["memory"]["tight"]["card"]["index"] == 0


def test_comfyuis_arguments_of_memory_reach_ranks_that_have_a_card(comfyui: Path) -> None:
    memory = ["--disable-smart-memory", "--disable-pinned-memory", "--reserve-vram", "2.5", "--async-offload", "3"]
    given = (*memory, "--deterministic", "--fast", "fp16_accumulation")
    on_gpu, on_cpu = run_program(comfyui, "tests.support.files.told:rank_arguments", *given)
    assert on_gpu == ["--deterministic", *memory, "--fast", "fp16_accumulation"]
    assert on_cpu == ["--cpu", "--deterministic", "--fast", "fp16_accumulation"]
