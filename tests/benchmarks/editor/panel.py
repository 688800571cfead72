"""`COMFYUI_PATH=… python -m tests.benchmarks.editor.panel`: what the panel costs.

Chromium without a GPU, an idle graph, ten runs of twenty steps, an event eight times a second: the frames that the page
shows in a second and its main thread's seconds in a second, with the panel closed and open, in turn. And what the page
loads of the pack: requests, and bytes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser

from demo.host import PACK_NAME, ComfyHost
from tests.support.editor.cost import Cost, cost
from tests.support.editor.editor import Editor, open_browser, open_editor
from tests.support.editor.groups import EVENTS_A_SECOND, PACK, PACK_SOURCE, sampling, tell

TURNS, SECONDS = 3, 8.0
LOADED = """(pack) => performance.getEntriesByType('resource').filter(({ name }) => name.includes(pack))
    .map(({ name, decodedBodySize, startTime, responseEnd }) => [name, decodedBodySize, startTime, responseEnd])"""


def measured(editor: Editor, host: ComfyHost) -> tuple[list[Cost], list[Cost]]:
    """With the panel closed, and open."""
    editor.open({"nodes": [], "links": [], "version": 0.4})
    closed, opened = [], []
    tell(host, *sampling(), seconds=1 / EVENTS_A_SECOND)
    for _ in range(TURNS):
        closed.append(cost(editor.page, SECONDS))
        editor.open_panel()
        editor.page.wait_for_timeout(1000)
        opened.append(cost(editor.page, SECONDS))
        editor.close_panel()
        editor.page.wait_for_timeout(1000)
    tell(host)
    return closed, opened


def measure(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "custom_nodes" / PACK).mkdir(parents=True)
        (base / "custom_nodes" / PACK / "__init__.py").write_text(PACK_SOURCE)
        arguments = ("--whitelist-custom-nodes", PACK_NAME, PACK)
        with (
            ComfyHost(Path(os.environ["COMFYUI_PATH"]), base, extra_args=arguments) as host,
            open_editor(browser, host) as editor,
        ):
            loaded = editor.page.evaluate(LOADED, f"extensions/{PACK_NAME}")
            scripts = [each for each in loaded if each[0].endswith(".js")]
            size, took = sum(each[1] for each in scripts), scripts[-1][3] - min(each[2] for each in scripts)
            print(f"{len(scripts)} scripts, {size / 1024:.0f} KiB, {took:.0f} ms from first to last")
            for name, costs in zip(("closed", "open"), measured(editor, host), strict=True):
                frames, spent = (median(values) for values in zip(*costs, strict=True))
                print(f"| {name} | {frames:.1f} frames/s | {spent:.2f} s of the main thread a second |")


if __name__ == "__main__":
    with open_browser() as browser:
        measure(browser)
