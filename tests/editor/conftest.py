"""What the tests of the editor share beside the host: a page for those that leave it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from demo.host import ComfyHost
from tests.support.editor.editor import Editor, SharedPage

HERE = Path(__file__).parent
HAS_FAILED = pytest.StashKey[bool]()
PAGE = pytest.StashKey[SharedPage]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Closes the shared page after a test that has failed, and where other tests than the editor's come next."""
    page = item.session.stash.get(PAGE, None)
    stays = nextitem is not None and HERE in nextitem.path.parents
    if page and (item.stash.get(HAS_FAILED, False) or not stays):
        page.close()


@pytest.fixture(scope="session")
def shared_page(request: pytest.FixtureRequest, browser: Browser, host: ComfyHost) -> Iterator[SharedPage]:
    with contextlib.closing(SharedPage(browser, host)) as page:
        request.session.stash[PAGE] = page
        yield page


@pytest.fixture
def editor(shared_page: SharedPage) -> Editor:
    """The page that the editor's tests share. They leave only workflows behind."""
    return shared_page.tidied()


@pytest.fixture
def page(editor: Editor) -> Page:
    return editor.page


@pytest.fixture(params=["dark", "light"])
def themed(request: pytest.FixtureRequest, editor: Editor) -> Iterator[Editor]:
    """The shared page in each theme."""
    editor.set_theme(request.param)
    yield editor
    editor.set_theme("dark")


@pytest.fixture(params=["canvas", "vue"])
def renderer(request: pytest.FixtureRequest, editor: Editor) -> Iterator[str]:
    """Each of the editor's ways to draw nodes."""
    setting = "(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)"
    editor.page.evaluate(setting, request.param == "vue")
    yield request.param
    editor.page.evaluate(setting, False)
