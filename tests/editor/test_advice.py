"""What an error advises is a field of its own from where it is raised. What the server says is told in Chinese, too."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, expect

from demo.host import REPOSITORY, ComfyHost
from tests.support.editor.editor import open_editor, use_setting, wait_for
from tests.support.editor.examples import NOTES, open_demo
from tests.support.editor.groups import NUMBER, event, run, tell
from tests.support.host.node_defs import read
from tests.support.messages import show

ROOMS = ("nodes", "worker", "parallel_backend")
CARD = "paralleldit-error"
NAME = re.compile(r"\{(\w+)\}")
ANY = "…"
SENTENCE_END = re.compile(r"(?<=[.!?]) |(?<=[.!?]\)) |\n")
SAYING = {"show_on_node", "warn", "say_once", "explained", "because"}  # functions whose first text a person sees
# What only scripts call. They have no editor.
SCRIPTS = tuple(f"parallel_backend/{each}" for each in ("__main__", "command/", "library", "pipelines/", "groups/mesh"))
# How many texts are in English alone, by room: of how the processes talk to each other, of what a node's code may not
# be, of broken requests and specs, and of rare models.
LEFT = {"nodes": 6, "worker": 48, "parallel_backend": 26}
TITLES = "() => window.app.graph.nodes.map(({ title }) => title)"
ADD_A_SECOND = """() => {
    const { graph } = window.app
    const [first, sampler] = ['ParallelDiT_Parallelize', 'KSampler'].map((type) => graph.findNodesByType(type)[0])
    const second = graph.add(window.LiteGraph.createNode(first.type))
    first.connect(0, second, 0)
    second.connect(0, sampler, 0)
}"""
NODE_TEXT = """window.app.graph.findNodesByType('ParallelDiT_Parallelize').at(-1)
    .widgets.find((widget) => widget.name === '$$node-text-preview')?.value"""
LESS = {"plan": "cfg=2", "asked": "ulysses=2", "reasons": "attn1_patch"}
ENGLISH, TRANSLATED = (read(language, "main.json")["paralleldit"]["said"] for language in ("en", "zh"))

TEMPLATES = {NAME.sub(ANY, template) for template in ENGLISH.values()}


@functools.cache
def code() -> list[tuple[Path, list[ast.AST]]]:
    """Every file of the product, and all that is in it."""
    files = [path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py"))]
    return [(path, list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))) for path in files]


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


def said(names: set[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Where something of these classes is made, or by default of any that is raised, and the texts that it is given."""
    for path, nodes in code():
        raised = {id(found.exc) for found in nodes if isinstance(found, ast.Raise)}
        for call in nodes:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id in names if names else id(call) in raised:
                yield f"{path.relative_to(REPOSITORY)}:{call.lineno}", [show(each, ANY) for each in call.args]


def test_nodes_raise_no_bare_errors() -> None:
    """What is no class of the pack's is unforeseen to the editor. A route answers its own questions."""
    bare = {"ValueError", "RuntimeError", "TypeError", "Exception"}
    for where, _ in said(bare):
        assert not where.startswith("nodes/") or where.startswith("nodes/routes/"), where


def shown() -> Iterator[tuple[str, str]]:
    """Where a text is made that a person sees in the editor during a run or at its end, and the text."""
    for where, texts in said(explained()):
        yield from ((where, text) for text in texts[:2] if text and not where.startswith(SCRIPTS))
    for path, nodes in code():
        for found in nodes:
            if isinstance(found, ast.Call):
                name = getattr(found.func, "id", getattr(found.func, "attr", ""))
                texts = found.args[:1] if name in SAYING else []
            else:
                names = [each.id for each in getattr(found, "targets", []) if isinstance(each, ast.Name)]
                texts = [found.value] if isinstance(found, ast.Assign) and "said" in names else []
            for text in filter(None, (show(each, ANY) for each in texts)):
                yield f"{path.relative_to(REPOSITORY)}:{found.lineno}", text


def list_forms(text: str) -> set[str]:
    """A text of the code as a template may have it: without what is put before it or after it."""
    bare = text.strip()
    return {bare, bare.removeprefix(ANY).strip(), bare.removesuffix(ANY).strip()}


def is_translated(text: str) -> bool:
    """As `translate` in web/words.mjs finds it."""
    if not text.strip(f" .:{ANY}") or {*list_forms(text), f"{text.rstrip()} {ANY}"} & TEMPLATES:
        return True
    ends = [each.start() for each in SENTENCE_END.finditer(text)]
    return any(list_forms(text[:end]) & TEMPLATES and is_translated(text[end + 1 :]) for end in ends)


def test_what_is_translated_is_in_the_words_of_the_code() -> None:
    known = {show(found, ANY) for _, nodes in code() for found in nodes if isinstance(found, ast.expr)}
    parts = {part for text in known if text for part in (text, *SENTENCE_END.split(text))}
    known = {form for part in parts for form in list_forms(part)}
    assert len(ENGLISH) >= 200
    for key, template in ENGLISH.items():
        text = NAME.sub(ANY, template)
        assert text in known or text.removesuffix(ANY).strip() in known, f"{key}: {template}"
        assert len(NAME.findall(template)) == len(set(NAME.findall(template))), key


def test_no_more_sentences_are_left_in_english_alone() -> None:
    left = sorted({(where, text) for where, text in shown() if not is_translated(text)})
    counts = Counter(where.partition("/")[0] for where, _ in left)
    assert counts == LEFT, "\n".join(f"{where} {text}" for where, text in left)


def test_a_chinese_editor_tells_in_chinese_what_the_server_says(browser: Browser, host: ComfyHost) -> None:
    """In the templates' notes and the drawing of a plan; during a run, on its node and in the panel; and of a plan that
    does not fit, before the run and after it."""
    with use_setting(host, "Comfy.Locale", "zh", "en"), open_editor(browser, host) as editor:
        page = editor.page
        open_demo(editor)
        (note,) = page.evaluate(NOTES)
        assert note["title"] == "文件与显卡" and "工作进程" in note["text"] and not note["isTranslated"]
        assert {"画什么", "负向：无类别"} <= {*page.evaluate(TITLES)}
        expect(page.locator(".paralleldit-plan-content:not(:empty)")).to_contain_text("并行计算（cfg=2）")
        open_demo(editor, {"mode": "manual", "ulysses": 2}, steps=1, seed=76)
        page.evaluate(ADD_A_SECOND)
        editor.run()
        replaced = TRANSLATED["plan_replaced"].format(plan="ulysses=2")
        wait_for(page, f"(text) => {NODE_TEXT} === text", arg=replaced)
        english, chinese = (each["runs_under"].format(**LESS) for each in (ENGLISH, TRANSLATED))
        tell(host, event([run(1, reason=english)]))
        expect(editor.open_panel(NUMBER).get_by_test_id("paralleldit-reason").first).to_have_text(chinese)
        tell(host, event([], 0, state="stopped", model=None))
        open_demo(editor, {"mode": "manual", "ulysses": 9})
        cause, advice = TRANSLATED["too_many_heads"], TRANSLATED["degree_of_heads"].format(most=8, ring=9)
        told = cause.format(degree=9, heads=8)
        expect(page.locator(".dom-widget .paralleldit-plan-error")).to_have_text(f"{told}{advice}")
        editor.run()
        expect(page.get_by_test_id(f"{CARD}-cause")).to_have_text(told)
        expect(page.get_by_test_id(f"{CARD}-advice")).to_contain_text(advice)
        assert editor.problems == []
