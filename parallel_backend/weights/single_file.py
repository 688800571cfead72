"""Files in the layout of a model's authors: where in them diffusers' own converters find the parameters.

A converter is run on the numbers of the rows in place of the weights, which says where each parameter's rows are; so
a rank reads its own part of a fused tensor, and nothing is held twice.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelFileError, is_out_of_memory
from .adapters import Addition
from .loading import SCALES, ModelSource, TensorSlice

BESIDE_WEIGHTS = (*SCALES, ".input_scale", ".scale_input", ".comfy_quant", "scaled_fp8")
# The width for which a converter is written, where it takes one for granted.
WIDTHS = {
    "HunyuanVideoTransformer3DModel": 3072,
    "Lumina2Transformer2DModel": 2304,
}
MLP, EMBEDDERS = ("img_", "txt_", "blocks.0.", "blocks.1."), ("time_in", "guidance_in", "t_embedder")
# ComfyUI's parts of names and a converter's, for files that ComfyUI has saved; to be replaced in this order.
RENAMED = {
    "HunyuanVideoTransformer3DModel": {
        "_attn.norm.query_norm.": "_attn_q_norm.",
        "_attn.norm.key_norm.": "_attn_k_norm.",
        ".norm.query_norm.": ".q_norm.",
        ".norm.key_norm.": ".k_norm.",
        "_attn.qkv.": "_attn_qkv.",
        "_attn.proj.": "_attn_proj.",
        **{f"{name}mlp.{n}.": f"{name}mlp.fc{n // 2 + 1}." for name in MLP for n in (0, 2)},
        "_mod.lin.": "_mod.linear.",
        ".modulation.lin.": ".modulation.linear.",
        "c_embedder.in_layer.": "c_embedder.linear_1.",
        "c_embedder.out_layer.": "c_embedder.linear_2.",
        **{f"{name}.in_layer.": f"{name}.mlp.0." for name in EMBEDDERS},
        **{f"{name}.out_layer.": f"{name}.mlp.2." for name in EMBEDDERS},
    },
}

Shapes = Mapping[str, tuple[int, ...]]


def locate(source: ModelSource) -> ModelSource:
    """The source with the places of its parameters, where they are for a converter to tell. Raises ModelFileError."""
    if source.prefix is None:
        return source
    shapes: dict[str, tuple[int, ...]] = {}
    for path in source.files:
        try:
            with safe_open(path, framework="pt") as file:
                own = (name for name in file.keys() if name.startswith(source.prefix))  # noqa: SIM118 (not a dict)
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in own}
        except (SafetensorError, OSError) as error:
            if is_out_of_memory(error):
                raise
            raise ModelFileError(f"{path} cannot be read as safetensors ({error}).", "Download it again.") from error
    weights = {
        name: shape for name, shape in shapes.items() if shape and all(shape) and not name.endswith(BESIDE_WEIGHTS)
    }
    return replace(source, prefix=None, names=places(source, weights))


def places(source: ModelSource, shapes: Shapes) -> dict[str, TensorSlice]:
    """The place of each parameter, from the shapes of the tensors in the files. Raises ModelFileError."""
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    convert = SINGLE_FILE_LOADABLE_CLASSES[source.model_class]["checkpoint_mapping_fn"]
    width = model_width(source.config)
    assumed = WIDTHS.get(source.model_class, width)
    starts, numbers, total = {}, {}, 0
    for name, (rows, *_) in shapes.items():
        starts[name] = total
        own = total + torch.arange(rows * assumed // width) * width // assumed
        numbers[original_name(name, source)] = own if len(shapes[name]) == 1 else own[:, None]
        total += rows
    try:
        converted = convert(checkpoint=numbers, config=dict(source.config))
    except (KeyError, IndexError, RuntimeError, ValueError) as error:
        raise ModelFileError(
            f"{', '.join(source.files)} does not have the tensors of a {source.model_class} ({error}); the file is "
            "incomplete, or of another model."
        ) from error
    names, firsts = list(starts), list(starts.values())
    found = {}
    for parameter, rows in converted.items():
        if rows is not None:
            run = torch.unique_consecutive(rows.flatten())
            name = names[bisect.bisect_right(firsts, int(run[0])) - 1]
            found[parameter] = place_of(parameter, run - starts[name], name, shapes[name][0])
    return found


def original_name(name: str, source: ModelSource) -> str:
    """A tensor's name as the converter knows it."""
    name = name.removeprefix(source.prefix or "")
    for part, original in RENAMED.get(source.model_class, {}).items():
        name = name.replace(part, original)
    return name


def model_width(config: Mapping[str, Any]) -> int:
    return config.get("hidden_size") or config["num_attention_heads"] * config["attention_head_dim"]


def place_of(parameter: str, rows: torch.Tensor, name: str, whole: int) -> TensorSlice:
    """The place of a parameter that has these rows, in this order, of a tensor with `whole` rows."""
    length = len(rows)
    ordered = torch.arange(length)
    if torch.equal(rows, ordered) and length == whole:
        return TensorSlice(name)
    if torch.equal(rows - rows[0], ordered):
        return TensorSlice(name, int(rows[0]), length)
    start = int(rows.min())
    if torch.equal(rows - start, ordered.roll(-(length // 2))):
        return TensorSlice(name, start, length, swapped=True)
    raise ModelFileError(f"{parameter} is put together from {name} in a way that is not supported.")


def by_parameter(additions: Iterable[Addition], names: Mapping[str, TensorSlice]) -> Iterator[Addition]:
    """Additions to tensors of the files, as additions to the parameters that lie in them.

    Raises ModelFileError for one to a tensor that is no parameter of diffusers' class.
    """
    held = {place.name for place in names.values()}
    for addition in additions:
        if addition.parameter not in held:
            raise ModelFileError(
                f"{addition.parameter} is in the file and no weight of the parallel model, so the LoRA cannot be "
                "applied whole.",
                "Remove it, or use the stock loader.",
            )
        for parameter, place in names.items():
            if place.name == addition.parameter:
                for row, tensor_row, count in runs(place, addition.row + addition.count):
                    first = max(tensor_row, addition.row)
                    length = min(tensor_row + count, addition.row + addition.count) - first
                    if length > 0:
                        yield replace(
                            addition,
                            parameter=parameter,
                            row=row + first - tensor_row,
                            up_row=addition.up_row + first - addition.row,
                            count=length,
                        )


def runs(place: TensorSlice, last: int) -> tuple[tuple[int, int, int], ...]:
    """(row of the parameter, row of the tensor, how many); `last` rows are enough of a parameter that is the whole."""
    length = last if place.length is None else place.length
    half = length // 2
    if place.swapped:
        return (0, place.start + half, half), (half, place.start, half)
    return ((0, place.start, length),)
