"""What the tests of the editor share beside the host: a page for those that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from demo.host import ComfyHost
from tests.support.editor.editor import Editor, open_editor


@pytest.fixture(scope="module")
def modules_page(browser: Browser, host: ComfyHost) -> Iterator[Editor]:
    """The host's editor in a fresh profile. To load it takes a browser many seconds."""
    with open_editor(browser, host) as editor:
        yield editor


@pytest.fixture
def shared_editor(modules_page: Editor) -> Editor:
    """The module's page, with an empty workflow in a new tab, no panel and no problems told of yet.

    For tests that leave only workflows behind: one that reloads the page or answers for the host takes `editor`.
    """
    modules_page.close_panel()
    modules_page.open({"nodes": [], "links": [], "version": 0.4})
    modules_page.problems.clear()
    return modules_page
