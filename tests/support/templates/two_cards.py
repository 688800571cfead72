"""What two cards keep and need for the models of the example workflows, which their notes tell.

COMFYUI_PATH=… python -m tests.support.templates.two_cards writes it into `two_cards.json` and into the notes.

The pack's own answer to Parallelize Model set to auto (`nodes/routes/plan.py`), for files of published names and
shapes and for cards that are pretended (`tests/support/host/plans_on_cards.py`).
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.support.programs import run_program
from tests.support.templates.examples import HERE, TABLE, Example
from tests.support.templates.notes import FOLDER, write_cards

FILE = HERE / "two_cards.json"
FETCHED = ("shared", "host")


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
        questions = json.dumps([question(TABLE[name], cards) for name, cards in keys])
        said = run_program(comfyui, "tests.support.host.plans_on_cards", folder, given=questions)
    found: dict[str, Any] = {}
    for (name, cards), answer in zip(keys, json.loads(said.splitlines()[-1]), strict=True):
        assert not answer["error"] and answer["memory"], (name, answer)
        found.setdefault(name, {})[str(cards)] = figures(answer)
    return found


def lines(cards: dict[str, Any]) -> str:
    """The figures of each card in a line."""
    return ",\n".join(f"  {json.dumps(card)}: {json.dumps(figures)}" for card, figures in cards.items())


if __name__ == "__main__":
    found = asked(Path(os.environ["COMFYUI_PATH"]))
    rows = (f" {json.dumps(name)}: {{\n{lines(cards)}\n }}" for name, cards in found.items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    for name, cards in found.items():
        write_cards(FOLDER / f"{name}.json", cards)
