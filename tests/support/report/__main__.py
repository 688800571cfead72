"""`python3 dev.py gpu`, or python -m tests.support.report [--device cpu] [--out PAGE] [pytest arguments...]:
runs the tests marked gpu on this machine's GPUs, measures what a step takes, and writes a page to send back.

COMFYUI_PATH names the ComfyUI. Exit status: 1 where a test failed or the timing did, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import torch

from demo.host import REPOSITORY
from tests.support.report import machine
from tests.support.report.machine import fenced
from tests.support.report.page import page
from tests.support.report.plans_row import predicted
from tests.support.report.results import Results, read
from tests.support.report.timing import Timing, measure

PAGE = "gpu-report.md"
CPU_RANKS = 2
FIRST, LAST = 2, 10  # lines of why there are no times


def run_tests(folder: Path, device: str, arguments: Sequence[str]) -> tuple[Results | None, str]:
    """Their results, or why there are none."""
    written = folder / "results.xml"
    named = any((REPOSITORY / argument.partition("::")[0]).exists() for argument in arguments)
    command = [sys.executable, "-m", "pytest", "-c", "tests/pytest.ini", "-m", "gpu", "--device", device, "-s"]
    command += [f"--junitxml={written}", "-o", "junit_family=xunit1", *([] if named else ["tests"]), *arguments]
    code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
    try:
        return read(written), ""
    except (OSError, ET.ParseError):
        return None, f"pytest ended with {code} before it wrote its results."


def time_steps(comfyui: Path, folder: Path, device: str, devices: int) -> tuple[Timing | None, str]:
    """The times, or why there are none."""
    try:
        return measure(comfyui, folder, device, devices), ""
    except Exception as error:  # whatever it is, what the tests found is written
        print(error, file=sys.stderr)
        lines = str(error).splitlines()  # of which a host's end with its log
        said = lines if len(lines) <= FIRST + LAST else [*lines[:FIRST], "…", *lines[-LAST:]]
        return None, "It came to no end:\n\n" + fenced("\n".join(said))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 dev.py gpu", description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to see that the report works")
    parser.add_argument("--out", type=Path, default=Path(PAGE))
    options, arguments = parser.parse_known_args(argv)
    out, device, comfyui = options.out.resolve(), options.device, Path(os.environ["COMFYUI_PATH"]).resolve()
    if device == "cuda" and not torch.cuda.is_available():
        print(machine.why_no_gpu(), file=sys.stderr)
        return 2
    devices = torch.cuda.device_count() if device == "cuda" else CPU_RANKS
    where = f"{devices} GPU{'s' if devices > 1 else ''}" if device == "cuda" else f"{devices} ranks on the CPU"
    print(
        f"On {where}: first the tests of the GPU path, then the time of a step in ComfyUI, on random weights that are "
        f"made here (4 GB on GPUs). Nothing is sent anywhere; the report is written to {out}.",
        flush=True,
    )
    facts, links = machine.facts(comfyui, device), machine.links(device) if device == "cuda" else ""
    every = ["--slow"] if device == "cuda" else []
    with tempfile.TemporaryDirectory(prefix="gpu-report-") as name:
        folder = Path(name)
        results, tests_said = run_tests(folder, device, [*every, *arguments])
        timing, timing_said = time_steps(comfyui, folder / "base", device, devices)
    text = page(
        device=device,
        machine=facts,
        links="\n".join([links, *machine.hints(links, device)]) if links else "",
        expected=predicted(devices, machine.has_fast_links(links), machine.are_alike(device)) if links else "",
        results=results,
        tests_said=tests_said,
        timing=timing,
        timing_said=timing_said,
        settings=machine.settings(os.environ.items()),
    )
    out.write_text(machine.without_names(text, comfyui), encoding="utf-8")
    failed = results.counts["failed"] if results else 1
    print(f"{out}: {failed} failed. It has no names or folders of yours; it is welcome as an issue.", flush=True)
    return int(bool(failed) or timing is None)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
