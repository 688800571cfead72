"""The rows of the tables in the notes of the example workflows: how large each file is, and what two cards need; in
English and in Chinese."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from demo.host import REPOSITORY
from tests.support.templates.examples import File

FOLDER = REPOSITORY / "example_workflows"
TRANSLATED = "paralleldit_translated"  # a note's property, as `web/notes.mjs` reads it
GIB = 1 << 30
FILE = re.compile(r"(?m)^\| .* \| \w+ \| [\d.]+ [MG]B \|$")
CARD = re.compile(r"(?m)^\| (\d+) GiB \| [\w=×. ]+ \| [\d.]+ GiB.* \|$")
# By language: how blocks are fetched, by from where, and that weights do not fit.
WHERE = {
    "en": {"shared": "; the cards keep half of {} of {} blocks each", "host": "; {} of {} blocks come from RAM"},
    "zh": {"shared": "；{1} 个块中的 {0} 个由两张卡各存一半", "host": "；{1} 个块中的 {0} 个从内存取来"},
}
NO_ROOM = {"en": "; the rest is kept in RAM", "zh": "；其余放在内存中"}


def file_row(file: File) -> str:
    return f"| {f'[{file.name}]({file.url})' if file.url else file.name} | {file.folder} | {amount(file.gb)} |"


def card_row(gibibytes: str, found: Mapping[str, Any], language: str) -> str:
    """found: `two_cards.figures`."""
    kept = in_gib(found["kept"])
    if found["blocks"]:
        way, *counts = found["blocks"]
        kept += WHERE[language][way].format(*counts)
    elif not found["fits"]:
        kept += NO_ROOM[language]
    return f"| {gibibytes} GiB | {found['plan']} | {kept} | {in_gib(found['working'])} |"


def in_gib(count: int) -> str:
    """As Parallelize Model tells of memory."""
    return f"{count / GIB:.1f} GiB"


def amount(gigabytes: float) -> str:
    """ "23.8 GB", "335 MB": three digits, as sizes of downloads are told."""
    if gigabytes < 1:
        return f"{1000 * gigabytes:.0f} MB"
    return f"{gigabytes:.1f} GB" if gigabytes >= 10 else f"{gigabytes:.2f} GB"


def texts(workflow: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | list[Any], str | int]]:
    """Of its note, the language, and where the text is."""
    (node,) = [node for node in workflow["nodes"] if node["type"] == "MarkdownNote"]
    yield "en", node["widgets_values"], 0
    yield "zh", node["properties"][TRANSLATED]["zh"], "text"


def write_cards(path: Path, cards: Mapping[str, Any]) -> None:
    """Puts these figures, by GiB of a card, into the note of a workflow."""
    workflow = json.loads(path.read_text())
    for language, place, key in texts(workflow):
        place[key] = CARD.sub(lambda row, to=language: card_row(row[1], cards[row[1]], to), place[key])
    path.write_text(json.dumps(workflow, indent=1, ensure_ascii=False) + "\n")
