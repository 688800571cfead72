"""One diffusers transformer on a mesh: the call that every rank makes together."""

from __future__ import annotations

import torch

from .attention import UlyssesAttention, install_attention
from .collectives import collect, shard
from .errors import RequestError
from .mesh import Mesh
from .models import ModelSpec, spec_for
from .tokens import install_token_boundary

BATCH_DIM = 0


class ParallelTransformer:
    """Applies a plan to an unmodified diffusers transformer, from outside.

    cfg splits the batch; ulysses splits the tokens between the first and the last block. Raises PlanError if the
    model does not allow the plan and UnknownModelError if its class has no spec.
    """

    def __init__(self, model: torch.nn.Module, mesh: Mesh) -> None:
        self.model = model
        self.mesh = mesh
        self.spec: ModelSpec = spec_for(type(model).__name__)
        mesh.plan.check_model(heads=model.config["num_attention_heads"])
        if self.spec.prepare:
            self.spec.prepare(model)
        if mesh["ulysses"].degree > 1:
            self._shard_tokens()

    def _shard_tokens(self) -> None:
        attend = UlyssesAttention(self.mesh["ulysses"])

        def set_tokens(lengths: dict[str, int]) -> None:
            attend.tokens = sum(lengths.values())

        install_token_boundary(self.model, self.spec, self.mesh["ulysses"], set_tokens)
        for blocks in self.spec.blocks:
            for block in self.model.get_submodule(blocks):
                for name in self.spec.self_attention:
                    install_attention(block.get_submodule(name), attend)

    @torch.inference_mode()
    def __call__(
        self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: dict[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """The model's prediction for a batch, in the shape of `latents` (B, C, H, W), on global rank 0; None elsewhere.

        timestep_B: in the model's own units. conditions: the spec's, each batch first.
        Raises RequestError, on every rank alike, for input that the model cannot take.
        """
        self.check(latents, timestep_B, conditions)
        dtype = self.model.dtype
        batch, cfg = len(latents), self.mesh["cfg"]
        latents = shard(latents, BATCH_DIM, cfg).to(self.mesh.device, dtype)
        timestep_B = shard(timestep_B, BATCH_DIM, cfg).to(self.mesh.device)
        conditions = {
            name: shard(value, BATCH_DIM, cfg).to(self.mesh.device, dtype if value.is_floating_point() else None)
            for name, value in conditions.items()
        }
        config = self.model.config
        if len(latents):
            inputs = self.spec.inputs(config, latents, timestep_B, conditions)
            sample = self.model(**inputs, return_dict=False)[0]
            latents = self.spec.output(config, sample, latents)
        if self.mesh["ulysses"].index:
            return None
        return collect(latents, BATCH_DIM, batch, cfg)

    def check(self, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: dict[str, torch.Tensor]) -> None:
        """Raises RequestError for what the model cannot take; depends on the request alone, so all ranks agree."""
        config = self.model.config
        channels, patch = config["in_channels"], config["patch_size"]
        if latents.ndim != 4 or latents.shape[1] != channels:
            raise RequestError(
                f"The latent has shape {tuple(latents.shape)}, and {self.spec.model_class} here takes "
                f"(batch, {channels}, height, width); use an empty-latent node or a VAE made for this model."
            )
        height, width = latents.shape[-2:]
        if height % patch or width % patch or not height or not width:
            raise RequestError(
                f"The latent is {width}×{height}, and the model works on patches of {patch}×{patch}; "
                f"use a width and height that are multiples of {patch} in latent pixels."
            )
        if set(conditions) != set(self.spec.conditions):
            raise RequestError(
                f"{self.spec.model_class} takes the conditions {', '.join(self.spec.conditions)}; "
                f"got {', '.join(conditions) or 'none'}."
            )
        for name, value in {"timestep": timestep_B, **conditions}.items():
            if len(value) != len(latents):
                raise RequestError(f"{name} is for a batch of {len(value)}, the latent for one of {len(latents)}.")
        for name, value in {"latent": latents, "timestep": timestep_B, **conditions}.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise RequestError(f"The {name} holds NaN or infinite values; the node that made it went wrong.")
        if self.spec.check:
            self.spec.check(config, conditions)
