"""What was measured of a machine whose links cost nothing, so that an automatic plan shares whatever can be shared, on
every machine that tests run on."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from parallel_backend.costs.machine import CORES, Link, Machine
from parallel_backend.weights.loading import DTYPES
from worker.host.measured import MeasuredFile, cpu_name

RANKS = (2, 3, 4, 8)
FREE = Link(1e15, 1e-12)


@functools.cache
def quick_machine() -> str:
    """A folder with its figures, for the setting `measured`."""
    folder = Path(tempfile.mkdtemp(prefix="quick-machine-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for ranks in RANKS:
        for dtype in DTYPES:
            speeds = (replace(CORES, name=cpu_name()),) * ranks
            kept = MeasuredFile(folder, [cpu_name()] * ranks, dtype)
            kept.keep(Machine(speeds, FREE, FREE, FREE).to_json())
            kept.path.write_text(json.dumps({**json.loads(kept.path.read_text()), "fixed": True}))
    return str(folder)
