"""A GGUF file draws what ComfyUI's own loader draws from the same weights, dequantised by the `gguf` package."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from demo.host import ComfyHost
from tests.support.files.adapters import write_adapter
from tests.support.files.write_gguf import write_gguf
from tests.support.host.graphs import GROUPS_BY_SIZE, Graph, Link, latents, load, relative_error, with_lora
from tests.support.host.stock_prompts import prompt, write_cases
from tests.support.ranks.pool import RankPool
from worker.comfyui import gguf_blocks
from worker.comfyui.gguf_blocks import FORMATS, dequantise

TOLERANCE = 1e-5
# The formats of their matrices, one after another. IQ3_S is dequantised as it is loaded.
CASES = {"longcat-image": [*FORMATS, "BF16", "F16", "IQ3_S"], "wan-2.1-vace": ["Q8_0", "Q4_K"], "ltx-0.9.5": ["Q5_0"]}
PLANS = [{"cfg": 1}, {"ulysses": 2}]
ADAPTED = "longcat-image"
FOLDER = "published"
BLOCKS = 1000
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def files(comfyui: Path, models: Path) -> Path:
    """The folder with each case's GGUF file and the same weights in safetensors."""
    write_cases(comfyui, models, CASES)
    folder = models / "models" / "diffusion_models"
    for name, forms in CASES.items():
        with safe_open(folder / f"{name}.safetensors", "pt") as file:
            weights, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
        path = folder / FOLDER / f"{name}.gguf"
        path.parent.mkdir(exist_ok=True)
        dequantised = write_gguf(weights, path, forms, metadata)
        save_file(dequantised, folder / f"{name} packed.safetensors", metadata)
    return folder


@pytest.fixture(scope="module")
def stock(host: ComfyHost, files: Path, groups_by_size: None) -> Callable[[str], torch.Tensor]:
    """By case, what ComfyUI's own loader draws from the dequantised weights."""
    return cache(lambda name, patch=None: latents(host, prompt(name, model=f"{name} packed.safetensors", patch=patch)))


def drawn(host: ComfyHost, name: str, plan: dict[str, int], file: str = "", **options: Any) -> torch.Tensor:
    model = file or f"{FOLDER}/{name}.gguf"
    return latents(host, prompt(name, plan, group=GROUPS_BY_SIZE[math.prod(plan.values())], model=model, **options))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_gguf_file_draws_what_its_dequantised_weights_draw(
    name: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    """To the bit on one rank. `auto` computes in what ComfyUI's device would, which here is fp32."""
    allowed = 0.0 if plan == {"cfg": 1} else TOLERANCE
    assert relative_error(drawn(host, name, plan), stock(name)) <= allowed


@pytest.mark.parametrize("kind", ["LoRA", "DoRA", "LoKr", "a difference"])
def test_an_adapter_on_a_gguf_file_changes_the_image_as_with_the_stock_loader_and_goes_again(
    kind: str, host: ComfyHost, stock: Callable, files: Path
) -> None:
    adapter = write_adapter(kind, files / f"{ADAPTED} packed.safetensors", files.parent / "loras")

    adapted = with_lora(adapter)
    right = stock(ADAPTED, adapted)
    assert relative_error(right, stock(ADAPTED)) > 0.01, "the adapter changes nothing"
    assert relative_error(drawn(host, ADAPTED, {"cfg": 1}, patch=adapted), right) <= TOLERANCE
    assert torch.equal(drawn(host, ADAPTED, {"cfg": 1}), stock(ADAPTED)), "it has not come off exactly"


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("packed", ["first", "second", "both"])
def test_a_merge_of_gguf_files_draws_what_their_dequantised_weights_draw(
    packed: str, plan: dict[str, int], host: ComfyHost, stock: Callable
) -> None:
    files = {False: f"{ADAPTED} packed.safetensors", True: f"{FOLDER}/{ADAPTED}.gguf"}

    def merged(graph: Graph, loaded: Link) -> Link:
        second = load(graph, files[packed != "first"])
        return graph.add("ModelMergeAdd", model1=loaded, model2=second)

    right = stock(ADAPTED, lambda graph, loaded: graph.add("ModelMergeAdd", model1=loaded, model2=loaded))
    assert relative_error(right, stock(ADAPTED)) > 0.01, "nothing is merged"
    found = drawn(host, ADAPTED, plan, files[packed != "second"], patch=merged)
    assert relative_error(found, right) <= TOLERANCE


def test_a_rank_holds_no_more_than_the_file_and_shares_its_pages(
    comfyui: Path, files: Path, ranks: RankPool, tmp_path: Path
) -> None:
    """Also with an adapter, which leaves nothing behind; and parking frees it all."""
    file, right = (tmp_path / name for name in ("small.gguf", "right.safetensors"))
    save_file(write_gguf(load_file(files / f"{ADAPTED}.safetensors"), file, list(FORMATS)), right)
    unpacked = tmp_path / "unpacked.gguf"
    write_gguf(load_file(files / f"{ADAPTED}.safetensors"), unpacked, ["TQ2_0"])
    (found,) = ranks.run(1, "files.gguf_rank", str(comfyui), str(file), str(right), str(unpacked))
    in_file = sum(tensor.n_bytes for tensor in gguf.GGUFReader(file).tensors)
    assert in_file < right.stat().st_size / 4
    assert found["held"] <= found["held with an adapter"] <= 1.1 * in_file
    assert found["copied"] == found["copied after all"] == found["left when parked"] == 0
    assert found["in bf16"] and found["changed"] and found["as before"] and found["parked and restored"]
    assert found["fetched alike"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMATS)
def test_any_bytes_give_the_packages_weights(form: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that are infinite or no numbers included, which must not become numbers."""
    for chunk in ("CHUNK", "CPU_CHUNK"):
        monkeypatch.setattr(gguf_blocks, chunk, 1 << 14)  # in several steps, the last of them a shorter one
    kind = gguf.GGMLQuantizationType[form]
    count, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        right = gguf.dequantize(blocks, kind).ravel()
    assert np.isfinite(right).mean() > 0.8
    weights = dequantise(torch.from_numpy(blocks).to(device), form, BLOCKS * count, torch.float32)
    np.testing.assert_array_equal(weights.cpu().numpy(), right)
    rounded = dequantise(torch.from_numpy(blocks).to(device), form, BLOCKS * count, torch.bfloat16)
    np.testing.assert_array_equal(rounded.float().cpu().numpy(), torch.from_numpy(right).bfloat16().float().numpy())
