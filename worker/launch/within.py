"""A rendezvous for torchrun on one machine. Its store is within the agent's process, so it opens no port."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous


class WithinProcess(StaticTCPRendezvous):
    """The agent is alone, so there is nobody to wait for."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__("none", 0, 0, 1, parameters.run_id, 0)
        self.backend = parameters.backend

    def get_backend(self) -> str:
        return self.backend

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo("none", 0))


def register(name: str) -> None:
    """Makes it known to torchrun by this name."""
    rendezvous_handler_registry.register(name, WithinProcess)
