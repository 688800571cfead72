"""The tables of the project's pages that a benchmark writes and a test compares, between two comments."""

from __future__ import annotations

import sys

from demo.host import REPOSITORY

CLASSES, EXACTNESS = (REPOSITORY / "docs" / f"{name}.md" for name in ("classes", "exactness"))
EXCHANGE = REPOSITORY / "docs" / "dev" / "03-exchange.md"
PAGE_OF = {
    **{"classes": CLASSES, "folders": CLASSES, "templates": CLASSES},
    "parity": EXACTNESS,
    "clock": EXCHANGE,
}


def parts(name: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands after it."""
    start, end = f"<!-- {name}: start -->\n", f"<!-- {name}: end -->\n"
    before, rest = PAGE_OF[name].read_text().split(start)
    table, after = rest.split(end)
    return before + start, table, end + after


def written_table(name: str) -> str:
    return parts(name)[1]


def show_table(name: str, table: str) -> None:
    """Prints it; with --write, puts it into its page."""
    print(table)
    if "--write" in sys.argv:
        before, _, after = parts(name)
        PAGE_OF[name].write_text(before + table + after)
