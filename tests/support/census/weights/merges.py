"""Model merges, and what they send."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.census.changes import sample_after
from tests.support.census.loading import is_ours
from tests.support.census.rows import MERGED, SD1_BLOCKS, SDXL_BLOCKS, Row, as_stock, habit, refused

Does = Callable[[Any, Row, Any], list[torch.Tensor]]
Merge = Callable[[Any, Row, Any, Any, Any], Any]  # of the census, a row, and three models, of which `three` has all
ON_ONE_RANK = "a merge on one rank: "
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


def load_other(census: Any, row: Row, model: Any, name: str) -> Any:
    """Loads a second model by the loader of the first."""
    if not (census.base / "models" / "diffusion_models" / f"{name}.safetensors").exists():
        write_other(census, row, name)
    remote = census.remote
    try:
        return census.load(replace(row, model=name), is_ours(model))
    finally:
        census.remote = remote  # whose plans the census notes


def node(name: str, **inputs: float) -> Merge:
    return lambda census, _row, first, second, _third: census.run(name, model1=first, model2=second, **inputs)[0]


def adapt(census: Any, row: Row, model: Any, strength: float = 0.7) -> Any:
    (adapted,) = census.run(
        "LoraLoaderModelOnly", model=model, lora_name=census.a_lora(row, model), strength_model=strength
    )
    return adapted


simple, add, subtract = (
    node("ModelMergeSimple", ratio=0.6),
    node("ModelMergeAdd"),
    node("ModelMergeSubtract", multiplier=0.4),
)


def first_adapted(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    return simple(census, row, adapt(census, row, first), second, third)


def second_adapted(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    return simple(census, row, first, adapt(census, row, second), third)


def result_adapted(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    return adapt(census, row, simple(census, row, first, second, third), -0.5)


def three(census: Any, row: Row, first: Any, second: Any, third: Any) -> Any:
    """A merge with a merge, and a difference added to that."""
    merged = simple(census, row, first, simple(census, row, second, adapt(census, row, third), None), None)
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
    "simple": simple,
    "add": add,
    "subtract": subtract,
    "blocks": node("ModelMergeBlocks", input=0.3, middle=0.5, out=0.8),
    "by a model's blocks": node("ModelMergeFlux1", **{"double_blocks.0.": 0.2, "img_in.": 0.9}),
    "a LoRA on the first": first_adapted,
    "a LoRA on the second": second_adapted,
    "a LoRA on the result": result_adapted,
    "three models": three,
    "weights at other places": scaled,
}
# By the UNet.
UNET_MERGES: dict[str, tuple[str, Merge]] = {
    **{name: ("unet", MERGES[name]) for name in ("simple", "add", "subtract", "blocks", "three models")},
    "SD1's blocks": ("unet", node("ModelMergeSD1", **SD1_BLOCKS)),
    "SDXL's blocks": ("xl", node("ModelMergeSDXL", **SDXL_BLOCKS)),
}


@contextmanager
def counted(census: Any) -> Iterator[list[int]]:
    """The bytes of the tensors of each request that changes weights."""
    sent, request = [], census.group._request

    def noted(header: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if header["op"] == "patch":
            sent.append(sum(tensor.nbytes for tensor in tensors.values()))
        return request(header, tensors, *args, **kwargs)

    with patch.object(census.group, "_request", noted):
        yield sent


def ranks_with(census: Any, name: str) -> list[int]:
    """The ranks that map a file of this name, by process id."""
    pids = census.group.status()["pids"]
    return [pid for pid in pids if f"/{name}.safetensors" in Path(f"/proc/{pid}/maps").read_text()]


def merged(merge: Merge, **plan: Any) -> Does:
    """The latents of a merge, and of the first model after that. plan: of ours, with more than the row's."""

    def does(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
        if plan and is_ours(model):
            model = census.load(replace(row, plan={**row.plan, **plan}), True)
        second = load_other(census, row, model, other(row, OTHER))
        third = load_other(census, row, model, other(row, THIRD)) if merge is three else None
        with counted(census) as sent:
            found = [census.sample(row, merge(census, row, model, second, third))]
        if is_ours(model):
            lora = sum(tensor.nbytes for tensor in census.a_lora_model(row, model).values())
            assert len(sent) == 1 and sent[0] <= lora, "weights went through the socket"
            assert not second.stand_in.weights.mapped, "ComfyUI's process has read the second file"
            assert not ranks_with(census, other(row, OTHER)), "a rank still has the second file"
        return [*found, sample_after(census, row, model)]

    return does


def merged_with_stocks(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A second model of ComfyUI's loader."""
    load_other(census, row, model, other(row, OTHER))
    second = census.load(replace(row, model=other(row, OTHER)), False)
    found = [census.sample(row, simple(census, row, model, second, None))]
    assert not is_ours(model) or "not in the ranks" in census.why[0]
    return found


def merged_with_one_that_runs_here(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A second model that ComfyUI's own process runs."""
    second = adapt(census, row, load_other(census, row, model, other(row, OTHER)))
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
    return [census.sample(row, simple(census, row, model, adapt(census, row, model), None))]


def one_rank(row: Row) -> Row:
    return replace(row, plan={"cfg": 1}, shared="one rank")


PLAIN = replace(MERGED, inputs={})
MERGE_ROWS: dict[str, Row] = {
    # The gate has the other nodes in "three models" and in the nodes' own rows.
    **{
        f"a merge: {name}": replace(
            habit(PLAIN, merged(merge)), slow=name in ("add", "subtract", "by a model's blocks")
        )
        for name, merge in MERGES.items()
    },
    **{f"{ON_ONE_RANK}{name}": habit(one_rank(PLAIN), merged(MERGES[name])) for name in ("three models", "blocks")},
    # Of UNets the gate has one of one rank, which agrees to the bit, and ComfyUI's nodes for SD1 and SDXL.
    **{
        f"{ON_ONE_RANK}UNets, {name}": replace(
            habit(one_rank(PLAIN), merged(merge)), model=model, slow=name != "simple"
        )
        for name, (model, merge) in UNET_MERGES.items()
    },
    **{
        f"a merge of UNets: {name}": replace(habit(PLAIN, merged(merge)), model=model, slow=True)
        for name, (model, merge) in UNET_MERGES.items()
    },
    "a merge of UNets in fp8": replace(
        habit(replace(PLAIN, dtype="fp8_e4m3fn"), merged(second_adapted)), model="unet", slow=True
    ),
    "a merge in fp8": habit(replace(PLAIN, dtype="fp8_e4m3fn"), merged(second_adapted)),
    f"{ON_ONE_RANK}fp8": habit(replace(one_rank(PLAIN), dtype="fp8_e4m3fn"), merged(second_adapted)),
    **{
        f"a merge of {kind} weights": replace(
            habit(PLAIN, merged(three, weights=kind)), shared=f"ulysses=2 × {kind} weights"
        )
        for kind in ("shared", "host")
    },
    "a merge with a model of ComfyUI's loader": habit(as_stock(), merged_with_stocks),
    "a merge with a model that runs in ComfyUI's process": habit(PLAIN, merged_with_one_that_runs_here),
    "a merge into a model of ComfyUI's loader": replace(habit(PLAIN, merged_into_stocks), shared=""),
    "a merge of quantised weights": habit(
        replace(refused("no attribute 'weight_scale'"), form="fp8"), merged_with_itself
    ),
    "a merge with a file that is overwritten or gone": replace(habit(PLAIN, merged_with_a_lost_file), ignored=True),
}
