"""What the table of docs/plans.md predicts for the cards of this machine."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "plans.md"
HEAD = "| cards |"


def rows() -> dict[str, tuple[str, str]]:
    """By cards, as the page names them: with guidance, and without."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(HEAD))
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cards, guided, unguided = (cell.strip() for cell in line.strip("|").split("|"))
        found[cards] = (guided, unguided)
    return found


def predicted(cards: int, has_nvlink: bool, are_alike: bool) -> str:
    """Returns the row in words."""
    if cards == 1:
        return "One card: docs/plans.md predicts nothing faster. One rank should take as long as ComfyUI's own loader."
    if not are_alike:
        name = "mixed"
    elif cards == 2:
        name = "2, NVLink" if has_nvlink else "2, PCIe"
    else:
        name = "8" if cards >= 8 else "4"
    guided, unguided = rows()[name]
    return f"docs/plans.md, “{name}”: with guidance {guided}; without {unguided}."
