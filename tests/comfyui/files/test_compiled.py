"""TorchCompileModel: the ranks compile the model's blocks, and what they compute stays what it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.files.adapters import make_lora
from tests.support.host.graphs import GROUPS_BY_SIZE, Graph, Link, behind, latents, log, relative_error, with_lora
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.programs import run_program
from tests.support.ranks.pool import RankPool
from tests.support.tiers import running

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5  # of fp32, whose operations are in another order in a kernel of several
KINDS = {"flux-deep": 2, "wan-2.1-t2v": 1}  # of blocks
Found = Mapping[tuple[str, int], Mapping[str, list]]  # by file and ranks, what `compiled_rank` saves


@pytest.fixture(scope="module")
def folder(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("compiled")
    write_cases(comfyui, base, KINDS)
    return base / "models" / "diffusion_models"


@pytest.fixture(scope="module")
def eager(
    request: pytest.FixtureRequest,
    comfyui: Path,
    folder: Path,
    ranks: RankPool,
) -> Found:
    """Of torch.compile's backend "eager", which has no compiler."""
    wanted: defaultdict[int, list[str]] = defaultdict(list)
    for name, world in running(request, "name", "world"):
        wanted[world].append(name)
    for (form,) in running(request, "form"):
        run_program(comfyui, "tests.support.files.quantise", folder / "flux-deep.safetensors", form)
        wanted[2].append(f"flux-deep-{form}")
    found = {world: run(comfyui, folder, ranks, world, "eager", *wanted[world]) for world in wanted}
    return {(name, world): each for world, of_world in found.items() for name, each in of_world.items()}


def run(
    comfyui: Path, folder: Path, ranks: RankPool, world: int, backend: str, *names: str
) -> dict[str, dict[str, list]]:
    """What `compiled_rank` returns."""
    files = [str(folder / f"{name}.safetensors") for name in names]
    return ranks.run(world, "files.compiled_rank", str(comfyui), backend, *files)[0]


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("flux-deep", 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("flux-deep", 1), ("wan-2.1-t2v", 2))),
    ],
)
def test_blocks_of_a_kind_share_graphs_whatever_the_options_say(name: str, world: int, eager: Found) -> None:
    """And another size brings one more of each."""
    errors, graphs = eager[name, world]["errors"], eager[name, world]["graphs"]
    assert len(errors) == 4 and max(errors) <= TOLERANCE
    first, other_size, third_size, again = graphs
    assert first == KINDS[name]
    assert 0 < other_size <= first
    assert third_size == again == 0, "sizes are variables of a graph by then"


@pytest.mark.parametrize("form", ["int8", pytest.param("fp8", marks=pytest.mark.slow)])
def test_blocks_with_quantised_weights_compute_what_they_did(form: str, eager: Found) -> None:
    """Their linear layers may end a graph, and none of them is moved into attention."""
    found = eager[f"flux-deep-{form}", 2]
    assert found["graphs"][0] >= KINDS["flux-deep"] and max(found["errors"]) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_compiled_blocks_compute_what_they_did(name: str, comfyui: Path, folder: Path, ranks: RankPool) -> None:
    found = run(comfyui, folder, ranks, 2, "inductor", name)
    assert max(found[name]["errors"]) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("wan-2.1-t2v", 2), pytest.param("flux-dev", 3, marks=pytest.mark.slow)],  # of one kind, and of two
)
def test_the_node_has_the_ranks_compile_and_the_image_stays(
    name: str, blocks: int, host: ComfyHost, comfyui: Path, models: Path
) -> None:
    write_cases(comfyui, models, [name])

    compiled = behind("TorchCompileModel", backend="inductor")
    lora = make_lora(load_file(models / "models" / "diffusion_models" / f"{name}.safetensors"))
    save_file(lora, models / "models" / "loras" / "compiled.safetensors")
    adapted = with_lora("compiled.safetensors")
    right, changed = (latents(host, prompt(name, patch=patch)) for patch in (None, adapted))
    assert relative_error(changed, right) > 0.01, "the LoRA changes nothing"
    asked = {"plan": {"ulysses": 2}, "group": GROUPS_BY_SIZE[2]}

    def drawn(patch: Callable[[Graph, Link], Link]) -> torch.Tensor:
        return latents(host, prompt(name, **asked, patch=patch))

    assert relative_error(drawn(compiled), right) <= TOLERANCE
    assert relative_error(drawn(lambda graph, loaded: compiled(graph, adapted(graph, loaded))), changed) <= TOLERANCE
    found = log(host, 1, asked["group"])
    assert found.count(f"{blocks} blocks run through torch.compile (inductor)") == 1, "the graphs are of any weights"
