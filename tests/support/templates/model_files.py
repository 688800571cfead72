"""The model files that ComfyUI's own workflows and the example workflows name, and what ComfyUI detects in each.

A file's names and shapes are those of ComfyUI's own class, made by the class of `comfy.supported_models`.
`model_files.json` has only what those two do not say themselves, by published proportions. "like" has what some kinds
of files share. Blocks are fewer where nothing depends on their number; "published" has the example workflows' numbers.
An older ComfyUI lacks some of these classes, and its workflows name no files of theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.support.templates.examples import HERE, TABLE

KNOWN = json.loads((HERE / "model_files.json").read_text())
PUBLISHED = tuple(KNOWN["published"])
# Files that are larger than their matrices in fp8: some are in bf16, but which is not known. int8 is as large as fp8.
MIXED = (
    *("flux2_dev_fp8mixed.safetensors", "flux-2-klein-base-9b-fp8.safetensors"),
    "minimax_h3_fl2va_pruned_int8_convrot.safetensors",
)


@dataclass(frozen=True)
class ModelFile:
    """names: a regular expression of the names of such files, in lower case. detected_as: the class of
    comfy.supported_models. sizes: on which names and shapes depend, beside what the classes say.

    prefix: of the names in a checkpoint. beside: what else it has that ComfyUI makes the model with, by name the shape.
    marks: names without a meaning but that they are there. says: what its metadata says, which its weights do not show.
    stored: the dtype of matrices and kernels. size: in bytes, of a file in which so many matrices are as they were that
    it comes to that.
    """

    names: str
    detected_as: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    beside: Mapping[str, list[int]] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    says: Mapping[str, Any] = field(default_factory=dict)
    stored: torch.dtype = torch.bfloat16
    size: float = 0


def sizes_like(name: str) -> dict[str, Any]:
    own = dict(KNOWN["like"][name])
    return {**(sizes_like(own.pop("like")) if "like" in own else {}), **own}


def read(like: str = "", **entry: Any) -> ModelFile:
    sizes = {**(sizes_like(like) if like else {}), **entry.pop("sizes", {}), **entry.get("says", {})}
    sizes |= {name: getattr(torch, size) for name, size in sizes.items() if name.endswith("_dtype")}
    return ModelFile(**entry, sizes=sizes)


MODEL_FILES = tuple(read(**entry) for entry in KNOWN["files"])
# Models that make no image, sound or shape out of noise, and what they are.
NOT_DIFFUSION = {
    r"sam3.*": "it finds objects (SAM 3)",
    r"rt_detr.*": "it finds objects (RT-DETR)",
    r"sdpose_.*": "it finds poses (SDPose)",
}


def model_file(name: str) -> ModelFile | None:
    """What is known of a file by its name."""
    return next((each for each in MODEL_FILES if re.fullmatch(each.names, name.lower())), None)


def published(name: str) -> ModelFile:
    """A file of the example workflows at the size at which it is published: all blocks, as they are stored."""
    depth, kind = KNOWN["published"][name], model_file(name)
    assert kind, name
    stored = torch.float8_e4m3fn if "fp8" in name or "int8" in name else torch.bfloat16
    size = next(1e9 * example.model.gb for example in TABLE.values() if example.files and example.model.name == name)
    return replace(kind, sizes={**kind.sizes, **depth}, stored=stored, size=size if name in MIXED else 0)


def other_use(name: str) -> str:
    """What a model that is no diffusion model is for; empty for one that is."""
    return next((use for names, use in NOT_DIFFUSION.items() if re.fullmatch(names, name.lower())), "")
