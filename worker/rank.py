"""`python -m worker.rank`, under torchrun: one rank of the worker group, from start to the last request.

Rank 0 reads frames from ComfyUI's job channel and hands each to the other ranks as bytes; every rank then executes
it. What a request's own content makes impossible is refused on all ranks alike and reported; any other exception
ends the rank, and torchrun ends the group with it.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from parallel_backend.errors import RequestError

from .control import ControlServer
from .endpoint import connect
from .lifetime import die_with_parent
from .operations import Operations
from .protocol import ConnectionClosed, decode, encode, receive_frame

DEVICE = "PARALLELDIT_DEVICE"
FOREVER = timedelta(days=3650)


class FrameRelay:
    """Hands rank 0's frames to every rank, over a group of its own that may idle for as long as it likes."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo", timeout=FOREVER)

    def share(self, frame: bytearray | None) -> bytearray:
        """Rank 0 gives the frame, the others None; all get the frame."""
        if dist.get_world_size() == 1:
            return frame
        length = torch.tensor([len(frame) if frame else 0])
        dist.broadcast(length, 0, group=self.group)
        frame = frame if frame is not None else bytearray(int(length))
        dist.broadcast(torch.frombuffer(frame, dtype=torch.uint8), 0, group=self.group)
        return frame


def start_distributed() -> torch.device:
    """Joins the group torchrun made and returns this rank's device: a GPU each with NCCL, or the CPU with gloo."""
    if os.environ[DEVICE] == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


def serve(job: socket.socket | None, operations: Operations, relay: FrameRelay) -> None:
    """Executes requests until ComfyUI closes the job channel; `job` is None on ranks other than 0."""
    while True:
        frame = None
        if job:
            try:
                frame = receive_frame(job)
            except ConnectionClosed:
                frame = bytearray(encode({"op": "stop"}))
        header, tensors = decode(relay.share(frame))
        if header["op"] == "stop":
            return
        try:
            reply, results = {}, operations.execute(header, tensors)
        except RequestError as error:
            reply, results = {"error": str(error)}, None
        if job:
            job.sendall(encode({"id": header["id"], **reply}, results))


@record
def main() -> None:
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    device = start_distributed()
    relay = FrameRelay()
    operations = Operations(device, relay.group)
    if dist.get_rank() == 0:
        ControlServer(connect("control"), operations.status).start()
        serve(connect("job"), operations, relay)
    else:
        serve(None, operations, relay)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
