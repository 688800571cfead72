"""Descriptions of a model and of a VAE of ComfyUI's own classes, from which the ranks load them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# Other methods of a diffusion model than its forward that use its weights. ComfyUI calls them before the first step.
PARTS = ("preprocess_text_embeds",)


@dataclass(frozen=True)
class HostSource:
    """A model file that ComfyUI's class runs.

    comfyui: the folder of ComfyUI. arguments: the part of its command line that matters to the ranks.
    file: safetensors or GGUF. model_class: of the diffusion model, to show to people.
    dtype: of the weights on the device, as torch's name; empty: as the file's format says. cast: the dtype to compute
    in; empty: the same. fast_fp8: multiply fp8 weights without converting them, where the device can.
    """

    comfyui: str
    arguments: tuple[str, ...]
    file: str
    model_class: str
    dtype: str
    cast: str
    fast_fp8: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HostSource:
        return cls(**{**fields, "arguments": tuple(fields["arguments"])})


@dataclass(frozen=True)
class VaeSource:
    """A VAE that ComfyUI's class runs. comfyui, arguments: as in HostSource.

    file: safetensors; empty if the weights are sent. vae_class: of the VAE, to show to people. dtype: that it computes
    in, as torch's name. For sent weights: fingerprint; metadata: what a file would contain beside them; structure: of
    the module that they must build, see `structure_of`.
    """

    comfyui: str
    arguments: tuple[str, ...]
    file: str
    vae_class: str
    dtype: str
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
