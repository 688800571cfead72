"""`COMFYUI_PATH=... python -m tests.support.editor.pictures [NAME...]`:
makes the templates' pictures anew, and those of docs/editor.md.

The page's, in web/docs, are of the screenshots that the tests in the editor have left; run those first. A template's
is a screenshot of the workflow's graph in the real editor, without its notes, and reduced. The demo model's workflows
are run first and show what they drew; another has tiny files by the names of its models.
Templates that are made of ComfyUI's have their pictures from there (example_workflows/NOTICE.md).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, ViewportSize

from demo.host import REPOSITORY, ComfyHost
from tests.support.editor.editor import SCREENSHOTS, Editor, open_browser, open_editor, wait_for
from tests.support.editor.examples import FOLDER, boxes, open_example, settle
from tests.support.files.template_files import EXAMPLE_FILES, files_in
from tests.support.templates.examples import TABLE

RUN = ("demo", "pipefusion")
# The page's pictures: of which screenshot, and which part of it (left, top, right, bottom).
PAGE_PICTURES = {
    "panel": ("panel-dark", (0, 0, 1600, 900)),
    "plan": ("plan-invalid-canvas", (190, 190, 1040, 590)),
    "error": ("error-killed-rank", (0, 0, 1600, 900)),
}
WIDTH = 1200
MARGIN = 20
BADGE = 16  # the height of the pack's name, which stands above its nodes
CHROME = {"left": 120, "top": 220, "right": 60, "bottom": 320}  # of the editor, which lies over its canvas
QUALITY = 85
PREVIEWS = ("--preview-method", "latent2rgb")
RUN_TIMEOUT_MS = 180_000
MOVE = """async ([x, y]) => {
    const {canvas} = window.app
    const at = canvas.canvas.getBoundingClientRect()
    canvas.deselectAll()
    Object.assign(canvas.ds, {scale: 1, offset: [x - at.left, y - at.top]})
    canvas.setDirty(true, true)
    for (let frame = 0; frame < 5; frame++) await new Promise(requestAnimationFrame)
}"""
TAKE_NOTES = "() => window.app.graph.findNodesByType('MarkdownNote').forEach((note) => window.app.graph.remove(note))"
QUEUE = "() => window.app.queuePrompt(0)"
SHOWS_AN_IMAGE = "() => window.app.graph.nodes.some((node) => node.type === 'SaveImage' && node.imgs?.length)"


@contextlib.contextmanager
def host_with_names(comfyui: Path) -> Iterator[ComfyHost]:
    """A ComfyUI that has every model which the workflows name, with tiny weights."""
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as scratch:
        with (
            files_in(EXAMPLE_FILES, comfyui, Path(base), Path(scratch)),
            ComfyHost(comfyui, base, extra_args=PREVIEWS) as host,
        ):
            yield host


def photograph(editor: Editor, name: str) -> Image.Image:
    """The graph of a workflow, once it has run where it is to be run."""
    open_example(editor, name)
    if name in RUN:
        editor.page.evaluate(QUEUE)
        wait_for(editor.page, SHOWS_AN_IMAGE, timeout=RUN_TIMEOUT_MS)
    editor.page.evaluate(TAKE_NOTES)
    settle(editor)
    nodes = boxes(editor)
    left, top = min(box[1] for box in nodes), min(box[2] for box in nodes) - BADGE
    width, height = max(box[1] + box[3] for box in nodes) - left, max(box[2] + box[4] for box in nodes) - top
    sizes = (CHROME["left"] + width + CHROME["right"], CHROME["top"] + height + CHROME["bottom"])
    editor.resize(ViewportSize(width=round(sizes[0]), height=round(sizes[1])))
    editor.page.evaluate(MOVE, [CHROME["left"] - left, CHROME["top"] - top])
    clip = FloatRect(
        x=CHROME["left"] - MARGIN, y=CHROME["top"] - MARGIN, width=width + 2 * MARGIN, height=height + 2 * MARGIN
    )
    return reduced(Image.open(io.BytesIO(editor.page.screenshot(clip=clip))).convert("RGB"))


def reduced(image: Image.Image) -> Image.Image:
    width = min(WIDTH, image.width)
    return image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)


def main(*names: str) -> None:
    comfyui = Path(os.environ["COMFYUI_PATH"])
    names = names or (*PAGE_PICTURES, *(name for name, example in TABLE.items() if not example.base))
    for name in [name for name in names if name in PAGE_PICTURES]:
        screenshot, part = PAGE_PICTURES[name]
        image = reduced(Image.open(SCREENSHOTS / f"{screenshot}.png").convert("RGB").crop(part))
        image.save(REPOSITORY / "web" / "docs" / f"{name}.jpg", quality=QUALITY, optimize=True)
    names = tuple(name for name in names if name not in PAGE_PICTURES)
    if not names:
        return
    with host_with_names(comfyui) as host, open_browser() as browser:
        for name in names:
            with open_editor(browser, host) as editor:
                photograph(editor, name).save(FOLDER / f"{name}.jpg", quality=QUALITY, optimize=True)
                print(f"{name}.jpg: {(FOLDER / f'{name}.jpg').stat().st_size // 1024} KB", *editor.problems, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
