"""What became of the tests, as pytest writes it down for machines (JUnit's XML), counted by group."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

FAILURE_LINES, LINE_WIDTH = 10, 240


@dataclass
class Group:
    """Tests of one promise. error: the largest relative one, of those that measure it."""

    counts: Counter[str] = field(default_factory=Counter)
    error: float | None = None


@dataclass
class Results:
    """failures: the first lines of each, by what they say, to the tests that say so."""

    groups: dict[str, Group] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)  # for a skipped test

    @property
    def counts(self) -> Counter[str]:
        return sum((group.counts for group in self.groups.values()), Counter())


def read(path: Path) -> Results:
    results = Results()
    for test in ET.parse(path).getroot().iter("testcase"):
        properties = {each.get("name"): each.get("value", "") for each in test.iter("property")}
        name = test.get("name", "")
        words = name.partition("[")[0].removeprefix("test_").replace("_", " ")
        group = results.groups.setdefault(properties.get("group", words), Group())
        wrong = [*test.findall("failure"), *test.findall("error")]
        skipped = test.find("skipped")
        group.counts["failed" if wrong else "passed" if skipped is None else "skipped"] += 1
        if "error" in properties:
            group.error = max(group.error or 0.0, float(properties["error"]))
        if skipped is not None:
            results.reasons[" ".join(skipped.get("message", "").split())] += 1
        for each in wrong:
            results.failures.setdefault(first_lines(each), []).append(name)
    return results


def first_lines(failure: ET.Element) -> str:
    """What was raised, and of what has no words the line that raised it."""
    said = failure.get("message", "").strip() or "\n".join(re.findall(r"(?m)^E +(.*)", failure.text or ""))
    return "\n".join(line[:LINE_WIDTH] for line in said.splitlines()[:FAILURE_LINES])
