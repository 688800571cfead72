"""Why a machine's part of a worker group ended, from `worker.launch.agent` to who started it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import Explanation


class Report:
    """The file for the reason of a failure.

    reason: in words. rank: of this machine, if it is one's. of_another: whether it is that a peer was lost, which is no
    root cause.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "failure.json"

    def write(self, reason: Explanation, rank: int | None = None, of_another: bool = False) -> None:
        self.file.write_text(json.dumps({"reason": reason._asdict(), "rank": rank, "of_another": of_another}))

    def read(self) -> dict[str, Any]:
        """Raises OSError if there is none, and ValueError if it is cut off."""
        fields = json.loads(self.file.read_text())
        return {**fields, "reason": Explanation(**fields["reason"])}
