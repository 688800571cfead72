"""The pack's settings in ComfyUI's dialog are the server's: a page changes them, or is told why it may not."""

from __future__ import annotations

import contextlib
import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from demo.host import ComfyHost
from tests.support.editor.editor import Editor
from tests.support.editor.settings import ask_settings, settings_file, settings_kept
from tests.support.host.graphs import post, status

DIALOG = "() => window.app.extensionManager.command.execute('Comfy.ShowSettingsDialog')"
OF_COMFYUI = """async () => [window.app.ui.settings.settingsValues, await (await fetch('/api/settings')).json()]
    .flatMap((values) => Object.keys(values).filter((name) => name.startsWith('ParallelDiT')))"""


def find(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in answer["settings"] if each["name"] == name)


@pytest.fixture
def file(host: ComfyHost) -> Iterator[Path]:
    with settings_kept(host) as file:
        yield file


def test_a_change_is_written_beside_what_the_file_has_and_taken_back_by_null(host: ComfyHost, file: Path) -> None:
    before = find(ask_settings(host), "silence_seconds")
    assert (before["value"], before["default"], before["source"]) == (10, 10, "default")
    file.write_text('{"log_megabytes": 9}')
    after = ask_settings(host, {"silence_seconds": 20, "on_free": "keep"})
    assert json.loads(file.read_text()) == {"log_megabytes": 9, "silence_seconds": 20, "on_free": "keep"}
    found = {name: find(after, name) for name in ("silence_seconds", "on_free", "log_megabytes")}
    assert [(each["value"], each["source"]) for each in found.values()] == [(20, "file"), ("keep", "file"), (9, "file")]
    assert found["on_free"]["choices"] == ["park", "unload", "keep"] and after == ask_settings(host)
    ask_settings(host, {"silence_seconds": None})
    assert json.loads(file.read_text()) == {"log_megabytes": 9, "on_free": "keep"}


@pytest.mark.parametrize(
    ("changes", "headers", "status", "says"),
    [
        ({"silence_seconds": 20, "color": "red"}, {}, 400, "The dialog sets 'color', which is not a setting"),
        (
            {"silence_seconds": 20, "on_free": "burn"},
            {},
            400,
            "The dialog sets on_free to 'burn'; it must be one of park",
        ),
        ([1], {}, 400, "not a change of settings: it is not a JSON object"),
        ({"python": "/bin/sh"}, {}, 403, "A page may not set python. Set it in"),
        ({"machines": ["10.0.0.1:29400", "10.0.0.2"]}, {}, 403, "or by PARALLELDIT_MACHINES"),
        ({"cpu_ranks": "900"}, {}, 403, "A page may set cpu_ranks to at most"),
        ({"silence_seconds": 20, "restarts": 5}, {}, 409, "PARALLELDIT_RESTARTS sets restarts, and wins"),
        ({"silence_seconds": 20}, {"Origin": "http://elsewhere.example"}, 403, ""),  # ComfyUI's own refusal
        ({"silence_seconds": 20}, {"Sec-Fetch-Site": "same-site"}, 403, "Only pages of this ComfyUI"),
        ({"silence_seconds": 20}, {"Host": "rebound.example", "Origin": "http://rebound.example"}, 403, ""),
        ({"silence_seconds": 20}, {"Host": "rebound.example"}, 403, "ComfyUI listens for this machine only"),
        ({"measured": "x" * (1 << 16)}, {}, 413, "body size 65536 exceeded"),
    ],
)
def test_a_refused_change_says_why_and_changes_nothing(
    changes: Any, headers: dict[str, str], status: int, says: str, host: ComfyHost
) -> None:
    before = ask_settings(host)
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask_settings(host, changes, headers)
    assert caught.value.code == status and says in " ".join(caught.value.read().decode().split())
    assert ask_settings(host) == before and not settings_file(host).exists()


def test_a_restart_with_a_file_that_cannot_be_read_says_so_and_ends_nothing(host: ComfyHost, file: Path) -> None:
    before = status(host)["state"]
    file.write_text("{")
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(host, "/paralleldit/restart")
    assert caught.value.code == 409 and f"{file} cannot be read as JSON" in caught.value.read().decode()
    assert status(host)["state"] == before
    file.write_text("{}")


def test_what_a_page_may_not_set_is_shown_with_where_it_comes_from(host: ComfyHost) -> None:
    answer = ask_settings(host)
    closed = {each["name"]: each["source"] for each in answer["settings"] if not each["is_open"]}
    assert closed == {
        "python": "default",
        "machines": "default",
        "measured": "variable",
        "restarts": "variable",
        "cpu_ranks": "variable",
    }
    assert find(answer, "restarts")["value"] == 1000 and answer["cards"] == []


@contextlib.contextmanager
def dialog(page: Page) -> Iterator[Locator]:
    """ComfyUI's settings dialog, at the pack's settings."""
    page.evaluate(DIALOG)
    found = page.get_by_test_id("settings-dialog")
    found.locator("nav").get_by_text("ParallelDiT", exact=True).click()
    expect(found.get_by_test_id("paralleldit-setting-silence_seconds").locator("input")).to_be_visible()
    yield found
    page.keyboard.press("Escape")
    expect(found).to_be_hidden()


def test_the_dialog_shows_the_servers_values_and_changes_them(editor: Editor, host: ComfyHost, file: Path) -> None:
    page = editor.page
    with dialog(page) as shown:
        silence, restarts, python = (
            shown.get_by_test_id(f"paralleldit-setting-{name}") for name in ("silence_seconds", "restarts", "python")
        )
        expect(silence.locator("input")).to_have_value("10")
        silence.locator("input").fill("20")
        silence.locator("input").press("Enter")
        expect(silence.get_by_text("Use the default")).to_be_visible()
        assert json.loads(file.read_text()) == {"silence_seconds": 20}
        free = shown.get_by_role("combobox", name="When ComfyUI frees memory")
        free.select_option("Keep the weights")
        expect(shown.get_by_test_id("paralleldit-default-on_free")).to_be_visible()
        expect(restarts.locator("input")).to_be_disabled()
        expect(restarts).to_contain_text("The variable PARALLELDIT_RESTARTS sets this.")
        expect(python.locator("input")).to_be_disabled()
        expect(python).to_contain_text("Not from a page, for security")
        expect(shown.get_by_test_id("paralleldit-setting-gpus")).to_have_text("None: the ranks compute on the CPU.")
        editor.screenshot("settings")
    assert editor.problems == []
    ask_settings(host, {"silence_seconds": 25})  # by another page
    assert page.evaluate(OF_COMFYUI) == [], "ComfyUI keeps no copy"
    with dialog(page) as shown:
        silence = shown.get_by_test_id("paralleldit-setting-silence_seconds")
        expect(silence.locator("input")).to_have_value("25")
        silence.locator("input").fill("-5")
        silence.locator("input").press("Enter")
        expect(page.get_by_text("The dialog sets silence_seconds to -5; it must be more than 0.")).to_be_visible()
        expect(silence.locator("input")).to_have_value("25")
        silence.get_by_text("Use the default").click()
        expect(silence.locator("input")).to_have_value("10")
    assert json.loads(file.read_text()) == {"on_free": "keep"}
