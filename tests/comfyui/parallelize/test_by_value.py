"""*Parallelize Model* behind loaders that name no file: the ranks map the weights that ComfyUI has, and draw what stock
draws."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from demo.host import ComfyHost
from tests.comfyui.parallelize.test_parallelize import CHANGES, MODEL, drawn, files, in_turn, parallel  # noqa: F401
from tests.support.files.write_gguf import write_gguf
from tests.support.host.faults import wait_until
from tests.support.host.graphs import Patch, behind, latents, relative_error
from tests.support.host.stock_prompts import prompt
from tests.support.programs import run_program
from worker.wire.private_folder import LOCK

pytestmark = pytest.mark.usefixtures("groups_by_size")

TOLERANCE = 1e-5
OWN = f"{MODEL}, its own"  # files of these tests
QUANTISED = ("fp8", "int8 convrot", "nvfp4")
FORMS = ["Q8_0", "Q4_K", "BF16", "F16"]


def loader(name: str, **inputs: str) -> Patch:
    return lambda graph, _model: graph.add(name, **inputs)


# By name: the loader, and what stands between it and the node.
LINES: dict[str, tuple[Patch, ...]] = {
    "state dict": (loader("Test_LoadStateDict", model_name=f"{OWN}.safetensors"),),
    "in bf16": (loader("Test_LoadStateDict", model_name=f"{OWN}.safetensors", dtype="bfloat16"),),
    "pickle": (loader("UNETLoader", unet_name=f"{OWN}.pt", weight_dtype="default"),),
    "pickle and LoRA": (loader("UNETLoader", unet_name=f"{OWN}.pt", weight_dtype="default"), CHANGES["lora"]),
    "fp8": (loader("UNETLoader", unet_name=f"{OWN}.pt", weight_dtype="fp8_e4m3fn"),),
    "written over": (
        loader("UNETLoader", unet_name=f"{OWN}, written over.safetensors", weight_dtype="default"),
        behind("Test_WriteOver", amount=0.05),
    ),
    **{
        f"quantised {form}": (loader("Test_LoadStateDict", model_name=f"{OWN}-{form}.safetensors"),)
        for form in QUANTISED
    },
    "GGUF": (loader("Test_LoadGGUF", unet_name=f"{OWN}.gguf"),),
    "GGUF and LoRA": (loader("Test_LoadGGUF", unet_name=f"{OWN}.gguf"), CHANGES["lora"]),
}  # fmt: skip
# bf16 rounds where the ranks' sums have another order, and int8 rounds what layers are given. The pack rounds an F16
# weight to F16 after a LoRA; the ranks have it in the model's own dtype.
TOLERANCES = {"in bf16": 2e-2, "quantised int8 convrot": 5e-3, "GGUF and LoRA": 1e-3}


@pytest.fixture(scope="module")
def own_files(comfyui: Path, files: Path) -> Path:  # noqa: F811
    folder = files / "diffusion_models"
    for name in (OWN, f"{OWN}, written over"):
        shutil.copy(folder / f"{MODEL}.safetensors", folder / f"{name}.safetensors")
    weights = load_file(folder / f"{MODEL}.safetensors")
    torch.save(weights, folder / f"{OWN}.pt")
    run_program(comfyui, "tests.support.files.quantise", folder / f"{OWN}.safetensors", *QUANTISED)
    write_gguf(weights, folder / f"{OWN}.gguf", FORMS)
    return folder


@pytest.fixture(scope="module")
def stock(host: ComfyHost, own_files: Path) -> Callable[[str], torch.Tensor]:
    return cache(lambda line: latents(host, prompt(MODEL, patch=in_turn(*LINES[line]))))


@pytest.mark.parametrize("plan", [{"ulysses": 2}, {"cfg": 2}], ids=str)
@pytest.mark.parametrize("line", LINES)
def test_it_draws_what_stock_draws(
    line: str, plan: dict[str, int], host: ComfyHost, stock: Callable[[str], torch.Tensor]
) -> None:
    right = stock(line)
    assert relative_error(drawn(host, plan, LINES[line]), right) <= TOLERANCES.get(line, TOLERANCE)


def test_its_file_in_memory_goes_with_the_model(host: ComfyHost, stock: Callable[[str], torch.Tensor]) -> None:
    load = loader("Test_LoadStateDict", model_name=f"{OWN}.safetensors", dtype="float32")  # of no other test
    line = [load, parallel({"ulysses": 2})]
    before = files_in_memory(host)  # of models that other groups keep
    latents(host, prompt(MODEL, patch=in_turn(*line)))
    (own,) = files_in_memory(host) - before
    latents(host, prompt(MODEL, patch=in_turn(*line, CHANGES["sampling"])))
    assert files_in_memory(host) - before == {own}
    shutil.rmtree(own.parent.parent)  # as systemd does when a person logs out (RemoveIPC)
    latents(host, prompt(MODEL, patch=in_turn(load, parallel({"ring": 2}))))
    (own,) = files_in_memory(host) - before
    host.free()
    latents(host, prompt(MODEL, patch=parallel({"ulysses": 2})))  # the group keeps its last model
    wait_until(lambda: own not in files_in_memory(host))


def files_in_memory(host: ComfyHost) -> set[Path]:
    """The weights that this host keeps in memory for its ranks."""
    opened = [each.resolve() for each in Path(f"/proc/{host.process.pid}/fd").iterdir()]
    locks = [each for each in opened if each.name == LOCK and each.parent.name.startswith("paralleldit-weights")]
    return {file for lock in locks for file in lock.parent.glob("*/*")}
