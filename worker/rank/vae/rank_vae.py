"""One of ComfyUI's own VAEs on all ranks."""

from __future__ import annotations

import torch

from parallel_backend.vae.parallel import ParallelVAE, Sizes

from ...comfyui.vae import HostVae
from ..job_groups import JobGroups

CPU = torch.device("cpu")


class RankVae:
    """host: as ComfyUI built it. parallel: the same VAE, run by all ranks together."""

    def __init__(self, host: HostVae, groups: JobGroups) -> None:
        """Runs collectives. Raises RequestError for a VAE that cannot be split."""
        vae, axis = host.vae, groups.whole()
        sizes = Sizes(host.scale, vae.latent_channels, vae.output_channels, vae.latent_dim + 2)
        self.host = host
        self.parallel = ParallelVAE(host.module, axis, sizes, groups.whole(CPU))
