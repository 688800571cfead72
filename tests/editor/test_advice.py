"""What an error advises is a field of its own from where it is raised, and the commonest is told in Chinese, too."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from demo.host import REPOSITORY, ComfyHost
from tests.support.editor.editor import open_editor, use_setting
from tests.support.editor.examples import open_demo
from tests.support.host.node_defs import read

ROOMS = ("nodes", "worker", "parallel_backend")
CARD = "paralleldit-error"
NAME = re.compile(r"\{(\w+)\}")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ANY = "…"
NO_VERBS = {"if", "did", "the"}  # with which advice begins, too
FILLED_IN = ("7", "2 or 4", "Euler, DPM++ 2M", "ulysses=2, ring=1", "a text (CLIP)")
ENGLISH, TRANSLATED = (read(language, "main.json")["paralleldit"]["errors"]["advices"] for language in ("en", "zh"))


@functools.cache
def code() -> list[tuple[Path, list[ast.AST]]]:
    """Every file of the product, and all that is in it."""
    files = [path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py"))]
    return [(path, list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))) for path in files]


def text_of(node: ast.expr) -> str | None:
    """A text in the code, with `…` for what is filled in; None for what is no text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def explained() -> set[str]:
    """The classes that take cause and advice."""
    classes = [found for _, nodes in code() for found in nodes if isinstance(found, ast.ClassDef)]
    known = {"Explained", "Explanation"}
    while more := {
        found.name
        for found in classes
        if found.name not in known and any(isinstance(base, ast.Name) and base.id in known for base in found.bases)
    }:
        known |= more
    return known


def said(names: set[str] | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """Where something of these classes is made, or by default of any that is raised, and the texts that it is given."""
    for path, nodes in code():
        raised = {id(found.exc) for found in nodes if isinstance(found, ast.Raise)}
        for call in nodes:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id in names if names else id(call) in raised:
                yield f"{path.relative_to(REPOSITORY)}:{call.lineno}", [text_of(each) for each in call.args]


def advices() -> set[str]:
    return {texts[1] for _, texts in said(explained()) if len(texts) > 1 and texts[1]}


def test_what_to_do_is_no_part_of_the_sentence_that_says_why() -> None:
    """How advice begins is learned from the advice that there is."""
    verbs = {advice.split()[0].lower() for advice in advices() if advice.split()[0].isalpha()} - NO_VERBS
    assert {"use", "download", "restart", "remove"} <= verbs
    joint = re.compile(rf"[;:.] (?:{'|'.join(sorted(verbs))})\b", re.IGNORECASE)
    everything = [*said(explained()), *said()]
    assert len(everything) > 200
    for where, texts in everything:
        assert not joint.search(texts[0] or "") if texts else True, f"{where}: {texts[0]}"


def test_advice_is_a_sentence() -> None:
    for advice in advices():
        assert advice[0].isupper(), advice


def test_nodes_raise_no_bare_errors() -> None:
    """What is no class of the pack's is unforeseen to the editor. A route answers its own questions."""
    bare = {"ValueError", "RuntimeError", "TypeError", "Exception"}
    for where, _ in said(bare):
        assert not where.startswith("nodes/") or where.startswith("nodes/routes/"), where


def test_the_advice_that_is_translated_is_in_the_words_of_the_code() -> None:
    known = {text_of(found) for _, nodes in code() for found in nodes if isinstance(found, ast.expr)}
    assert len(ENGLISH) >= 30
    for key, template in ENGLISH.items():
        assert NAME.sub(ANY, template) in known, f"{key}: {template}"
        assert len(NAME.findall(template)) == len(set(NAME.findall(template))), key
        assert CHINESE.search(TRANSLATED[key]), key


@pytest.mark.parametrize("value", FILLED_IN)
def test_no_advice_is_taken_for_another(value: str) -> None:
    """Of the templates that a text could be made of, `translate` in web/words.mjs takes the one with the most words."""
    for advice in advices():
        line = advice.replace(ANY, value)
        fitting = [
            template
            for template in ENGLISH.values()
            if re.fullmatch("(.+)".join(map(re.escape, NAME.sub(ANY, template).split(ANY))), line)
        ]
        if fitting:
            taken = max(fitting, key=lambda template: len(NAME.sub("", template)))
            assert NAME.sub(ANY, taken) == advice


def test_a_card_tells_the_advice_in_the_editors_language(browser: Browser, host: ComfyHost) -> None:
    with use_setting(host, "Comfy.Locale", "zh", "en"), open_editor(browser, host) as editor:
        open_demo(editor, {"mode": "manual", "ulysses": 9})
        editor.run()
        cause, advice = (editor.page.get_by_test_id(f"{CARD}-{part}") for part in ("cause", "advice"))
        expect(cause).to_contain_text("ulysses=9")
        told = TRANSLATED["degree_of_heads"].format(most=8, ring=9)
        expect(advice).to_contain_text(told)
        expect(advice).not_to_contain_text("Use")
        assert editor.problems == []
