"""Two ranks of which the first has a token and memory of its own, as a stranger has who knows the store."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.ranks.leaving import end
from worker.rank.channels.relay import FrameRelay
from worker.wire.job_channel import FRAMES, FrameMemory
from worker.wire.private_folder import TOKEN
from worker.wire.protocol import decode, encode, send_pieces

TOKENS = ("b" * 64, "a" * 64)


def main(machines: str, out: str) -> None:
    """machines: how many the ranks are on. Each rank writes to OUT.RANK what it took for a frame, or the error."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.environ |= {TOKEN: TOKENS[rank], "LOCAL_WORLD_SIZE": str(dist.get_world_size() // int(machines))}
    memory = FrameMemory.create()  # ComfyUI's is rank 1's; a stranger has another
    os.environ |= {FRAMES: memory.address} if machines == "1" else {}
    ours, theirs = socket.socketpair()
    try:
        relay = FrameRelay(torch.device("cpu"))
        if rank == 0:
            send_pieces(ours, encode({"op": "load", "packs": ["/attacker"]}))
        header, _ = decode(relay.receive(None if rank else theirs))
        said = f"took {header}"
    except (RuntimeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
    Path(f"{out}.{rank}").write_text(said)
    end()
