"""What two cards keep and need for the models of the example workflows, which their notes tell, in English and Chinese.

COMFYUI_PATH=… python -m tests.support.templates.two_cards writes it into `two_cards.json` and into the notes.

The pack's own answer to Parallelize Model set to auto (`nodes/routes/plan.py`), for files of published names and
shapes and for cards that are pretended (`tests/support/host/plans_on_cards.py`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from demo.host import REPOSITORY
from tests.support.programs import run_program
from tests.support.templates.examples import HERE, TABLE, Example, File

FILE = HERE / "two_cards.json"
FETCHED = ("shared", "host")
FOLDER = REPOSITORY / "example_workflows"
TRANSLATED = "paralleldit_translated"  # a note's property, as `web/notes.mjs` reads it
GIB = 1 << 30
FILE_ROW = re.compile(r"(?m)^\| .* \| \w+ \| [\d.]+ [MG]B \|$")
CARD_ROW = re.compile(r"(?m)^\| (\d+) GiB \| [\w=×. ]+ \| [\d.]+ GiB.* \|$")
# By language: how blocks are fetched, by from where, and that weights do not fit.
WHERE = {
    "en": {"shared": "; the cards keep half of {} of {} blocks each", "host": "; {} of {} blocks come from RAM"},
    "zh": {"shared": "；{1} 个块中的 {0} 个由两张卡各存一半", "host": "；{1} 个块中的 {0} 个从内存取来"},
}
NO_ROOM = {"en": "; the rest is kept in RAM", "zh": "；其余放在内存中"}


def question(example: Example, cards: int) -> list[Any]:
    """Of `plans_on_cards`."""
    assert example.sampled
    width, height, length, cfg = example.sampled
    picture = {"width": width, "height": height, "length": length}
    sampler = {"type": "KSampler", "cfg": cfg, "picture": picture}
    files = {"unet_name": example.model.name}
    return [[cards, cards], {}, {"values": {"mode": "auto"}, "files": files, "samplers": [sampler]}]


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    """plan: in words. kept, working, fetched: bytes, of the card that has most. blocks: how many of how many are
    fetched, and from where. fits: whether the pack says so."""
    memory, said = answer["memory"], {each["key"]: each["values"] for each in answer["remarks"]}
    blocks = next(([way, said[f"weights_{way}"]] for way in FETCHED if f"weights_{way}" in said), None)
    return {
        "plan": answer["plan"],
        "kept": max(memory["kept"]),
        "working": memory["working"],
        "fetched": memory["fetched"],
        "blocks": blocks and [blocks[0], blocks[1]["going"], blocks[1]["blocks"]],
        "fits": not any(key.endswith("too_large") or key == "partly_in_ram" for key in said),
    }


def asked(comfyui: Path) -> dict[str, Any]:
    """The figures of all, by template and GiB of a card."""
    keys = [(name, cards) for name, example in TABLE.items() if example.sampled for cards in example.cards]
    with tempfile.TemporaryDirectory() as folder:
        questions = [question(TABLE[name], cards) for name, cards in keys]
        answers = run_program(comfyui, "tests.support.host.plans_on_cards", folder, given=questions)
    found: dict[str, Any] = {}
    for (name, cards), answer in zip(keys, answers, strict=True):
        assert not answer["error"] and answer["memory"], (name, answer)
        found.setdefault(name, {})[str(cards)] = figures(answer)
    return found


def lines(cards: dict[str, Any]) -> str:
    """The figures of each card in a line."""
    return ",\n".join(f"  {json.dumps(card)}: {json.dumps(figures)}" for card, figures in cards.items())


def file_row(file: File) -> str:
    return f"| {f'[{file.name}]({file.url})' if file.url else file.name} | {file.folder} | {amount(file.gb)} |"


def card_row(gibibytes: str, found: Mapping[str, Any], language: str) -> str:
    """found: `figures`."""
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
        place[key] = CARD_ROW.sub(lambda row, to=language: card_row(row[1], cards[row[1]], to), place[key])
    path.write_text(json.dumps(workflow, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    found = asked(Path(os.environ["COMFYUI_PATH"]))
    rows = (f" {json.dumps(name)}: {{\n{lines(cards)}\n }}" for name, cards in found.items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    for name, cards in found.items():
        write_cards(FOLDER / f"{name}.json", cards)
