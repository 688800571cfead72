"""What a newcomer sees who opens the editor by `python3 dev.py editor`, while the workers start."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from demo.editor import address, command, prepare
from demo.host import environment, free_port, open_url
from tests.support.editor.editor import CONTEXT, PARALLELIZE, Editor, wait_for
from tests.support.editor.examples import problems
from tests.support.host.faults import SECONDS_TO_GO, wait_until
from tests.support.host.graphs import TINY_MODELS, alive
from tests.support.host.quick_machine import tried_machine

SECONDS = 180
SHOWN = f"""() => window.app?.graph?.nodes.some((node) => node.type === '{PARALLELIZE}')
    && !document.querySelector('#splash-loader')"""
WRONG = "() => window.app.graph.nodes.filter((node) => node.has_errors).map((node) => node.type)"
TEXT = """window.app.graph.nodes.find((node) => node.type === 'KSampler')
    .widgets.find((widget) => widget.name === '$$node-text-preview')?.value"""
MOST_RUNS = 10
TRYING = re.compile(r"trying (.+, \d of \d)$")
TRIED = re.compile(r"auto tries .+, (\d) of (\d)\.")
LEAST_TRIED = 3  # plans; auto tries another where one device may be faster than the fastest of these
# The plan and what a step takes, once the node and the panel's next run say the same of them.
TOLD_ALIKE = """() => {
    const told = (place) => ['title', 'step'].map(
        (part) => document.querySelector(`${place} .paralleldit-plan-${part}`)?.textContent)
    const [node, next] = [told('.dom-widget'), told("[data-testid='paralleldit-next']")]
    const isDrawn = document.querySelector('.dom-widget .paralleldit-plan-title:not([data-old])')
    return window.ended && isDrawn && node.every((text, part) => text && text === next[part]) && node
}"""
# What the node says when a run ends is old: the page then asks for the plan again.
MARK_OLD = """() => window.app.api.addEventListener('execution_success', () => {
    window.ended = true
    document.querySelector('.dom-widget .paralleldit-plan-title').dataset.old = ''
})"""
FIGURES_ALIKE = """() => new Set(["[data-testid='paralleldit-factor']", '.dom-widget .paralleldit-plan-step',
    "[data-testid='paralleldit-next'] .paralleldit-plan-step"]
    .map((place) => document.querySelector(place)?.textContent)).size === 1"""


class Started(NamedTuple):
    """A ComfyUI, where its editor opens, and its log."""

    process: subprocess.Popen
    url: str
    log: Path


@pytest.fixture(scope="module")
def started(comfyui: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A ComfyUI that is started as dev.py starts it, on a machine where auto tries plans."""
    base = tmp_path_factory.mktemp("newcomer")
    prepare(base)
    arguments, log = ["--port", str(free_port())], base / "comfyui.log"
    url, env = address(arguments), {**environment(comfyui), **TINY_MODELS, "PARALLELDIT_MEASURED": tried_machine()}
    with log.open("wb") as output:
        process = subprocess.Popen(command(comfyui, base, False, arguments), env=env, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            try:
                open_url(url, timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield Started(process, url, log)
    finally:
        process.terminate()
        process.wait()


def post(url: str, change: str) -> None:
    """Changes the worker group of a ComfyUI that opens there."""
    open_url(Request(f"{url.partition('/?')[0]}/paralleldit/{change}", method="POST"), timeout=SECONDS).close()


def is_idle(url: str) -> bool:
    """Whether no prompt runs."""
    with open_url(f"{url.partition('/?')[0]}/queue", timeout=SECONDS) as answer:
        return not json.load(answer)["queue_running"]


@pytest.fixture(scope="module")
def looked(started: Started, browser: Browser) -> Iterator[tuple[Editor, list[str]]]:
    """The page of somebody who comes while the workers start, of which it is told all the time; and its console."""
    with contextlib.closing(browser.new_context(**CONTEXT)) as context, ThreadPoolExecutor() as threads:
        restart = threads.submit(post, started.url, "restart")  # which ends once they run
        page, said = context.new_page(), list[str]()
        page.on("console", lambda message: said.append(message.text))
        editor = Editor(page, started.url)
        wait_for(page, SHOWN)
        page.wait_for_load_state("networkidle")  # what is yet to be fetched
        restart.result()
        editor.screenshot("first-look")
        yield editor, said


@pytest.fixture
def editor(looked: tuple[Editor, list[str]]) -> Editor:
    return looked[0]


def test_the_editor_opens_on_the_demo_and_nothing_is_red_or_missing(
    started: Started, looked: tuple[Editor, list[str]]
) -> None:
    editor, said = looked
    assert (editor.page.evaluate(WRONG), editor.page.get_by_text("errors found").count()) == ([], 0)
    missing = [each for each in problems(editor) if each.startswith("HTTP") or "paralleldit" in each.lower()]
    assert missing == [], "what ComfyUI asks of the internet is not found here"
    assert [text for text in said if "paralleldit" in text.lower() or "Unhandled message" in text] == []
    assert "Failed to initialize database" not in started.log.read_text()


def test_a_node_that_waits_for_its_workers_says_so_and_then_what_a_step_takes(
    started: Started, editor: Editor, page: Page
) -> None:
    post(started.url, "stop")
    editor.run()
    wait_for(page, f"() => ({TEXT})?.startsWith('Starting the workers, ')")
    editor.screenshot("waiting")
    wait_for(page, f"() => /^2 ranks · cfg=2 · [0-9.]+ m?s a step$/.test({TEXT})")
    editor.screenshot("waited")


def run_anew(editor: Editor, seed: int) -> tuple[str, str]:
    """Runs the demo in few steps. Returns what the page then says of the next run: the plan, and what a step takes."""
    page = editor.page
    editor.set_widgets("KSampler", seed=seed, steps=6)
    page.evaluate("() => { window.ended = false }")
    editor.run()
    title, step = wait_for(page, TOLD_ALIKE, timeout=SECONDS * 1000).json_value()
    expect(page.get_by_test_id("paralleldit-run").first).to_have_attribute("data-state", "done")
    return title, step


def test_after_some_runs_all_places_name_one_plan_and_one_figure(started: Started, editor: Editor, page: Page) -> None:
    """While auto tries plans, all places say so, and so does each run that tries one. Then what has run is what comes
    next, with what it took."""
    latest = editor.open_panel().get_by_test_id("paralleldit-run").first
    wait_until(lambda: is_idle(started.url), SECONDS)  # a test before may have queued a prompt
    editor.set_plan(mode="auto")
    page.evaluate(MARK_OLD)
    reason, trying, tried = latest.get_by_test_id("paralleldit-reason"), "", []
    for seed in range(MOST_RUNS):
        title, step = run_anew(editor, seed)
        title = title.replace("1 CPU rank", "one rank")
        if trying:
            expect(reason).to_have_text(f"auto tries {trying}.")
        tried += [(int(at), int(of)) for at, of in TRIED.findall(" ".join(reason.all_text_contents()))]
        if trying := "".join(TRYING.findall(title)):
            continue
        plan = title.removeprefix("Automatic plan: ").removeprefix("2 CPU ranks, ")
        if plan not in latest.inner_text().splitlines():
            continue  # the plan that was tried last is slower
        break
    else:
        pytest.fail(f"{title} is not what ran: {latest.inner_text()}; tried: {tried}")
    assert tried, "auto has tried plans"
    assert all(of == max(LEAST_TRIED, at) for at, of in tried), tried
    assert [at for at, _ in tried] == sorted({at for at, _ in tried}), tried
    expect(page.get_by_test_id("paralleldit-model")).to_contain_text(f"Plan: {plan}")
    wait_for(page, FIGURES_ALIKE)
    assert "measured" in step
    editor.screenshot("one-truth")


def test_it_takes_its_workers_along_when_it_ends(started: Started) -> None:
    """The last test here: idle, by SIGTERM. The one before leaves workers."""
    post(started.url, "start")
    workers = psutil.Process(started.process.pid).children(recursive=True)
    assert len(workers) >= 2, "a rank and its agent"
    started.process.terminate()
    started.process.wait(SECONDS_TO_GO)
    wait_until(lambda: not any(map(alive, workers)), SECONDS_TO_GO)
