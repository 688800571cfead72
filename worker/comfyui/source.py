"""A model or a VAE that ComfyUI's own classes run, as the ranks are told of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# Methods of a diffusion model beside its forward that compute with its weights, and that ComfyUI calls before the first
# step.
PARTS = ("preprocess_text_embeds",)


@dataclass(frozen=True)
class HostSource:
    """comfyui: the folder of ComfyUI. arguments: its command line, as far as it is the ranks'.

    file: safetensors or GGUF. model_class: of the diffusion model, for people. dtype, cast: what its weights are stored
    in on the device, and what they are computed in, as names in torch; empty for what their format says, and for the
    same. fast_fp8: whether weights in fp8 are multiplied as they are, where the device can.
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
    """A VAE, as the ranks are told of it. comfyui, arguments: as in HostSource.

    file: safetensors; empty where the weights are sent. vae_class: of the VAE, for people. dtype: what it computes in,
    as a name in torch. Of sent weights: their fingerprint; metadata, what a file would say beside them; structure, that
    they are to make, see `structure_of`.
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
        """Raises TypeError and AttributeError for what none can be."""
        texts = [value for name, value in fields.items() if name not in ("arguments", "metadata")]
        metadata = tuple(fields["metadata"].items())
        if not all(isinstance(text, str) for text in [*texts, *fields["arguments"], *(value for _, value in metadata)]):
            raise TypeError("a VAE's source is text throughout")
        return cls(**{**fields, "arguments": tuple(fields["arguments"]), "metadata": metadata})
