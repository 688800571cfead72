"""Which file a process runs next: the longest that waits, so that none begins when the others are done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

UNKNOWN_S = 15.0  # of a file that no run has been kept of


class LongestFirst(LoadFileScheduling):
    """Shares out whole files. seconds: what each took in former runs."""

    def __init__(self, config: Any, log: Any, seconds: Mapping[str, float]) -> None:
        super().__init__(config, log)
        self._seconds = seconds

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = max(self.workqueue, key=lambda file: self._seconds.get(file, UNKNOWN_S))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
