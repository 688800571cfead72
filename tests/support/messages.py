"""`python -m tests.support.messages`: prints every message, tooltip, note and line of a log that a user can see.

Read it as one text. The texts of `locales` come first, each with its key and the Chinese one; then those in the code,
by module. Placeholders are in braces.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("main", "nodeDefs", "commands", "settings")
PRODUCT = ("nodes", "worker", "parallel_backend", "demo")
LEAST_WORDS = 3  # shorter ones are names, keys and values
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def flatten(texts: dict, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each leaf."""
    for key, value in texts.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def list_texts(language: str) -> dict[str, str]:
    """Returns the texts of a language by file and key."""
    found = {}
    for name in FILES:
        texts = json.loads((ROOT / "locales" / language / f"{name}.json").read_text("utf-8"))
        found |= {f"{name}: {key}": text for key, text in flatten(texts)}
    return found


def list_in_code() -> Iterator[tuple[str, str]]:
    """Yields each text in the code that is no docstring, with its place. Texts that stand side by side are one."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, text in read_texts(path.read_text("utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}", text


def read_texts(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    nodes, skipped = [*ast.walk(tree)], set()
    for node in nodes:
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
            skipped.add(node.body[0].value)
        if isinstance(node, ast.JoinedStr):
            skipped |= {*ast.walk(node)} - {node}
    for node in nodes:
        text = "" if node in skipped else show(node)
        if len(text.split()) >= LEAST_WORDS and any(letter.isalpha() for letter in text):
            yield node.lineno, text


def show(node: ast.AST, filled_in: str = "") -> str:
    """Returns a text as it is read; nothing for what is no text. Expressions are in braces, or as `filled_in`."""
    if isinstance(node, ast.JoinedStr):
        filled = lambda part: filled_in or f"{{{ast.unparse(part.value)}}}"  # noqa: E731
        return "".join(str(part.value) if isinstance(part, ast.Constant) else filled(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def main() -> None:
    english, chinese = list_texts("en"), list_texts("zh")
    for key, text in english.items():
        print(f"{key}\n    {text}\n    {chinese.get(key, '')}")
    for place, text in list_in_code():
        print(f"{place}\n    {text}")


if __name__ == "__main__":
    main()
