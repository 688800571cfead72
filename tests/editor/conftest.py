"""What the tests of the editor share beside the host: a page for those that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from demo.host import ComfyHost
from tests.support.editor.editor import VIEWPORT, Editor, open_editor


@pytest.fixture(scope="module")
def modules_page(browser: Browser, host: ComfyHost) -> Iterator[Editor]:
    """The host's editor in a fresh profile. To load it takes a browser many seconds."""
    with open_editor(browser, host) as editor:
        yield editor


@pytest.fixture
def shared_editor(modules_page: Editor) -> Editor:
    """The module's page of the usual size, with an empty workflow in a new tab, no panel and no problems told of yet.

    For tests that leave only workflows behind: one after which the page would answer otherwise takes `editor`.
    """
    if modules_page.page.viewport_size != VIEWPORT:
        modules_page.page.set_viewport_size(VIEWPORT)
    modules_page.close_panel()
    modules_page.open({"nodes": [], "links": [], "version": 0.4})
    modules_page.problems.clear()
    return modules_page


@pytest.fixture(params=["dark", "light"])
def themed(request: pytest.FixtureRequest, shared_editor: Editor) -> Iterator[Editor]:
    """The module's page in each theme."""
    shared_editor.set_theme(request.param)
    yield shared_editor
    shared_editor.set_theme("dark")
