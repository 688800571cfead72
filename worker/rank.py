"""`python -m worker.rank`, under torchrun: one rank of the worker group, from start to the last request.

Rank 0 reads frames from ComfyUI's job channel and hands each to the other ranks as bytes; every rank then executes
it. What a request's own content makes impossible is refused on all ranks alike and reported; any other exception
ends the rank, and torchrun ends the group with it.
"""

from __future__ import annotations

import functools
import logging
import os
import socket

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from parallel_backend.errors import RequestError
from parallel_backend.mesh import start_distributed

from .control import ControlServer
from .endpoint import connect
from .lifetime import die_with_parent
from .operations import Cancelled, Operations
from .protocol import decode, send_frame
from .relay import FrameRelay

DEVICE = "PARALLELDIT_DEVICE"


def serve(job: socket.socket | None, operations: Operations, relay: FrameRelay) -> None:
    """Executes requests until ComfyUI closes the job channel; `job` is None on ranks other than 0."""
    while True:
        header, tensors = decode(relay.receive(job))
        if header["op"] == "stop":
            return
        try:
            reply, results = {}, operations.execute(header, tensors)
        except RequestError as error:
            reply, results = {"error": str(error)}, None
        except Cancelled:
            reply, results = {"cancelled": True}, None
        if job:
            send_frame(job, {"id": header["id"], **reply}, results)


@record
def main() -> None:
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    device = start_distributed(os.environ[DEVICE])
    relay = FrameRelay()
    job = connect("job") if dist.get_rank() == 0 else None
    operations = Operations(device, relay.group, functools.partial(send_frame, job))
    if job:
        ControlServer(connect("control"), {"status": operations.status, "cancel": operations.cancel}).start()
    serve(job, operations, relay)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
