"""`python3 .ci/release_notes.py 0.1.0`: prints a version's entry of CHANGELOG.md, which becomes the release's text.

Fails if pyproject.toml has another version, or if the changelog has no entry for it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_notes(version: str, changelog: str, project: str) -> str:
    """Returns the entry. Raises ValueError."""
    found = re.search(r'^version = "(.+)"$', project, flags=re.MULTILINE)
    if not found or found[1] != version:
        raise ValueError(f"pyproject.toml has version {found and found[1]}, and the tag is of {version}")
    entry = re.search(rf"^## {re.escape(version)}\b.*?\n(.+?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL)
    if not entry or not entry[1].strip():
        raise ValueError(f"CHANGELOG.md has no entry '## {version}': rename 'Unreleased' to it")
    return entry[1].strip()


if __name__ == "__main__":
    try:
        print(read_notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), (ROOT / "pyproject.toml").read_text()))
    except ValueError as error:
        sys.exit(f"{error}.")
