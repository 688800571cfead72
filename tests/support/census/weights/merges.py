"""Model merges, and what they send."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.census.changes import requests, sample_after
from tests.support.census.loading import is_ours
from tests.support.census.rows import (
    MERGED,
    ON_ONE_RANK,
    Row,
    as_stock,
    habit,
    one_rank,
    refused,
)

Merge = Callable[[Any, Row, Any, Any, Any], Any]  # of the census, a row, and three models, of which `three` has all
OTHER, THIRD = "another", "a third"


def other(row: Row, which: str) -> str:
    """The name of a file of the row's model with other weights."""
    return f"{which} {row.model}"


def write_other(census: Any, row: Row, name: str, seed: int = 0) -> Path:
    """Writes a file with other weights than the row's model. seed: another makes others, too."""
    folder = census.base / "models" / "diffusion_models"
    generator = torch.Generator().manual_seed(len(name) + seed)
    with safe_open(folder / f"{row.model}.safetensors", "pt") as file:
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        others = {
            key: (weight + 0.05 * torch.randn(weight.shape, generator=generator)).to(weight.dtype)
            for key, weight in weights.items()
        }
        save_file(others, folder / f"{name}.safetensors", file.metadata())
    return folder / f"{name}.safetensors"


def load_other(census: Any, row: Row, model: Any, name: str, form: str | None = None) -> Any:
    """Loads a second model by the loader of the first. form: another than the row's."""
    if not (census.base / "models" / "diffusion_models" / f"{name}.safetensors").exists():
        write_other(census, row, name)
    remote = census.remote
    try:
        return census.load(replace(row, model=name, form=row.form if form is None else form), is_ours(model))
    finally:
        census.remote = remote  # whose plans the census notes


def node(name: str, **inputs: float) -> Merge:
    return lambda census, _row, first, second, _third: census.run(name, model1=first, model2=second, **inputs)[0]


simple, add, subtract = (
    node("ModelMergeSimple", ratio=0.6),
    node("ModelMergeAdd"),
    node("ModelMergeSubtract", multiplier=0.4),
)


def second_adapted(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    return simple(census, row, first, census.adapt(row, second, 0.7), third)


def three(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    """A merge with a merge, and a difference added to that."""
    merged = simple(census, row, first, simple(census, row, second, census.adapt(row, third, 0.7), None), None)
    return add(census, row, merged, subtract(census, row, third, second, None), None)


def scaled(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    """The first weights in other places than the second's, and some that the first lacks."""
    merged = first.clone()
    patches = second.get_key_patches("diffusion_model.")
    shape = {key: value[0][0].shape for key, value in patches.items()}
    for key, value in patches.items():
        turned = next(other for other in reversed(shape) if shape[other] == shape[key])
        merged.add_patches({turned: value, f"{key}.none": value}, 0.4, 0.6)
    return merged


MERGES: dict[str, Merge] = {
    "a LoRA on the result": lambda census, row, *models: census.adapt(row, simple(census, row, *models), -0.5),
    "three models": three,
    "weights at other places": scaled,
}


def merged(census: Any, row: Row, model: Any, merge: Merge, **plan: Any) -> list[torch.Tensor]:
    """The latents of a merge, and of the first model after that. plan: of ours, with more than the row's."""
    if plan and is_ours(model):
        model = census.load(replace(row, plan={**row.plan, **plan}), True)
    second = load_other(census, row, model, other(row, OTHER))
    third = load_other(census, row, model, other(row, THIRD)) if merge is three else None
    with requests(census, "patch") as sent:
        found = [census.sample(row, merge(census, row, model, second, third))]
    if is_ours(model):
        lora = sum(tensor.nbytes for tensor in census.a_lora_model(row, model).values())
        (tensors,) = sent
        assert sum(tensor.nbytes for tensor in tensors.values()) <= lora, "weights went through the socket"
        assert not second.remote_module.weights.mapped, "ComfyUI's process has read the second file"
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in census.group.status()["pids"]]
        assert not any(f"/{other(row, OTHER)}.safetensors" in each for each in maps), "a rank still has the second file"
    return [*found, sample_after(census, row, model)]


def merged_with_stocks(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A second model of ComfyUI's loader."""
    load_other(census, row, model, other(row, OTHER))
    second = census.load(replace(row, model=other(row, OTHER)), False)
    found = [census.sample(row, simple(census, row, model, second, None))]
    assert not is_ours(model) or "not in the ranks" in census.why[0]
    return found


def merged_with_one_that_runs_here(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A second model that ComfyUI's own process runs."""
    second = census.adapt(row, load_other(census, row, model, other(row, OTHER)), 0.7)
    found = [census.sample(row, second)]
    if is_ours(model):
        second.take_over("a test")
        importlib.import_module("comfy.model_management").load_models_gpu([second])
        census.taken = False
    return [*found, census.sample(row, simple(census, row, model, second, None))]


def merged_into_stocks(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A first model of ComfyUI's loader."""
    first = census.load(replace(row, model=row.model), False)
    return [census.sample(row, simple(census, row, first, load_other(census, row, model, other(row, OTHER)), None))]


def merged_with_a_lost_file(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A second file that is overwritten, and one that is gone, before the ranks read it."""
    if not is_ours(model):
        return [census.sample(row, model)]
    census.sample(row, model)
    pids = census.group.status()["pids"]
    for said in ("was overwritten after", "cannot be read"):
        path = write_other(census, row, "a lost one")
        second = load_other(census, row, model, path.stem)
        if "overwritten" in said:
            write_other(census, row, path.stem, seed=1)
        else:
            path.unlink()
        try:
            census.sample(row, simple(census, row, model, second, None))
        except Exception as error:
            assert said in str(error), error
        else:
            raise AssertionError("the ranks took another file")
    assert census.group.status()["pids"] == pids, "the group has not lived"
    return [census.sample(row, model)]


def merged_with_itself(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A second model of the same file with a LoRA."""
    return [census.sample(row, simple(census, row, model, census.adapt(row, model, 0.7), None))]


PLAIN = replace(MERGED, inputs={})
MERGE_ROWS: dict[str, Row] = {
    # "Three models" has the other nodes, and each has a row of its own, of SD1 and SDXL, too.
    **{f"a merge: {name}": habit(PLAIN, merged, merge) for name, merge in MERGES.items()},
    f"{ON_ONE_RANK}a merge, three models": habit(one_rank(PLAIN), merged, three),
    f"{ON_ONE_RANK}a merge of UNets": habit(one_rank(PLAIN), merged, simple, model="unet"),
    f"{ON_ONE_RANK}a merge in fp8": habit(one_rank(PLAIN), merged, second_adapted, dtype="fp8_e4m3fn"),
    "a merge of shared weights": habit(
        PLAIN, partial(merged, weights="shared"), three, shared="ulysses=2 × shared weights"
    ),
    "a merge with a model of ComfyUI's loader": habit(as_stock(), merged_with_stocks),
    "a merge with a model that runs in ComfyUI's process": habit(PLAIN, merged_with_one_that_runs_here),
    "a merge into a model of ComfyUI's loader": habit(PLAIN, merged_into_stocks, shared=""),
    "a merge of quantised weights": habit(refused("no attribute 'weight_scale'"), merged_with_itself, form="fp8"),
    "a merge with a file that is overwritten or gone": habit(PLAIN, merged_with_a_lost_file, ignored=True),
}
