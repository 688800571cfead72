"""Words in the editor: help pages, tooltips and both locales are complete, and agree."""

from __future__ import annotations

import re
from typing import Any

import pytest

from demo.host import REPOSITORY, ComfyHost
from tests.support.host.node_defs import inputs_of, node_defs, own_nodes, read
from tests.support.messages import list_in_code

DOCS = REPOSITORY / "web" / "docs"
PARALLELIZE = "ParallelDiT_Parallelize"
# Saved workflows name nodes by these, so they stay as they are; a new node is a line more.
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
ANY = "…"


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
    known = {re.sub(r"\{.*?\}", ANY, text) for _, text in list_in_code()}
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
