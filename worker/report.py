"""Why a machine's part of a worker group ended, from `worker.launch` to who started it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Report:
    """The file for the reason of a failure.

    rank: of this machine, if it is one's. of_another: whether it is that a peer was lost, which is no root cause.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "failure.json"

    def write(self, reason: str, rank: int | None = None, of_another: bool = False) -> None:
        self.file.write_text(json.dumps({"reason": reason, "rank": rank, "of_another": of_another}))

    def read(self) -> dict[str, Any]:
        """Raises OSError if there is none."""
        return json.loads(self.file.read_text())
