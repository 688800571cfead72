"""Worker groups that are not there, as a host would tell its pages of them: any number of GPUs, runs and steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.host import ComfyHost
from tests.support.host.graphs import ask

PACK = "paralleldit_told"  # the folder of the node pack that sends events
PACK_SOURCE = (Path(__file__).parent / "told.py").read_text(encoding="utf-8")
NUMBER = 6  # of the group, which no other test has
EVENT = "paralleldit.group"
GIB = 1 << 30
CARD = {"name": "NVIDIA GeForce RTX 4090", "bytes": int(23.6 * GIB)}
RUNS, STEPS = 10, 20
TOLD = json.loads(Path(__file__).with_name("told.json").read_text())  # what all states and runs have alike

Event = dict[str, Any]


def tell(host: ComfyHost, *events: Event) -> None:
    """Has the host send these to its pages."""
    ask(host, "/test/told", json.dumps({"events": [[EVENT, event] for event in events]}).encode())


def status(ranks: int, **changes: Any) -> dict[str, Any]:
    """Of so many ranks, a card each."""
    used = [int((20.5 - rank / 10) * GIB) for rank in range(ranks)]
    return {
        **TOLD["status"],
        "pids": [4711 + rank for rank in range(ranks)],
        "devices": [{"index": rank, "name": CARD["name"], "outside": 0} for rank in range(ranks)],
        "memory": [{**TOLD["memory"], "total": CARD["bytes"], "accelerator": each} for each in used],
        "beats": [0.1] * ranks,
        "plan": {"dp": 1, "cfg": 1, "ring": 1, "ulysses": ranks, "attention": "auto"},
        **changes,
    }


def run(number: int, made: int = STEPS, **changes: Any) -> dict[str, Any]:
    """A sampling that has made so many of its steps."""
    lengths = [0.42 + 0.05 * ((number + step) % 4) for step in range(made)]
    is_done = made == STEPS
    return {
        **TOLD["run"],
        **{"id": number, "began": 1.7e9 + 60 * number, "total": STEPS, "at": made, "made": made},
        "usual": sorted(lengths[1:])[(made - 2) // 2] if made > 1 else lengths[0] if lengths else None,
        "startup": 1.2 if made else None,
        "left": 0.5 * (STEPS - made) if made > 1 else None,
        "steps": [[length, 0.3 * length] for length in lengths],
        "state": "done" if is_done else "running",
        "seconds": sum(lengths) + 1.2 if is_done else None,
        **changes,
    }


def event(runs: Sequence[dict[str, Any]] = (), ranks: int = 2, **changes: Any) -> Event:
    """What the feed sends. changes: of the status."""
    return {"group": NUMBER, "status": status(ranks, **changes), "runs": list(runs)}


def sampling(ranks: int = 2) -> list[Event]:
    """The events of a run from its first step to its last, after nine others; memory goes up and down."""
    found = [event([run(number) for number in range(1, RUNS)], ranks)]
    for made in range(1, STEPS + 1):
        working = status(ranks, state="busy", operation="call")
        for place, held in enumerate(working["memory"]):
            held["accelerator"] -= ((made + place) % 5) * GIB // 10
        found.append({**event([run(RUNS, made)], ranks), "status": working})
    return found
