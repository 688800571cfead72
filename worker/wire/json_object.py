"""JSON objects as frames carry them: in UTF-8, no name twice, as deep as Python reads them."""

from __future__ import annotations

import json
from typing import Any


def parse_object(text: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The object that the bytes are. Raises ValueError for whatever else they are.

    Infinity and NaN pass, as Python writes them: schedulers' configs hold the one, and what a user types the other.
    """
    try:
        value = json.loads(str(text, "utf-8"), object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name is in it twice")
    return names
