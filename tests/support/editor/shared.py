"""The page of the editor that tests share."""

from __future__ import annotations

import contextlib

from playwright.sync_api import Browser

from demo.host import ComfyHost
from tests.support.editor.editor import VIEWPORT, Editor, open_editor


class SharedPage:
    """The host's editor in a fresh profile, opened when it is first asked for: to load it takes a browser many seconds.

    An open page draws all the time, so it is closed where nobody will ask soon.
    """

    def __init__(self, browser: Browser, host: ComfyHost) -> None:
        self._browser = browser
        self._host = host
        self._editor: Editor | None = None
        self._to_close = contextlib.ExitStack()

    def editor(self) -> Editor:
        if self._editor is None:
            self._editor = self._to_close.enter_context(open_editor(self._browser, self._host))
        return self._editor

    def tidied(self) -> Editor:
        """The page of the usual size, with an empty workflow as its only tab, no panel and no problems told of yet."""
        editor = self.editor()
        if editor.page.viewport_size != VIEWPORT:
            editor.resize(VIEWPORT)
        editor.close_panel()
        editor.open_alone({"nodes": [], "links": [], "version": 0.4})
        editor.problems.clear()
        return editor

    def close(self) -> None:
        self._editor = None
        self._to_close.close()
