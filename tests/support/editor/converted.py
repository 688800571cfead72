"""Workflows that the editor makes parallel and stock again."""

from __future__ import annotations

import copy
from typing import Any

from playwright.sync_api import Page

PARALLEL, STOCK = "ParallelDiT.MakeWorkflowParallel", "ParallelDiT.MakeWorkflowStock"
PARALLELIZE, PARALLELIZE_VAE = "ParallelDiT_Parallelize", "ParallelDiT_ParallelizeVAE"
# The saved workflow, once some frames have left it as it is: what is drawn as a web page tells its height late.
SETTLED = """async () => {
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 50)))
    let [now, still] = ['', 0]
    while (still < 3) {
        await frame()
        const next = JSON.stringify(window.app.rootGraph.serialize())
        still = next === now ? still + 1 : 0
        now = next
    }
    return JSON.parse(now)
}"""
EXECUTE = "(id) => window.app.extensionManager.command.execute(id)"


def saved(page: Page) -> dict[str, Any]:
    """The open workflow as the editor saves it."""
    return page.evaluate(SETTLED)


def execute(page: Page, command: str) -> None:
    page.evaluate(EXECUTE, command)


def graphs_of(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """A saved workflow's own graph and its subgraphs."""
    return [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]


def without_view(workflow: dict[str, Any]) -> dict[str, Any]:
    """A workflow without where the editor looks at."""
    kept = copy.deepcopy(workflow)
    kept.get("extra", {}).pop("ds", None)
    return kept
