"""*Parallelize Model* by value, with ranks on two machines: the weights reach the other machine over the group's
connection, and what is drawn is what stock draws."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.comfyui.parallelize.test_by_value import OWN, loader
from tests.comfyui.parallelize.test_parallelize import CHANGES, MODEL, SECOND, files, in_turn  # noqa: F401
from tests.conftest import own_base_in
from tests.support.group.machines import FIRST, PORT, STARTER, Network, Second, ToldByLines
from tests.support.host.faults import wait_until
from tests.support.host.graphs import Graph, Link, Patch, behind, relative_error
from tests.support.host.stock_prompts import prompt

TOLERANCE = 1e-5
IN_MEMORY = Path("/dev/shm")
COPIES = "paralleldit-weights-*/[!.]*"  # without the lock
PARALLEL = behind("ParallelDiT_Parallelize", mode="manual", ulysses=2)
LOADER = loader("Test_LoadStateDict", model_name=f"{OWN}.safetensors")
SMALL = 64 << 20  # bytes: less than what is left free beside weights


def merged(graph: Graph, model: Link) -> Link:
    second = graph.add("Test_LoadStateDict", model_name=f"{SECOND}.safetensors")
    return graph.add("ModelMergeSimple", model1=model, model2=second, ratio=0.6)


class Drawn(NamedTuple):
    latents: torch.Tensor
    run: dict[str, Any]
    pids: list[int]


class FirstComfyUI(ToldByLines):
    def __init__(self, network: Network, comfyui: Path, base: Path) -> None:
        self.file = base / "drawn.safetensors"
        program = [sys.executable, "-m", "tests.support.group.first_comfyui", str(comfyui), str(base)]
        super().__init__(network, [*STARTER, *program])

    def draw(self, *patches: Patch) -> Drawn:
        self.tell(prompt=prompt(MODEL, patch=in_turn(*patches)), file=str(self.file))
        answer = self.answer()
        return Drawn(load_file(self.file)["latents"], **answer)


@pytest.fixture(scope="module")
def first(
    network: Network,
    comfyui: Path,
    models: Path,
    files: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FirstComfyUI]:
    folder = files / "diffusion_models"
    shutil.copy(folder / f"{MODEL}.safetensors", folder / f"{OWN}.safetensors")
    first = FirstComfyUI(network, comfyui, own_base_in(tmp_path_factory.mktemp("first"), models))
    try:
        yield first
    finally:
        first.close()


def copies_of(pid: int) -> list[Path]:
    """The weights in memory of the machine that this rank is on."""
    return [*Path(f"/proc/{pid}/root{IN_MEMORY}").glob(COPIES)]


@pytest.fixture
def second(request: pytest.FixtureRequest, network: Network, tmp_path: Path) -> Iterator[Second]:
    """The other machine, which has a memory of its own; how much is the fixture's parameter, and then it has no more on
    a disk."""
    size: Sequence[str] = getattr(request, "param", ())
    join = ["env", f"TMPDIR={IN_MEMORY}", sys.executable, "-m", "worker.join", f"{FIRST}:{PORT}"]
    second = Second(network, tmp_path / "second.log", IN_MEMORY, join if size else (), *size)
    try:
        yield second
    finally:
        assert second.end() == []


def test_the_other_machine_gets_the_weights_over_the_connection(first: FirstComfyUI, second: Second) -> None:
    right, merge = (first.draw(LOADER, *more).latents for more in ((), (merged,)))
    assert relative_error(merge, right) > 1e-3, "the merge changes nothing"
    drawn = first.draw(LOADER, PARALLEL)
    assert not drawn.run["is_stock"] and drawn.run["reason"] == "", drawn.run["reason"]
    assert relative_error(drawn.latents, right) <= TOLERANCE
    here, there = drawn.pids
    (copy,) = copies_of(there)
    assert copy.read_bytes() in [each.read_bytes() for each in IN_MEMORY.glob(f"{COPIES}/*")], "what ComfyUI has"
    assert (copy.parent.stat().st_mode & 0o777, stat.filemode(copy.stat().st_mode)) == (0o700, "-rw-------")

    drawn = first.draw(LOADER, merged, PARALLEL)
    assert not drawn.run["is_stock"] and drawn.run["reason"] == "", drawn.run["reason"]
    assert relative_error(drawn.latents, merge) <= TOLERANCE
    assert len(copies_of(there)) == 2, "of both models"

    drawn = first.draw(PARALLEL)  # from a file that both machines have
    assert drawn.pids == [here, there] and not drawn.run["is_stock"]
    assert relative_error(drawn.latents, right) <= TOLERANCE
    wait_until(lambda: not copies_of(there))


@pytest.mark.parametrize("second", [(str(SMALL),)], indirect=True)
def test_a_machine_without_room_is_named_and_the_model_runs_as_stock(first: FirstComfyUI, second: Second) -> None:
    right = first.draw(LOADER).latents
    before = first.draw(PARALLEL)
    drawn = first.draw(LOADER, CHANGES["lora"], CHANGES["rescaled"], PARALLEL)
    assert drawn.run["is_stock"], drawn.run
    assert "On the machine second: The ranks need its weights in a file." in drawn.run["reason"]
    assert "Make room there" in drawn.run["reason"]
    stock = first.draw(LOADER, CHANGES["lora"], CHANGES["rescaled"]).latents
    assert relative_error(stock, right) > 1e-3
    assert relative_error(drawn.latents, stock) <= TOLERANCE

    stock, drawn = first.draw(merged).latents, first.draw(merged, PARALLEL)  # the second model alone is by value
    assert drawn.run["is_stock"] and "On the machine second:" in drawn.run["reason"], drawn.run
    assert relative_error(drawn.latents, stock) <= TOLERANCE

    after = first.draw(PARALLEL, CHANGES["sampling"])
    assert after.pids == before.pids and not after.run["is_stock"], "the group lives"
