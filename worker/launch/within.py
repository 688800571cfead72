"""A rendezvous for torchrun on one machine. Its store is within the agent's process, so it opens no port."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from .torchrun import WITHIN


class WithinProcess(StaticTCPRendezvous):
    """The agent is alone, so there is nobody to wait for."""

    def get_backend(self) -> str:
        return WITHIN

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(dist.HashStore(), 0, 1, RendezvousStoreInfo("none", 0))


def register() -> None:
    """Makes it known to torchrun as WITHIN."""
    rendezvous_handler_registry.register(WITHIN, lambda given: WithinProcess("none", 0, 0, 1, given.run_id, 0))
