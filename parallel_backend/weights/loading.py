"""Loads a diffusers transformer from a config and safetensors files, reading only what the model asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from ..compat import kept_in_fp32
from ..errors import ModelFileError, is_out_of_memory
from .float8 import FLOAT8, install_float8

if TYPE_CHECKING:
    from diffusers import ModelMixin

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCALES = (".scale_weight", ".weight_scale")  # of fp8 weights, beside them: the name of old, and ComfyUI's

Check = Callable[[], None]  # called before each tensor is read; may raise, to give up


def go_on() -> None:
    """The check of who never gives up."""


@dataclass(frozen=True)
class TensorSlice:
    """Where a parameter lies in a file: a tensor's name and, for fused tensors, `length` rows of it from `start`.

    swapped: whether the second half of these rows comes first in the parameter.
    """

    name: str
    start: int = 0
    length: int | None = None
    swapped: bool = False


@dataclass(frozen=True)
class LocalPart:
    """What a rank holds of a parameter: these ranges (start, stop) of a dim, joined."""

    dim: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ModelSource:
    """A transformer on disk.

    model_class and config: the diffusers class and its configuration.
    files: safetensors files that together hold the weights.
    dtype: what the weights are cast to; a key of DTYPES.
    names: parameter to its place in the files, where the files do not use diffusers' own names.
    prefix: what the tensors' names begin with in files in the layout of the model's authors, for which there are no
    `names` yet: `locate` finds them.
    """

    model_class: str
    config: Mapping[str, Any]
    files: tuple[str, ...]
    dtype: str = "fp32"
    names: Mapping[str, TensorSlice] | None = None
    prefix: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ModelSource:
        names = fields["names"] and {name: TensorSlice(**place) for name, place in fields["names"].items()}
        return cls(**{**fields, "files": tuple(fields["files"]), "names": names})


def build_transformer(source: ModelSource) -> ModelMixin:
    """The model without its weights: parameters are on the meta device, in the dtype to be loaded; buffers are real.

    Raises ModelFileError.
    """
    import diffusers
    from diffusers.models.modeling_utils import no_init_weights

    try:
        with no_init_weights():
            model = getattr(diffusers, source.model_class).from_config(dict(source.config)).eval()
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelFileError(f"{source.model_class} refuses the model's config: {error}") from error
    for path, parameter in list(model.named_parameters()):
        owner, _, name = path.rpartition(".")
        empty = torch.empty_like(parameter, dtype=loaded_dtype(model, path, source), device="meta")
        setattr(model.get_submodule(owner), name, torch.nn.Parameter(empty, requires_grad=False))
    return model


def loaded_dtype(model: torch.nn.Module, name: str, source: ModelSource) -> torch.dtype:
    """The dtype in which a parameter or buffer is computed with."""
    in_fp32 = kept_in_fp32(model)
    return torch.float32 if any(part in in_fp32 for part in name.split(".")) else DTYPES[source.dtype]


def load_weights(
    model: torch.nn.Module,
    source: ModelSource,
    device: torch.device,
    parts: Mapping[str, LocalPart],
    float8: Collection[str] = (),
    check: Check = go_on,
) -> None:
    """Reads the weights that the model has, and no others, onto `device`. Raises ModelFileError, or what `check` does.

    parts: what to read of those parameters that this rank does not hold whole; they are DTensors in the model.
    float8: the parameters that stay in fp8 if the files have them so.
    """
    held = model.state_dict()
    shapes = {name: tensor.shape for name, tensor in held.items()}
    tensors, scales = read_tensors(source, shapes, parts, float8, check)
    for name, tensor in tensors.items():
        check()  # the file's pages may be read only now
        dtype = tensor.dtype if name in scales else loaded_dtype(model, name, source)
        tensors[name] = placed_like(held[name], tensor.to(device, dtype))
    model.load_state_dict(tensors, assign=True)
    torch.nn.Module.to(model, device).requires_grad_(False)
    install_float8(model, scales)


def placed_like(held: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter as the DTensor that the parameter is, if it is one."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, held.device_mesh, held.placements) if isinstance(held, DTensor) else local


def local_part(held: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a parameter; ComfyUI's process has this module too, and no torch.distributed."""
    from torch.distributed.tensor import DTensor

    return held.to_local() if isinstance(held, DTensor) else held


def read_tensors(
    source: ModelSource,
    wanted: dict[str, torch.Size],
    parts: Mapping[str, LocalPart],
    float8: Collection[str] = (),
    check: Check = go_on,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Reads the wanted tensors by parameter name, or the parts of them that are named in `parts`.

    wanted: the shapes of whole parameters. Weights with a scale beside them come multiplied by it, but for those of
    `float8` that are stored in fp8: they come as they are, and their scales as well, 1 where they have none. Raises
    ModelFileError for what is missing or of another shape, or what `check` does.
    """
    tensors: dict[str, torch.Tensor] = {}
    scales: dict[str, float] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in source.files:
        try:
            # Columns are copied: the pages that they touch go with a mapping of their own.
            with safe_open(path, framework="pt") as file, safe_open(path, framework="pt") as passing:
                held = set(file.keys())
                for name in wanted:
                    check()
                    place = source.names.get(name) if source.names else TensorSlice(name)
                    if place and place.name in held:
                        shapes[name] = stored_shape(file, place)
                        if shapes[name] == wanted[name]:
                            part = parts.get(name)
                            tensor = read_slice(passing if part and part.dim else file, place, part)
                            beside = scale_of(place.name, held)
                            scale = float(file.get_tensor(beside).float()) if beside else 1.0
                            if name in float8 and tensor.dtype in FLOAT8:
                                scales[name] = scale
                            elif beside:
                                tensor = (tensor.float() * scale).to(DTYPES[source.dtype])
                            tensors[name] = tensor
        except (SafetensorError, OSError) as error:
            if is_out_of_memory(error):
                raise
            raise ModelFileError(f"{path} cannot be read as safetensors ({error}).", "Download it again.") from error
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(wanted)} weights of {source.model_class} are not in {', '.join(source.files)}, "
            f"the first is {missing[0]}; the file is incomplete or of another model."
        )
    for name, shape in shapes.items():
        if shape != wanted[name]:
            raise ModelFileError(
                f"{name} has shape {shape} in the file and {tuple(wanted[name])} by the config; "
                "config and weights are of different models."
            )
    return tensors, scales


def scale_of(name: str, held: Collection[str]) -> str | None:
    """The name of a weight's scale, if there is one among these."""
    layer = name.removesuffix(".weight")
    return next((layer + end for end in SCALES if layer + end in held), None) if layer != name else None


def stored_shape(file: Any, place: TensorSlice) -> tuple[int, ...]:
    """The shape of the whole parameter at `place`, without reading it."""
    shape = file.get_slice(place.name).get_shape()
    return tuple(shape if place.length is None else [min(place.length, shape[0] - place.start), *shape[1:]])


def read_slice(file: Any, place: TensorSlice, part: LocalPart | None = None) -> torch.Tensor:
    """Reads the parameter at `place`, or a part of it, as it is stored: without a scale.

    Whole rows are a view of the file's pages, which ranks share.
    """
    if not place.swapped and part is None:
        whole = file.get_tensor(place.name)
        return whole if place.length is None else whole[place.start : place.start + place.length]
    view = file.get_slice(place.name)
    length = stored_shape(file, place)[0]
    rows = part.ranges if part and part.dim == 0 else ((0, length),)
    pieces = []
    for start, stop in swap_halves(rows, length) if place.swapped else rows:
        stored = slice(place.start + start, place.start + stop)
        columns = [view[stored, start:stop] for start, stop in part.ranges] if part and part.dim else [view[stored]]
        pieces.append(torch.cat(columns, 1) if len(columns) > 1 else columns[0])
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0].contiguous()


def swap_halves(ranges: Iterable[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """Where these ranges of a parameter lie in a tensor that has the parameter's two halves the other way around."""
    half = length // 2
    for start, stop in ranges:
        if start < half:
            yield start + half, min(stop, half) + half
        if stop > half:
            yield max(start, half) - half, stop - half
