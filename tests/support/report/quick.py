"""`python3 dev.py gpu --quick`, or python -m tests.support.report.quick [--device cpu] [--out PAGE]:
answers in five minutes: does it run, is it exact, how much faster is it? Measures the links, too, and says which kernel
computes attention.

It needs torch and requirements.txt, and neither ComfyUI nor a model. Each rank makes the same Flux of random weights.
Exit status: 1 where the ranks fail or are not exact, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from parallel_backend.device import THROUGH_THE_HOST
from tests.support.report import machine
from tests.support.report.machine import fenced, listed
from tests.support.report.plans_row import predicted

PAGE = "gpu-report.md"
CPU_RANKS = 2
SECONDS = 280  # then the ranks are ended: what hangs must not cost more than five minutes
EXACT = {"fp32": 1e-5, "bf16": 5e-2}
SAID_LINES = 12


def run_ranks(device: str, ranks: int, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Returns what rank 0 found, a dict a finding, and what the ranks said if they failed."""
    out = folder / "found.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.support.ranks.cuda.quick_ranks", device, str(out)]
    try:
        run = subprocess.run(
            command, cwd=machine.REPOSITORY, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        said = "" if run.returncode == 0 else run.stderr
    except subprocess.TimeoutExpired as late:
        text = late.stderr or b""
        said = f"{text.decode(errors='replace') if isinstance(text, bytes) else text}\nIt took more than {SECONDS} s."
    return read(out), "\n".join(said.strip().splitlines()[-SAID_LINES:])


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def answers(found: Sequence[dict[str, Any]], said: str, ranks: int, expected: str, setting: str) -> list[str]:
    """Returns the page's sections below the machine. setting: to try if cards do not reach one another."""
    plans = [each for each in found if "plan" in each]
    wrong = [each for each in plans if each["error"] > EXACT[each["dtype"]]]
    links = next((each["links"] for each in found if "links" in each), {})
    kernels = next((each["kernels"] for each in found if "kernels" in each), [])
    parts = ["## Does it run?"]
    parts += [f"Yes, on {ranks} rank{'s' if ranks > 1 else ''}." if not said else f"No:\n\n{fenced(said)}"]
    if said and setting and ranks > 1:
        parts += [f"If cards wait for one another, try {setting}; docs/gpus.md has more."]
    parts += ["## Is it exact?", "Nothing was computed." if not plans else "No." if wrong else "Yes."]
    parts += [listed([f"{each['plan']}, {each['dtype']}: relative error {each['error']:.0e}" for each in plans])]
    parts += ["## How much faster?"]
    timed = [each for each in plans if "seconds" in each]
    parts += [listed([f"{each['plan']}: ×{each['faster']:.2f} ({each['seconds']:.4f} s a step)" for each in timed])]
    parts += [expected]
    parts += ["## Attention", listed(kernels)] if kernels else []
    if links:
        parts += ["## Links", listed([link(kind, *links[kind]) for kind in ("all_to_all", "all_gather", "send")])]
        parts += [listed([f"from pinned host memory: {links['host'] / 1e9:.1f} GB/s"])]
    return [part for part in parts if part]


def link(kind: str, rate: float, wait: float) -> str:
    return f"{kind}: {rate / 1e9:.1f} GB/s, {1e6 * wait:.0f} µs"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 dev.py gpu --quick", description=__doc__)
    default = "xpu" if machine.has_intel_cards() else "cuda"
    parser.add_argument("--device", choices=("cuda", "xpu", "cpu"), default=default)
    parser.add_argument("--out", type=Path, default=Path(PAGE))
    options = parser.parse_args(argv)
    device = options.device
    if device != "cpu" and not torch.get_device_module(device).is_available():
        print(machine.why_no_gpu(), file=sys.stderr)
        return 2
    ranks = torch.get_device_module(device).device_count() if device != "cpu" else CPU_RANKS
    print(f"On {ranks} rank{'s' if ranks > 1 else ''}: this takes at most five minutes.", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-quick-") as name:
        found, said = run_ranks(device, ranks, Path(name))
    parts = ["# ParallelDiT: quick GPU report"]
    parts += ["**On the CPU: shows that the report works, not speed.**"] if device == "cpu" else []
    parts += ["## Machine", listed(machine.facts(None, device))]
    links = machine.links(device) if device != "cpu" else ""
    parts += [fenced(links), *machine.hints(links, device)] if links else []
    expected = predicted(ranks, machine.has_fast_links(links), machine.are_alike(device))
    parts += answers(found, said, ranks, expected, THROUGH_THE_HOST.get(device, ""))
    text = machine.without_names("\n\n".join(parts) + "\n", None)
    options.out.write_text(text, encoding="utf-8")
    print(text[text.index("## Does it run?") :])
    print(f"{options.out.resolve()}: it has no names or folders of yours; it is welcome as an issue.", flush=True)
    wrong = any(each["error"] > EXACT[each["dtype"]] for each in found if "plan" in each)
    return int(bool(said) or wrong or not found)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
