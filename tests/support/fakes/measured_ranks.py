"""`python -m tests.support.fakes.measured_ranks COMFYUI FOLDER`: when prompts let the ranks measure themselves.

Reads from stdin, as JSON: the seconds at which prompts begin, and by measurement how many times slower the second rank
is. The measurements are pretended; they are kept in FOLDER. Prints for each prompt how often the ranks have measured
themselves by then, and how many times slower the second rank counts.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from tests.support.host.mounted import mount
from tests.support.host.quick_machine import two_ranks


def main(comfyui: str, folder: str) -> None:
    begins, slower = json.load(sys.stdin)
    os.environ["PARALLELDIT_MEASURED"] = folder
    mount(comfyui)
    machine = importlib.import_module("pack.nodes.costs.machine")
    found, left = [], list(slower)
    group: Any = SimpleNamespace(measure=lambda _ranks, _dtype, _check: two_ranks(left.pop(0)).to_json())
    for begin in begins:
        machine.time = SimpleNamespace(time=lambda begin=begin: begin)
        machine.measured_file.cache_clear()  # as if ComfyUI had been started again
        machine.measure(group, "fp32", lambda: None)
        known = machine.machine_of("fp32")
        assert known.is_measured
        first, second = known.speeds
        found.append((len(slower) - len(left), round(first.linear / second.linear, 2)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
