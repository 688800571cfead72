"""Parts of a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def fenced(text: str) -> str:
    return f"```\n{text.replace('```', '')}\n```" if text else "Nothing."
