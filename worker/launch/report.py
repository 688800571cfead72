"""The file in which `worker.launch.agent` tells its starter why this machine's part of a group ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import Explanation


class Report:
    """The reason of a failure, as a JSON file.

    rank: the rank of this machine that failed, if one did. of_another: the reason is only that a peer was lost, so the
    root cause is elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "failure.json"

    def write(self, reason: Explanation, rank: int | None = None, of_another: bool = False) -> None:
        self.file.write_text(json.dumps({"reason": reason._asdict(), "rank": rank, "of_another": of_another}))

    def read(self) -> dict[str, Any]:
        """Raises OSError if there is no file, and ValueError if it is cut off."""
        fields = json.loads(self.file.read_text())
        return {**fields, "reason": Explanation(**fields["reason"])}
