"""The project's own pages name files and functions that are there."""

from __future__ import annotations

import re

import pytest

from demo.host import REPOSITORY

PAGES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "tests/README.md", "parallel_backend/models/README.md")
# Folders that pages name files relative to, beside their own and the repository's.
ROOMS = ("", "worker", "parallel_backend", "nodes", "tests", "tests/support")


def named_files(page: str) -> list[str]:
    """What a page has in backticks or as a link, and ends as a file of the repository does."""
    text = (REPOSITORY / page).read_text()
    quoted = re.findall(r"`([\w./{},-]+/[\w.-]+\.(?:py|js|md|json|css|mjs|ini|txt))(?:::\w+)?`", text)
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    return sorted({*quoted, *linked})


def is_there(name: str, page: str) -> bool:
    places = [REPOSITORY / page / "..", *(REPOSITORY / room for room in ROOMS)]
    return any((place / name).resolve().exists() for place in places)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    names = named_files(page)
    assert names
    missing = [name for name in names if not is_there(name, page) and "FAMILY" not in name]
    assert not missing, f"{page} names {', '.join(missing)}"


def test_a_name_of_no_file_is_found() -> None:
    assert not is_there("worker/host/sessions.py", "docs/architecture.md")
    assert is_there("host/session.py", "docs/architecture.md")
