"""Which of the workflows that ComfyUI ships run with Parallelize Model in them: a table of docs/classes.md.

COMFYUI_PATH=… python -m tests.benchmarks.templates [--write] [--all]

Each workflow's model files are described by the loader's own code, from names and shapes of published proportions, and
its nodes are put behind the loader's MODEL (`tests/support/templates/describe.py`). The table is printed, with
--all each workflow as well; --write puts it into the page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parallel_backend.axes import BATCH_AXES, TOKEN_AXES
from tests.support.pages import show_table
from tests.support.programs import run_program
from tests.support.templates.model_files import other_use
from tests.support.templates.workflows import Workflow, release, workflows

TABLE = "templates"  # by its name in the page
TOKENS = "loads; tokens, or a UNet's rows, are shared over Ulysses and ring"
BATCH = "loads; the batch alone is shared (cfg, dp)"
ONE = "loads, on one device: neither can be shared"
AS_STOCK = "loads; ComfyUI's own device runs it alone, as stock, for a node"
REFUSED = "is refused"
UNKNOWN = "names a model file whose shapes the tests do not know"
NO_MODEL = "has no diffusion model"
NO_SPEC = "it has no spec yet"
WAYS = (TOKENS, BATCH, ONE)  # of a workflow's models, the last of these counts
# Why the functions of these nodes need all tokens.
NEEDS_ALL = {
    "FluxKVCache": "it keeps keys and values of the references, whose tokens are the last ones, for later steps",
    "WanAnimate2Cache": "it keeps what the pose's video gave, for later steps",
}


def describe(comfyui: Path, *names: str) -> Mapping[str, Any]:
    """By file, of those that the workflows name and of these, what the loader's code says of it."""
    return run_program(comfyui, "tests.support.templates.describe", *names)


def outcome(workflow: Workflow, described: Mapping[str, Any]) -> tuple[str, str]:
    """What comes of a workflow, and why, where not all of it is shared or it has no diffusion model."""
    files = [name for name in workflow.models if not other_use(name)]
    if not files:
        return NO_MODEL, "; ".join(sorted({other_use(name) for name in workflow.models})) or "it loads none"
    if unknown := [name for name in files if name not in described]:
        return UNKNOWN, ", ".join(unknown)
    found = [described[name] for name in files]
    for each in found:
        if "refused" in each:
            return REFUSED, each["refused"]
        for node in sorted(each["as_stock"].keys() & workflow.nodes):
            return AS_STOCK, node
    ways = [way_of(each) for each in found]
    whole = sorted({node for each in found for node in workflow.nodes & set(each["whole_tokens"])})
    ways += [(BATCH, f"{node}: {NEEDS_ALL[node]}") for node in whole]
    return max(ways, key=lambda way: WAYS.index(way[0]))


def way_of(described: Mapping[str, Any]) -> tuple[str, str]:
    """How a model is shared, and why not in more ways."""
    plan, reasons = described["plan"], [described["unshared"], described["coupled"]]
    for way, axes in ((TOKENS, TOKEN_AXES), (BATCH, BATCH_AXES)):
        if any(plan[axis] > 1 for axis in axes):
            return way, "" if way == TOKENS else f"{described['model_class']}: {reasons[0] or NO_SPEC}"
    return ONE, f"{described['model_class']}: {'; '.join(filter(None, reasons))}"


def table(outcomes: Iterable[tuple[Workflow, str, str]]) -> str:
    """A row a kind of outcome, and one a reason why less is shared, with the workflows' names; uses are by the
    package's index."""
    rows = list(outcomes)
    with_model = [workflow for workflow, kind, _ in rows if kind != NO_MODEL]
    uses = sum(workflow.usage for workflow in with_model)

    def row(words: str, found: list[Workflow]) -> str:
        return f"| {words} | {len(found)} | {100 * sum(each.usage for each in found) / uses:.1f} % |"

    lines = [f"| of {len(with_model)} workflows with a diffusion model ({release()}) | workflows | of their uses |"]
    lines.append("|---|---|---|")
    ways = [*WAYS, AS_STOCK, REFUSED] + [UNKNOWN] * any(kind == UNKNOWN for _, kind, _ in rows)
    for way in ways:
        lines.append(row(way, [workflow for workflow, kind, _ in rows if kind == way]))
        for reason in sorted({why for _, kind, why in rows if kind == way and why}):
            found = [workflow for workflow, kind, why in rows if (kind, why) == (way, reason)]
            names = ", ".join(f"`{name}`" for name in sorted(workflow.name for workflow in found))
            lines.append(row(f"– {reason} ({names})", found))
    return "\n".join(lines) + "\n"


def main() -> None:
    described = describe(Path(os.environ["COMFYUI_PATH"]))
    outcomes = [(workflow, *outcome(workflow, described)) for workflow in workflows()]
    if "--all" in sys.argv:
        print(*(f"{workflow.name}: {kind} {why}" for workflow, kind, why in outcomes), sep="\n")
    show_table(TABLE, table(outcomes))


if __name__ == "__main__":
    main()
