"""`python -m tests.support.group.first_machine SILENCE LOGS`: the client of a worker group, told by lines on stdin.

Its machines are those of the variable PARALLELDIT_MACHINES, as ComfyUI's are.

A line is JSON: source, plan, and the file to write the prediction to; or with "endlessly", forwards until one fails.
Each is answered by a line: the error (empty if there is none), its kind, and its time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from parallel_backend.plan import ParallelPlan
from tests.support.cases.families import SQUARE
from tests.support.group.direct_group import DIT, DirectGroup
from worker.comfyui.source import HostSource
from worker.errors import RequestRefused, WorkerGroupError
from worker.host.client import WorkerGroup
from worker.settings import Settings


def answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def serve(group: WorkerGroup, order: dict) -> None:
    direct = DirectGroup(group, DIT, HostSource.from_json(order["source"]), ParallelPlan(**order["plan"]))
    inputs = DIT.inputs(*DIT.shapes[SQUARE])
    direct.load()
    prediction = direct.call(*inputs)
    if order.get("endlessly"):
        answer(pids=group.status()["pids"])
        while True:
            direct.call(*inputs)
    save_file({"prediction": prediction}, order["file"])


def main(silence: str, logs: str) -> None:
    settings = Settings.read(os.environ, Path(logs) / "nowhere.json")
    group = WorkerGroup("cpu", Path(logs), replace(settings, silence_seconds=float(silence), restarts=1000))
    for line in sys.stdin:
        error, kind = "", ""
        try:
            serve(group, json.loads(line))
        except (RequestRefused, WorkerGroupError) as failure:
            error, kind = str(failure), type(failure).__name__
        answer(error=error, kind=kind, at=time.time(), pids=group.status().get("pids"))
    group.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
