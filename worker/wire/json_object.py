"""Writes and reads JSON objects, in UTF-8."""

from __future__ import annotations

import json
from typing import Any


def to_bytes(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def parse_object(text: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parses a JSON object. Raises ValueError for anything else.

    Infinity and NaN are allowed in Python's form: schedulers' configs contain Infinity, and a user may type NaN.
    """
    try:
        value = json.loads(str(text, "utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
