"""What a step moves between ComfyUI and rank 0, and how long that takes: through the socket, and through memory.

OMP_NUM_THREADS=1 python -m tests.benchmarks.host.frames [--rounds 60]

Another process answers latents with a prediction of their size, and computes nothing. Milliseconds are of the
CPU, in both processes: latents there, prediction back. On a GPU, two copies over its link come on top.
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import torch

from worker.wire.job_channel import SLOTS, FrameMemory, HostChannel, RankChannel
from worker.wire.protocol import PREFIX, decode, encode, receive_frame

TOKEN = "a" * 64
WARM = 8  # rounds before, which make room
LATENTS = {"Flux, 1024²": (1, 16, 128, 128), "Wan, 720p, 81 frames": (1, 16, 21, 90, 160)}


def be_rank(connection: socket.socket, memory: FrameMemory | None) -> None:
    """Answers until ComfyUI's end closes."""
    channel, count = RankChannel(connection, memory), 0
    while True:
        count += 1
        slot = memory.requests[count % SLOTS] if memory else None
        _, tensors = decode(receive_frame(connection, in_memory=slot.view if slot else None))
        channel.send({}, {"prediction.0.0": tensors["latents"]})


def measure(latents: torch.Tensor, through_memory: bool, rounds: int) -> tuple[float, float]:
    """Returns the CPU milliseconds of a round in both processes, and the bytes that the socket carries in one."""
    theirs, ours = socket.socketpair()
    memory = FrameMemory.create(TOKEN) if through_memory else None
    rank = os.fork()
    if not rank:
        ours.close()
        try:
            be_rank(theirs, memory)
        finally:
            os._exit(0)
    theirs.close()
    channel = HostChannel(ours, FrameMemory.open(memory.flow.address, TOKEN, writes=True) if memory else None)

    def ask() -> None:
        channel.send(encode({"op": "call"}, {"latents": latents}))
        _, found = channel.receive(latents.device)
        assert found["prediction.0.0"].shape == latents.shape

    for _ in range(WARM):
        ask()
    began = time.process_time()
    for _ in range(rounds):
        ask()
    own = time.process_time() - began
    ours.close()
    theirs_used = os.wait4(rank, 0)[2]
    seconds = own + (theirs_used.ru_utime + theirs_used.ru_stime) * rounds / (rounds + WARM)
    whole = 2 * sum(map(len, encode({"op": "call"}, {"latents": latents})))
    return 1e3 * seconds / rounds, 2 * PREFIX.size if through_memory else whole


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.host.frames")
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{'a step of':24}{'MB':>8}{'CPU ms, socket':>16}{'CPU ms, memory':>16}{'bytes in the socket':>24}")
    for name, shape in LATENTS.items():
        latents = torch.randn(shape)
        (before, carried), (now, left) = (measure(latents, through, rounds) for through in (False, True))
        print(f"{name:24}{2 * latents.nbytes / 1e6:8.1f}{before:16.2f}{now:16.2f}{f'{carried} → {left}':>24}")


if __name__ == "__main__":
    main()
