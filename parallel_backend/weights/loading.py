"""Loads a diffusers transformer from a config and safetensors files, reading only what the model asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from ..compat import kept_in_fp32
from ..errors import ModelFileError, is_out_of_memory

if TYPE_CHECKING:
    from diffusers import ModelMixin

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Check = Callable[[], None]  # called before each tensor is read; may raise, to give up


def go_on() -> None:
    """The check of who never gives up."""


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
    """

    model_class: str
    config: Mapping[str, Any]
    files: tuple[str, ...]
    dtype: str = "fp32"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ModelSource:
        return cls(**{**fields, "files": tuple(fields["files"])})


def class_of(source: ModelSource) -> Any:
    """diffusers' class, which is imported now if it has not been. Raises AttributeError where it has no such."""
    import diffusers

    return getattr(diffusers, source.model_class)


def build_transformer(source: ModelSource) -> ModelMixin:
    """The model without its weights: parameters are on the meta device, in the dtype to be loaded; buffers are real.

    Raises ModelFileError.
    """
    from diffusers.models.modeling_utils import no_init_weights

    try:
        with no_init_weights():
            model = class_of(source).from_config(dict(source.config)).eval()
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
    check: Check = go_on,
    but: Collection[str] = (),
) -> None:
    """Reads the weights that the model has, and no others, onto `device`. Raises ModelFileError, or what `check` does.

    parts: what to read of those parameters that this rank does not hold whole; they are DTensors in the model. but:
    names of parameters that have their values.
    """
    held = {name: tensor for name, tensor in model.state_dict().items() if name not in but}
    tensors = read_tensors(source, {name: tensor.shape for name, tensor in held.items()}, parts, check)
    for name, tensor in tensors.items():
        check()  # the file's pages may be read only now
        tensors[name] = placed_like(held[name], tensor.to(device, loaded_dtype(model, name, source)))
    model.load_state_dict(tensors, strict=not but, assign=True)
    torch.nn.Module.to(model, device).requires_grad_(False)


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
    check: Check = go_on,
) -> dict[str, torch.Tensor]:
    """Reads the wanted tensors by parameter name, or the parts of them that are named in `parts`.

    wanted: the shapes of whole parameters. Raises ModelFileError for what is missing or of another shape, or what
    `check` does.
    """
    tensors: dict[str, torch.Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in source.files:
        try:
            # Columns are copied: the pages that they touch go with a mapping of their own.
            with safe_open(path, framework="pt") as file, safe_open(path, framework="pt") as passing:
                held = set(file.keys())
                for name in wanted.keys() & held:
                    check()
                    shapes[name] = tuple(file.get_slice(name).get_shape())
                    if shapes[name] == wanted[name]:
                        part = parts.get(name)
                        tensors[name] = read_part(passing if part and part.dim else file, name, part)
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
    return tensors


def read_part(file: Any, name: str, part: LocalPart | None = None) -> torch.Tensor:
    """Reads a parameter, a view of the file's pages, which ranks share; or a part of it."""
    if part is None:
        return file.get_tensor(name)
    view = file.get_slice(name)
    pieces = [view[:, start:stop] if part.dim else view[start:stop] for start, stop in part.ranges]
    return torch.cat(pieces, part.dim) if len(pieces) > 1 else pieces[0].contiguous()
