"""The timelines of all ranks as one trace, for https://ui.perfetto.dev or Chrome's about:tracing.

The format is https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Each rank is a row, and
the rows of a machine are together. A request contains its steps, and a step contains its communication. The rest of a
step is computation.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.groups.collectives import gather_json
from parallel_backend.groups.timeline import COMMUNICATION, STEP, Span, Timeline

NANOSECONDS_PER_UNIT = 1000  # the format uses microseconds


def gather_trace(timeline: Timeline, group: dist.ProcessGroup) -> torch.Tensor | None:
    """Returns the trace of all ranks on rank 0, as uint8 bytes of its JSON; None elsewhere. All ranks call this
    together."""
    record = {
        "rank": dist.get_rank(),
        "machine": int(os.environ.get("GROUP_RANK", 0)),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "clock": time.time_ns() - time.monotonic_ns(),
        "spans": timeline.spans(),
    }
    records = gather_json(record, group)
    if dist.get_rank():
        return None
    return torch.frombuffer(bytearray(json.dumps(build_chrome_trace(records)).encode()), dtype=torch.uint8)


def build_chrome_trace(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Builds the trace from the ranks' records, in the order of the ranks.

    Ranks of a machine share its monotonic clock. Ranks of different machines are aligned by their wall clocks, so their
    rows are as far off as those clocks.
    """
    clocks: dict[int, int] = {}
    for record in records:
        clocks.setdefault(record["machine"], record["clock"])
    begins = [clocks[record["machine"]] + begin for record in records for _, _, begin, _ in record["spans"]]
    origin = min(begins, default=time.time_ns())
    events = []
    for record in records:
        ids = {"pid": record["machine"], "tid": record["rank"]}
        machine, rank = f"machine {record['machine']} ({record['host']})", f"rank {record['rank']} ({record['pid']})"
        for kind, name in (("process_name", machine), ("thread_name", rank)):
            events.append({"name": kind, "cat": "__metadata", "ph": "M", "ts": 0, **ids, "args": {"name": name}})
        spans = [Span(*fields) for fields in record["spans"]]
        offset = clocks[record["machine"]] - origin
        events += [{**event, **ids} for event in list_rank_events(spans, offset)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def list_rank_events(spans: list[Span], offset: int) -> list[dict[str, Any]]:
    """Turns one rank's spans, sorted by end, into events. offset: from the rank's clock to the trace's."""
    events, inside = [], []
    for span in spans:
        length = span.end - span.begin
        event: dict[str, Any] = {"name": span.name, "cat": span.category, "ph": "X"}
        event["ts"], event["dur"] = (span.begin + offset) / NANOSECONDS_PER_UNIT, length / NANOSECONDS_PER_UNIT
        if span.category == COMMUNICATION:
            inside.append(span)
        elif span.category == STEP:
            waited = sum(wait.end - wait.begin for wait in inside if wait.begin >= span.begin)
            inside.clear()
            event["args"] = {"communication": waited / 1e9, "computation": (length - waited) / 1e9}
        events.append(event)
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))
