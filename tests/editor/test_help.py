"""Words in the editor: help pages, tooltips and both locales are complete, agree, and are what the editor shows."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from demo.host import REPOSITORY, ComfyHost
from tests.support.editor.editor import CONTEXT, Editor, insist, use_setting
from tests.support.host.node_defs import inputs_of, node_defs, own_nodes, read

DOCS = REPOSITORY / "web" / "docs"
PARALLELIZE = "ParallelDiT_Parallelize"
NODES = {
    "ParallelDiT_LoadDiT",
    "ParallelDiT_Parallelize",
    "ParallelDiT_ParallelizeVAE",
    "ParallelDiT_Sampler",
    "ParallelDiT_ClassLabel",
}
SECTIONS = {
    "en": ("**Inputs**", "**Output**", "**Example", "**Common errors**"),
    "zh": ("**输入**", "**输出**", "**示例**", "**常见错误**"),
}
DEFAULT = {"en": "default {}", "zh": "默认 {}"}
EMPTY = {"en": "default empty", "zh": "默认为空"}
MESSAGE_SYNTAX = re.compile(r"[{}@|]")  # of vue-i18n, by which the editor reads the locales
ANY = "…"
SETTINGS = "**/api/settings/**"

PLACE = """(type) => {
    const node = window.LiteGraph.createNode(type)
    node.pos = [500 * window.app.graph.nodes.length, 300]
    window.app.graph.add(node)
    const sockets = node.inputs.filter((input) => !input.widget).map((input) => [input.name, input.localized_name])
    const helpers = ['control_after_generate', 'mesh']  // the second is the plan's drawing
    const widgets = node.widgets?.filter((widget) => !helpers.includes(widget.name)) ?? []
    const labels = widgets.map((widget) => [widget.name, widget.label])
    return { title: node.title, names: Object.fromEntries([...sockets, ...labels]) }
}"""
SELECT = """(type) => {
    const node = window.app.graph.nodes.find((node) => node.type === type)
    window.app.canvas.selectItems([node])
    window.app.canvas.centerOnNode(node)
}"""
PLACE_OF_WIDGET = """([type, name]) => {
    const node = window.app.graph.nodes.find((node) => node.type === type)
    const widget = node.widgets.find((widget) => widget.name === name)
    return window.app.canvasPosToClientPos([node.pos[0] + node.size[0] / 2, node.pos[1] + widget.y + 10])
}"""


@pytest.fixture(scope="session")
def nodes(host: ComfyHost) -> dict[str, dict[str, Any]]:
    """The pack's nodes as the host describes them."""
    found = own_nodes(host.object_info())
    assert set(found) == NODES
    return found


def page(node: str, language: str) -> str:
    """A help page, where the editor looks for it."""
    path = DOCS / f"{node}.md" if language == "en" else DOCS / node / f"{language}.md"
    return path.read_text(encoding="utf-8")


def bullets(text: str, heading: str = "") -> list[str]:
    """The list items after a heading and before the next one, each in a line."""
    part = re.split(r"\n(?=\*\*)", text[text.index(heading) :])[0]
    return [" ".join(item.split()) for item in re.split(r"(?:^|\n)- ", part)[1:]]


def quoted_errors(text: str, language: str) -> list[str]:
    """The errors that a page quotes. `…` stands for what differs from one time to another."""
    return [re.match(r"\*(.+?)\*[:：]", item)[1] for item in bullets(text, SECTIONS[language][-1])]


def messages() -> Iterator[str]:
    """Every text in the pack's code, with `…` for what is filled in."""
    for folder in ("nodes", "worker", "parallel_backend"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(found, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else ANY for part in found.values)
                    yield "".join(map(str, parts))
                elif isinstance(found, ast.Constant) and isinstance(found.value, str):
                    yield found.value


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_help_page_tells_every_input_with_its_default_and_every_output(
    nodes: dict[str, dict[str, Any]], language: str
) -> None:
    for name, node in nodes.items():
        text, said = page(name, language), read(language, "nodeDefs.json")[name]
        assert text.startswith(f"# {said['display_name']}\n"), name
        places = [text.index(section) for section in SECTIONS[language]]
        assert places == sorted(places), name
        items = bullets(text, SECTIONS[language][0])
        for (input_name, options), item in zip(inputs_of(node).items(), items, strict=True):
            shown = said["inputs"][input_name]["name"]
            assert item.startswith(f"**{shown}**" if input_name in shown else f"**{shown}** `{input_name}`"), item
            if "default" in options:
                default = options["default"]
                shown = str(default).lower() if isinstance(default, bool) else str(default)
                assert (DEFAULT[language].format(shown) if shown else EMPTY[language]) in item, item
            if options.get("max") and input_name != "seed":
                assert str(options["max"]) in item, item
        for output, item in zip(said["outputs"].values(), bullets(text, SECTIONS[language][1]), strict=True):
            assert item.startswith(f"**{output['name']}**"), item


def test_the_errors_on_the_help_pages_are_in_the_words_of_the_code() -> None:
    known = set(messages())
    for node in NODES:
        errors = quoted_errors(page(node, "en"), "en")
        assert errors and errors == quoted_errors(page(node, "zh"), "zh"), node
        for error in errors:
            assert any(error.strip(f"{ANY} ") in message for message in known), f"{node}: {error}"


def test_every_input_of_every_node_has_a_tooltip(nodes: dict[str, dict[str, Any]]) -> None:
    for name, node in nodes.items():
        assert node["description"] and node["category"] == "ParallelDiT", name
        for input_name, options in inputs_of(node).items():
            assert options.get("tooltip"), f"{name}.{input_name}"


def test_the_english_words_for_the_nodes_are_those_of_their_schemas(nodes: dict[str, dict[str, Any]]) -> None:
    assert read("en") == node_defs(nodes), (
        "run `python -m tests.support.host.node_defs`, and say the same in locales/zh"
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_words_for_the_nodes_have_nothing_that_the_editor_would_fill_in(language: str) -> None:
    for path, text in (flat(read(language)) | flat(read(language, "settings.json"))).items():
        assert not MESSAGE_SYNTAX.search(text), path


@pytest.fixture(params=["en", "zh"])
def speaking(request: pytest.FixtureRequest, browser: Browser, host: ComfyHost) -> Iterator[tuple[Editor, str]]:
    """A page in each language: in English, the shared one, whose side is closed again."""
    if request.param == "en":
        editor: Editor = request.getfixturevalue("shared_editor")
        yield editor, "en"
        editor.page.get_by_role("button", name="Toggle properties panel").click()
        expect(editor.page.locator(".node-help-content")).to_be_hidden()
        editor.page.unroute(SETTINGS)
        return
    with (
        use_setting(host, "Comfy.Locale", "zh", "en"),
        contextlib.closing(browser.new_context(**CONTEXT, locale="zh-CN")) as context,
    ):
        yield Editor(context.new_page(), host), "zh"


def test_the_editor_shows_nodes_and_their_help_in_its_language(speaking: tuple[Editor, str]) -> None:
    editor, language = speaking
    said = read(language)
    editor.page.route(SETTINGS, keep_settings)
    editor.page.evaluate("() => window.app.graph.clear()")
    for node in sorted(NODES):
        shown = editor.page.evaluate(PLACE, node)
        assert shown["title"] == said[node]["display_name"]
        assert shown["names"] == {name: entry["name"] for name, entry in said[node]["inputs"].items()}
    for place, node in enumerate(sorted(NODES)):
        editor.page.evaluate(SELECT, node)
        if place == 0:
            editor.page.get_by_test_id("info-button").click()
        editor.page.locator(".node-help-content h1", has_text=said[node]["display_name"]).wait_for()
        text = " ".join(editor.page.locator(".node-help-content").inner_text().split())
        assert all(error in text for error in quoted_errors(page(node, language), language))
    editor.page.evaluate(SELECT, PARALLELIZE)
    editor.set_widgets(PARALLELIZE, mode="manual")  # in auto it is hidden
    tooltip = said[PARALLELIZE]["inputs"]["ulysses"]["tooltip"]
    told = editor.page.locator(".node-tooltip", has_text=tooltip)
    insist(lambda: hover(editor, PARALLELIZE, "ulysses"), lambda ms: told.wait_for(timeout=ms))
    problems = [problem for problem in editor.problems if "/extensions/" in problem]
    assert not [problem for problem in problems if "/docs/" not in problem or not problem.endswith("/en.md")]


def hover(editor: Editor, node: str, widget: str) -> None:
    """Comes to the widget from elsewhere: a pointer that does not move is told nothing."""
    editor.page.mouse.move(0, 0)
    editor.page.mouse.move(*editor.page.evaluate(PLACE_OF_WIDGET, [node, widget]))


def keep_settings(route: Route) -> None:
    """Answers a change of settings without passing it on, since all tests share the host's user."""
    if route.request.method == "POST":
        route.fulfill(status=200)
    else:
        route.continue_()


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """The texts of a file by their dotted paths."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found
