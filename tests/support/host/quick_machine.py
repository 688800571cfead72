"""What was measured of machines that are not there, so that an automatic plan is the same on every machine that tests
run on."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from parallel_backend.costs.machine import CORES, Link, Machine, Speed
from parallel_backend.weights.loading import DTYPES
from worker.host.measured import MeasuredFile, cpu_name

RANKS = (2, 3, 4, 8)
FREE = Link(1e15, 1e-12)
SLOW_CORES = Speed("", 1e8, 1e8, 1e12, 1e-9)


@functools.cache
def quick_machine() -> str:
    """A folder, for the setting `measured`, with the figures of a machine whose links cost nothing. There auto shares
    whatever can be shared."""
    return write_machine(CORES, FREE)


@functools.cache
def tried_machine() -> str:
    """The same of a machine where all plans that share the work are predicted to be as fast. Steps correct that. So
    auto tries them."""
    return write_machine(SLOW_CORES, FREE, is_fixed=False)


def write_machine(speed: Speed, link: Link, is_fixed: bool = True) -> str:
    folder = Path(tempfile.mkdtemp(prefix="pretended-machine-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for ranks in RANKS:
        for dtype in DTYPES:
            speeds = (replace(speed, name=cpu_name()),) * ranks
            kept = MeasuredFile(folder, [cpu_name()] * ranks, dtype)
            kept.keep(asdict(Machine(speeds, link, link, link)))
            kept.path.write_text(json.dumps({**json.loads(kept.path.read_text()), "fixed": is_fixed}))
    return str(folder)
