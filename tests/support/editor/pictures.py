"""`python3 dev.py pictures [NAME...]` makes the pages' film and pictures and the templates' pictures anew.

Each shows a part of the real editor, as wide as GitHub shows a page's pictures in a window of 1280 px, so that it does
not reduce the text. The demo's workflow runs on two ranks for them. Other templates are not run: their files are tiny
ones of the same names. Templates made of ComfyUI's have their pictures from there (example_workflows/NOTICE.md).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, ViewportSize, expect

from demo.host import REPOSITORY, ComfyHost
from tests.support.editor.editor import CONTEXT, Editor, open_browser, wait_for
from tests.support.editor.examples import FOLDER, boxes, open_example, settle
from tests.support.files.template_files import EXAMPLE_FILES, files_in
from tests.support.host.graphs import ranks
from tests.support.templates.examples import TABLE

DOCS = REPOSITORY / "web" / "docs"
COLUMN = 830  # pixels: of GitHub's page in a window of 1280, without what is around it
ICONS, TABS, BAR = 58, 38, 94  # pixels: where its icons end at the left, its tabs and its Run button at the top
MARGIN, BADGE = 12, 16  # around nodes; the height of the pack's name above its nodes
SHARP, SHARP_FILM = 2, 1  # pixels of a picture for each of the page's
LEAST_TEXT = 11  # pixels
LARGER, SMALLER = 1.2, 0.92  # for a node with a plan, whose text is smaller than the others', and for high nodes
QUALITY = 70
PLAN = {"mode": "manual", "dp": 1, "cfg": 2, "ring": 1, "ulysses": 1, "pipefusion": 1}
WARM, STEPS = 20, 120  # of a run before, which is measured, and of the film's: some seconds
RUN = ("demo", "pipefusion")
TEMPLATE_HEIGHT = 770
BEFORE_MS, PRESSED_MS, AFTER_MS = 2500, 400, 3500
PREVIEWS = ("--preview-method", "latent2rgb")
RUN_TIMEOUT_MS = 180_000
# What ComfyUI shows over the canvas, but for the Run button.
SETTINGS = {
    **dict.fromkeys(("Comfy.Graph.CanvasInfo", "Comfy.Graph.CanvasMenu", "Comfy.Minimap.Visible"), False),
    "Comfy.Queue.QPOV2": True,
}
SET = "async ([name, value]) => { await window.app.extensionManager.setting.set(name, value) }"
# Has a point of the graph at a point of the page.
MOVE = """([left, top, x, y, scale]) => {
    const {canvas} = window.app
    const at = canvas.canvas.getBoundingClientRect()
    canvas.deselectAll()
    Object.assign(canvas.ds, {scale, offset: [(left - at.left) / scale - x, (top - at.top) / scale - y]})
    canvas.setDirty(true, true)
}"""
LISTEN = """() => {
    Object.assign(window, { ended: 0, reached: 0 })
    window.app.api.addEventListener('execution_success', () => { window.ended++ })
    window.app.api.addEventListener('progress', ({ detail }) => { window.reached = detail.value })
}"""
TOAST = re.compile("^Job (queued|completed|failed)$")  # ComfyUI's
SHOWS_AN_IMAGE = "() => window.app.graph.nodes.some((node) => node.type === 'SaveImage' && node.imgs?.length)"
TAKE_NOTES = "() => window.app.graph.findNodesByType('MarkdownNote').forEach((note) => window.app.graph.remove(note))"
# The smallest text in pixels: of the panel, of the error, of widgets in that part of the page, and of the canvas.
SMALLEST = """([left, top, right, bottom]) => {
    const found = [window.LiteGraph.NODE_SUBTEXT_SIZE * window.app.canvas.ds.scale]
    for (const place of ["[data-testid='paralleldit-panel']", '.paralleldit-error', '.dom-widget']) {
        for (const element of document.querySelectorAll(`${place} *`)) {
            const box = element.getBoundingClientRect()
            const isIn = box.left < right && box.right > left && box.top < bottom && box.bottom > top
            const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
            if (!isText || !element.checkVisibility() || (place === '.dom-widget' && !isIn)) continue
            found.push(parseFloat(getComputedStyle(element).fontSize) * (box.width / element.offsetWidth || 1))
        }
    }
    return Math.min(...found)
}"""


class Studio:
    """An editor with a window for pictures that high, and what it looks at."""

    def __init__(self, editor: Editor, height: int) -> None:
        self.editor = editor
        self.page = editor.page
        editor.resize(ViewportSize(width=ICONS + COLUMN, height=height))
        for setting in SETTINGS.items():
            self.page.evaluate(SET, setting)
        self.page.evaluate(LISTEN)
        self.smallest = float("inf")

    def look(self, title: str, scale: float = 1, *, to_the_right: bool = False, below: str = "") -> None:
        """Moves the canvas so that a node is at its left or right, and at its top, or as far below as from another."""
        found = {box[0]: box for box in boxes(self.editor)}
        _, x, _, width, _ = found[title]
        y = found[below or title][2]
        at = ICONS + COLUMN - MARGIN - width * scale if to_the_right else self.left() + 2 * MARGIN
        self.page.evaluate(MOVE, [at, BAR + MARGIN + BADGE * scale, x, y, scale])
        settle(self.editor)

    def left(self) -> float:
        """Where the canvas begins that can be seen."""
        panel = self.page.get_by_test_id("paralleldit-panel")
        box = panel.bounding_box() if panel.is_visible() else None
        return box["x"] + box["width"] if box else ICONS

    def shoot(self, top: int = TABS) -> Image.Image:
        """The page from there on, without the editor's icons."""
        size = self.page.viewport_size
        assert size
        clip = FloatRect(x=ICONS, y=top, width=COLUMN, height=size["height"] - top)
        canvas = [self.left(), top, ICONS + COLUMN, size["height"]]
        self.smallest = min(self.smallest, self.page.evaluate(SMALLEST, canvas))
        return Image.open(io.BytesIO(self.page.screenshot(clip=clip))).convert("RGB")

    def run(self, **sampler: int) -> None:
        """Runs the open workflow to its end."""
        self.start(**sampler)
        wait_for(self.page, "window.ended", timeout=RUN_TIMEOUT_MS)

    def start(self, **sampler: int) -> None:
        if sampler:
            self.editor.set_widgets("KSampler", **sampler)
        self.page.evaluate("() => { Object.assign(window, { ended: 0, reached: 0 }) }")
        self.editor.run()


def open_demo(studio: Studio, **plan: object) -> None:
    open_example(studio.editor, "demo")
    studio.editor.set_plan(**{**PLAN, **plan})


def film(studio: Studio, host: ComfyHost) -> None:
    """Parallelize Model and its plan, Run, the panel beside the sampler, and the image: as long as it takes."""
    open_demo(studio, cfg=1)
    studio.run(seed=1, steps=WARM)  # on one device, so that the panel compares with a time that was measured
    open_demo(studio)
    studio.run(seed=2, steps=WARM)
    studio.look("Parallelize Model", LARGER)
    frames, lengths = [studio.shoot()], [BEFORE_MS]
    studio.start(seed=7, steps=STEPS)
    frames.append(studio.shoot())
    lengths.append(PRESSED_MS)
    studio.editor.open_panel()
    studio.look("KSampler", SMALLER)
    while not studio.page.evaluate("window.ended"):
        began = time.monotonic()
        frames.append(studio.shoot())
        lengths.append(round(1000 * (time.monotonic() - began)))
    expect(studio.page.get_by_test_id("paralleldit-state")).to_have_text("Ready")
    studio.look("Save Image", SMALLER, to_the_right=True)
    wait_for(studio.page, SHOWS_AN_IMAGE)
    settle(studio.editor)
    expect(studio.page.get_by_text(TOAST)).to_be_hidden()
    frames.append(studio.shoot())
    lengths.append(AFTER_MS)
    keep(studio, DOCS / "film.webp", *frames, duration=lengths, loop=0, quality=QUALITY, method=6)


def panel(studio: Studio, host: ComfyHost) -> None:
    """In the midst of a run."""
    open_demo(studio)
    studio.run(seed=3, steps=WARM)
    studio.editor.open_panel()
    studio.look("KSampler")
    studio.start(seed=7, steps=2 * STEPS)
    wait_for(studio.page, f"window.reached >= {STEPS}")
    keep(studio, DOCS / "panel.jpg", studio.shoot())
    host.interrupt()


def error(studio: Studio, host: ComfyHost) -> None:
    """What the sampler's node says when a rank is killed in the midst of a run."""
    open_demo(studio)
    studio.editor.open_panel()
    studio.look("KSampler", SMALLER)
    studio.start(seed=8, steps=2 * STEPS)
    wait_for(studio.page, f"window.reached >= {STEPS}")
    os.kill(ranks(host)[1], signal.SIGKILL)
    expect(studio.page.get_by_test_id("paralleldit-error")).to_be_visible()
    studio.page.get_by_test_id("error-overlay-dismiss").click()  # of what ComfyUI says
    expect(studio.page.get_by_text(TOAST)).to_be_hidden()
    keep(studio, DOCS / "error.jpg", studio.shoot())


def plan(studio: Studio, host: ComfyHost) -> None:
    """One that does not fit."""
    open_demo(studio, cfg=1, ulysses=9)
    expect(studio.editor.plan("content").get_by_role("alert")).to_be_visible()
    studio.look("Parallelize Model", LARGER)
    keep(studio, DOCS / "plan.jpg", studio.shoot(BAR))


def template(studio: Studio, name: str) -> None:
    """What a workflow has drawn, and the nodes before that; or, if it is not run, Parallelize Model."""
    open_example(studio.editor, name)
    studio.page.evaluate(TAKE_NOTES)
    if name in RUN:
        studio.run()
        studio.look("Save Image", to_the_right=True, below="VAE Decode")
        wait_for(studio.page, SHOWS_AN_IMAGE)
        settle(studio.editor)
        expect(studio.page.get_by_text(TOAST)).to_be_hidden()
    else:
        studio.look("Parallelize Model", LARGER)
    keep(studio, FOLDER / f"{name}.jpg", studio.shoot(BAR))


def keep(studio: Studio, path: Path, *frames: Image.Image, **options: object) -> None:
    """Raises ValueError for text that is too small to read."""
    if studio.smallest < LEAST_TEXT:
        raise ValueError(f"{path.name} has text of {studio.smallest:.1f} px.")
    frames[0].save(path, save_all=len(frames) > 1, append_images=frames[1:], **{"quality": QUALITY, **options})
    size = "{} × {}".format(*frames[0].size)
    print(
        f"{path.name}: {size}, {path.stat().st_size >> 10} KiB, text of {studio.smallest:.1f} px and more", flush=True
    )
    studio.smallest = float("inf")


# Of the pages in web/docs: height of the window and what makes them.
PAGES: dict[str, tuple[int, Callable[[Studio, ComfyHost], None]]] = {
    "film": (660, film),
    "plan": (520, plan),
    "panel": (900, panel),
    "error": (890, error),
}
TEMPLATES = tuple(name for name, example in TABLE.items() if not example.base)


def main(*names: str) -> None:
    """By a ComfyUI that has every model which the workflows name, with tiny weights."""
    comfyui = Path(os.environ["COMFYUI_PATH"])
    with (
        tempfile.TemporaryDirectory() as base,
        tempfile.TemporaryDirectory() as scratch,
        files_in(EXAMPLE_FILES, comfyui, Path(base), Path(scratch)),
        ComfyHost(comfyui, Path(base), extra_args=PREVIEWS) as host,
        open_browser() as browser,
    ):
        for name in names or (*PAGES, *TEMPLATES):
            sharp = SHARP_FILM if name == "film" else SHARP
            with contextlib.closing(browser.new_context(**CONTEXT, device_scale_factor=sharp)) as context:
                height, make = PAGES.get(name, (TEMPLATE_HEIGHT, None))
                studio = Studio(Editor(context.new_page(), host.url), height)
                make(studio, host) if make else template(studio, name)
                print(*studio.editor.problems, sep="\n", end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
