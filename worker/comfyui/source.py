"""Descriptions of a model and of a VAE of ComfyUI's own classes, from which the ranks load them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..wire.private_folder import FOLDER

# Methods of a diffusion model beside its forward that use its weights. ComfyUI calls them before the first step.
SENT_METHODS = ("preprocess_text_embeds",)
# How diffusers names a transformer's folder, and the weights in it.
TRANSFORMER = "transformer"
SINGLE_FILE = "diffusion_pytorch_model.safetensors"
SHARDS = "diffusion_pytorch_model-*-of-*.safetensors"


@dataclass(frozen=True)
class HostSource:
    """A model file that ComfyUI's class runs.

    comfyui: the folder of ComfyUI. arguments: the part of its command line that matters to the ranks.
    file: safetensors or GGUF, or the folder of a class-conditional DiT. model_class: of the diffusion model, to show to
    people.
    dtype: of the weights on the device, as torch's name; empty: as the file's format says. cast: the dtype to compute
    in; empty: the same. fast_fp8: multiply fp8 weights without converting them, where the device can. keeps_small:
    small layers stay in the file's dtype, as in a ComfyUI with DynamicVRAM, see `load_weights`. packs: the
    folders of node packs, whose functions may run inside of the model. mark: of the files when they were loaded, see
    `mark_files`. detected: what ComfyUI has detected of the model, see `write_detected`. Empty: detected in the file.
    """

    comfyui: str
    arguments: tuple[str, ...]
    file: str
    model_class: str
    dtype: str
    cast: str
    fast_fp8: bool = False
    keeps_small: bool = False
    packs: tuple[str, ...] = ()
    mark: str = ""
    detected: str = ""

    @property
    def path(self) -> Path:
        """Where the file is on this machine. Weights by value are in the memory of ComfyUI's machine. For the others
        this is a link to a copy, and nothing of the path there is in its name."""
        if not self.detected or os.environ.get("GROUP_RANK", "0") == "0":
            return Path(self.file)
        digest = hashlib.sha256(repr((self.file, self.mark)).encode()).hexdigest()[:16]
        return Path(os.environ[FOLDER]) / f"weights-{digest}{Path(self.file).suffix}"

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(map(str, weight_files(self.path)))

    @property
    def name(self) -> str:
        """The name of the file or of the folder, to show to people."""
        path = Path(self.file)
        return (path.parent if path.name == TRANSFORMER else path).name

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments), "packs": list(self.packs)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HostSource:
        """Raises TypeError or AttributeError for wrong types."""
        lists = {name: tuple(fields.get(name, ())) for name in ("arguments", "packs")}
        return cls(**{**fields, **lists})


def weight_files(file: str | Path) -> list[Path]:
    """Lists the files of a model: the file itself, or of a folder the whole file, the shards, or whatever safetensors
    files there are. A folder may hold variants (fp16) beside the whole file; these are left out."""
    path = Path(file)
    if not path.is_dir():
        return [path]
    for pattern in (SINGLE_FILE, SHARDS, "*.safetensors"):
        if found := sorted(weights_folder(path).glob(pattern)):
            return found
    return []


def weights_folder(folder: Path) -> Path:
    """Returns the folder of a transformer's weights, in the folder of its pipeline or of itself."""
    inner = folder / TRANSFORMER
    return inner if inner.is_dir() else folder


@dataclass(frozen=True)
class VaeSource:
    """A VAE that ComfyUI's class runs. comfyui, arguments: as in HostSource.

    file: safetensors; empty if the weights are sent. vae_class: of the VAE, to show to people. dtype: that it computes
    in, as torch's name. The others describe ComfyUI's own: held: the dtype that it computes in; empty: the same.
    fingerprint: of its weights in that dtype. metadata: what a file contains beside them. structure: of its module, see
    `structure_of`. If the file makes another VAE, the weights are sent.
    """

    comfyui: str
    arguments: tuple[str, ...]
    file: str
    vae_class: str
    dtype: str
    held: str = ""
    fingerprint: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    structure: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments), "metadata": dict(self.metadata)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> VaeSource:
        """Raises TypeError or AttributeError for wrong types."""
        texts = [value for name, value in fields.items() if name not in ("arguments", "metadata")]
        metadata = tuple(fields["metadata"].items())
        if not all(isinstance(text, str) for text in [*texts, *fields["arguments"], *(value for _, value in metadata)]):
            raise TypeError("all fields of a VAE's source must be text")
        return cls(**{**fields, "arguments": tuple(fields["arguments"]), "metadata": metadata})
