"""The pack's settings, by the route that the editor asks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from demo.host import ComfyHost
from tests.support.host.graphs import ask

ROUTE = "/paralleldit/settings"


def settings_file(host: ComfyHost) -> Path:
    return host.base / "user" / "paralleldit.json"


def ask_settings(host: ComfyHost, changes: Any = None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings, after these changes if there are any. Raises HTTPError for a refusal."""
    body = None if changes is None else json.dumps(changes).encode()
    return json.loads(ask(host, ROUTE, body, headers=dict(headers or {})))


@contextlib.contextmanager
def settings_kept(host: ComfyHost) -> Iterator[Path]:
    """The file, which is not there. What is changed while this is entered is taken back."""
    file = settings_file(host)
    assert not file.exists()
    try:
        yield file
    finally:
        if file.exists():
            ask_settings(host, dict.fromkeys(json.loads(file.read_text())))
            file.unlink()
