"""How far the latents of files are from the stock loader's: a table of docs/exactness.md.

COMFYUI_PATH=… python -m tests.benchmarks.parity [--write]

Every case of `stock_cases` is sampled three times through the API queue: by ComfyUI's own loader and model code, and by
ours on one rank and on two. The table is printed; --write puts it into the page.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from demo.host import ComfyHost
from tests.support.cases.stock_cases import CASES
from tests.support.host.graphs import latents, relative_error, status
from tests.support.host.stock_prompts import host_with_cases, prompt
from tests.support.pages import show_table

PLANS = {"1 rank": {"cfg": 1}, "ulysses 2": {"ulysses": 2}}


def measure(host: ComfyHost) -> dict[str, dict[str, dict[str, float]]]:
    """By ComfyUI's class, case and plan, the relative error."""
    stock = {name: latents(host, prompt(name)) for name in CASES}
    errors: dict[str, dict[str, dict[str, float]]] = {}
    for words, plan in PLANS.items():
        for name in CASES:
            error = relative_error(latents(host, prompt(name, plan)), stock[name])
            errors.setdefault(status(host)["model"], {}).setdefault(name, {})[words] = error
            print(f"{name}, {words}: {error:.1e}", flush=True)
    return errors


def table(errors: dict[str, dict[str, dict[str, float]]]) -> str:
    """One row a class; the errors are the largest of its cases."""
    lines = [f"| ComfyUI's class | compared | {' | '.join(PLANS)} |", "|---|---|" + "---|" * len(PLANS)]
    for model_class, cases in sorted(errors.items()):
        largest = [f"{max(found[plan] for found in cases.values()):.0e}" for plan in PLANS]
        lines.append(f"| {' | '.join([model_class, ', '.join(cases), *largest])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        host_with_cases(Path(os.environ["COMFYUI_PATH"]), Path(folder), CASES) as host,
    ):
        rows = table(measure(host))
    show_table("parity", rows)


if __name__ == "__main__":
    main()
