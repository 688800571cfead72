"""What the editor's page costs: time on its thread, and memory."""

from __future__ import annotations

import bisect
import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from playwright.sync_api import Page

from demo.host import PACK_NAME

OURS = f"/extensions/{PACK_NAME}/"
# The first leaves out all others, with which ten prompts make 100 MB.
CATEGORIES = ("-*", "disabled-by-default-devtools.timeline", "disabled-by-default-v8.cpu_profiler")


class Task(NamedTuple):
    """A turn of the page's event loop, such as a frame. Milliseconds of the processor, however busy the machine is: all
    that it took, and what our code took of it, with all that it called."""

    cpu: float
    ours: float


class Memory(NamedTuple):
    """heap: bytes of JavaScript's objects. The others are counts of what the page has in use."""

    heap: int
    nodes: int
    listeners: int


def memory_of(page: Page) -> Memory:
    """Once garbage is collected."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return Memory(found["JSHeapUsedSize"], found["Nodes"], found["JSEventListeners"])


@contextlib.contextmanager
def traced(page: Page) -> Iterator[list[Task]]:
    """Gives the list of what the page does while this is entered, once it is left."""
    browser = page.context.browser
    assert browser
    tasks: list[Task] = []
    browser.start_tracing(page=page, categories=[*CATEGORIES])
    try:
        yield tasks
    finally:
        tasks += tasks_of(json.loads(browser.stop_tracing())["traceEvents"])


def tasks_of(events: list[dict[str, Any]]) -> Iterator[Task]:
    """Of Chromium's trace. Of a task, as much is ours as of the profiler's samples in it."""
    profile = next(each for each in events if each["name"] == "Profile")
    thread, now = (profile["pid"], profile["tid"]), profile["args"]["data"]["startTime"]
    is_ours: dict[int, bool] = {}
    times, sums = [], [0]
    for chunk in (each["args"]["data"] for each in events if each["name"] == "ProfileChunk"):
        for node in chunk["cpuProfile"].get("nodes", ()):
            is_ours[node["id"]] = OURS in node["callFrame"].get("url", "") or is_ours.get(node.get("parent"), False)
        for passed, sample in zip(chunk["timeDeltas"], chunk["cpuProfile"].get("samples", ()), strict=True):
            times.append(now := now + passed)
            sums.append(sums[-1] + is_ours[sample] * passed)
    for each in events:
        if each["name"] == "RunTask" and (each["pid"], each["tid"]) == thread and "dur" in each:
            first, end = bisect.bisect(times, each["ts"]), bisect.bisect(times, each["ts"] + each["dur"])
            share = (sums[end] - sums[first]) / (times[end - 1] - times[first - 1]) if first < end and first else 0
            yield Task(each["tdur"] / 1000, share * each["tdur"] / 1000)
