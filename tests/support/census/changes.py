"""Changes of the module behind a MODEL, for good or for the length of a call."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from tests.support.census.rows import Row, equal


def changed(census: Any, row: Row, model: Any, change: Callable[[torch.nn.Module], Any]) -> list[torch.Tensor]:
    """A change of the module behind a MODEL."""
    change(model.model.diffusion_model)
    return [census.sample(row, model)]


def cloned(census: Any, row: Row, model: Any, change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """A change of a copy of the MODEL, which has the same module."""
    copied = model.clone()
    change(copied)
    return [census.sample(row, copied)]


def sample_after(census: Any, row: Row, model: Any) -> torch.Tensor:
    """The latents of the model alone, after something was done. Those of stock's are there already."""
    is_ours = hasattr(model, "remote_module")
    return census.sample(row, model) if is_ours or row.form or row.dtype != "default" else census.plain(row)


def louder(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a result that is a little larger, as it is or in each of its parts."""

    def louder_function(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return tuple(1.1 * each for each in found) if isinstance(found, tuple) else 1.1 * found

    return louder_function


@contextmanager
def requests(census: Any, op: str) -> Iterator[list[Mapping[str, torch.Tensor]]]:
    """The tensors of each request of this kind, by path."""
    sent, request = [], census.group._request

    def noted(header: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if header["op"] == op:
            sent.append({**tensors})
        return request(header, tensors, *args, **kwargs)

    with patch.object(census.group, "_request", noted):
        yield sent


# What packs change for the length of one call, and take back.
Changes = Callable[[Any], AbstractContextManager[Any]]
DURING: dict[str, Changes] = {
    "forward_orig": lambda module: patch.multiple(module, forward_orig=louder(module.forward_orig)),
    "the class's _forward": lambda module: patch.object(type(module), "_forward", louder(type(module)._forward)),
    "a hook": lambda module: module.single_blocks[0].register_forward_hook(lambda _b, _a, result: 1.1 * result),
    "fewer blocks": lambda module: patch.dict(
        module._modules, single_blocks=torch.nn.ModuleList(list(module.single_blocks)[:1])
    ),
    "a function of ComfyUI": lambda _module: replaced_function("comfy.ldm.flux.math", "optimized_attention"),
    "an attribute": lambda module: patch.object(module.double_blocks[0].img_norm1, "eps", 0.5),
    "a list's values": lambda module: other_values(module.pe_embedder.axes_dim, [4, 4, 8]),
    "a part's class": lambda module: of_louder_class(module.single_blocks[0]),
    # Functions that the code of a Flux names: of another module of ComfyUI's, and torch's own.
    "a function of ComfyUI's helpers": lambda _module: replaced_function("comfy.ldm.common_dit", "pad_to_patch_size"),
    "torch's GELU": lambda _module: replaced_function("torch.nn.functional", "gelu"),
}


def in_place_of(method: str) -> Changes:
    """A function in place of the method that a call of the model begins with, which the ranks cannot run."""
    return lambda module: patch.object(module, method, louder(functools.partial(getattr(type(module), method), module)))


# In a wrapper of the module, too: a function, a class, a hook, and a change without code.
IN_WRAPPER = ("forward_orig", "a part's class", "a hook", "fewer blocks")
# The ranks have what these need. The attribute is a block's.
WITHOUT_CODE = {
    "fewer blocks": equal(), "an attribute": replace(equal(), less="one rank"), "a list's values": equal()
}  # fmt: skip


def replaced_function(place: str, name: str) -> AbstractContextManager[Any]:
    module = importlib.import_module(place)
    return patch.object(module, name, louder(getattr(module, name)))


@contextmanager
def of_louder_class(part: Any) -> Iterator[None]:
    before = type(part)
    part.__class__ = type("LouderBlock", (before,), {"forward": louder(before.forward)})
    try:
        yield
    finally:
        part.__class__ = before


@contextmanager
def other_values(target: list[Any], values: list[Any]) -> Iterator[None]:
    before = list(target)
    target[:] = values
    try:
        yield
    finally:
        target[:] = before


def write_numbers(module: torch.nn.Module) -> None:
    """Writes into a buffer that is no weight of the file."""
    for name, buffer in module.named_buffers():
        if name.endswith("inv_freq"):
            buffer.mul_(3.0)


def scaled(*names: str) -> Changes:
    """Replaces weights by larger ones for the length of a call, and then puts copies of them back."""

    @contextmanager
    def change(module: Any) -> Iterator[None]:
        before = {name: module.get_parameter(name).clone() for name in names}
        for name, weight in before.items():
            put(module, name, weight * torch.tensor(1.5, device=weight.device))
        try:
            yield
        finally:
            for name, weight in before.items():
                put(module, name, weight)

    return change


def put(module: Any, name: str, weight: torch.Tensor) -> None:
    path, _, own = name.rpartition(".")
    setattr(module.get_submodule(path), own, torch.nn.Parameter(weight))


def written_and_written_back(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """A weight is written over, after a copy of it was made, and then the copy is written into it."""
    weight = model.model.diffusion_model.img_in.weight
    before, twice = weight.clone(), weight * 2.0
    weight.mul_(-1.0)
    changed = census.sample(row, model)
    weight.copy_(before)
    return [changed, census.sample(row, model), before + 0.0, twice + 0.0]


def written_while_here(census: Any, row: Row, model: Any, change: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Weights that a node changes after a sampling has run as stock. What runs after that has them. A LoRA of a
    sampling is no such change."""
    patched = model.clone()
    patched.set_model_attn1_output_patch(lambda out, _options: 1.1 * out)
    adapted = census.adapt(row, patched, lora=census.a_lora(row, model))
    found = [census.sample(row, adapted), census.sample(row, model)]
    assert not hasattr(model, "remote_module") or not model.remote_module.stock.is_active, "the ranks should have it"
    found.append(census.sample(row, patched))
    change(model.model.diffusion_model)
    found += [census.sample(row, model), census.sample(row, model)]
    assert not hasattr(model, "remote_module") or census.why == ["weights that a node has written over"]
    return found


def negate_a_part(module: Any) -> None:
    module.final_layer.linear.weight[:1].neg_()


def negate_a_quantised_weight(module: Any) -> None:
    weight = module.double_blocks[0].img_mlp[0].weight
    weight.copy_(weight.requantize_from_float(-weight.dequantize()))


def save_by_itself(census: Any, row: Row, model: Any) -> list[torch.Tensor]:
    """What a node writes that saves the module's own state dict, by safetensors and by torch."""
    weights, file, found = model.model.diffusion_model.state_dict(), census.base / "own.safetensors", io.BytesIO()
    save_file(weights, file)
    torch.save(weights, found)
    found.seek(0)
    written = (load_file(file), torch.load(found, weights_only=False))
    return [census.sample(row, model), *(each[name].float() for each in written for name in sorted(each))]


def write_a_quantised_weight(module: Any) -> None:
    weight = module.double_blocks[0].img_mlp[0].weight
    weight.copy_(weight.requantize_from_float(torch.full(weight.shape, 0.02)))


def wrapped(model: Any, wrapper: Callable[[Any, dict[str, Any]], Any]) -> Any:
    """The model with a function around its calls."""
    changed = model.clone()
    changed.set_model_unet_function_wrapper(wrapper)
    return changed


def changed_in_wrapper(census: Any, row: Row, model: Any, change: Changes) -> list[torch.Tensor]:
    """A change for the length of a call, in a function around it."""

    def wrapper(apply_model: Any, given: dict[str, Any]) -> Any:
        with change(model.model.diffusion_model):
            return apply_model(given["input"], given["timestep"], **given["c"])

    found = [census.sample(row, wrapped(model, wrapper)), sample_after(census, row, model)]
    assert not hasattr(model, "remote_module") or not model.remote_module.stock.is_active, "the ranks should have it"
    return found


def changed_inside(census: Any, row: Row, model: Any, change: Changes) -> list[torch.Tensor]:
    """A change for the length of a call, in a wrapper right around the module, from the second step on."""
    patched, calls = model.clone(), []

    def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        with change(model.model.diffusion_model) if len(calls) > 1 else nullcontext():
            return executor(*args, **kwargs)

    patched.add_wrapper_with_key("diffusion_model", "census", wrapper)
    return [census.sample(row, patched), sample_after(census, row, model)]
