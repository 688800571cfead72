"""Which file a process runs next: the longest of those that need what it has started already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Files of these folders share what takes long to start: a ComfyUI; a worker group; processes that fork ranks.
KINDS = {"comfyui": "ComfyUI", "editor": "ComfyUI", "worker": "a worker group", "engine": "ranks"}
UNKNOWN_S = 15.0  # of a file that no run has been kept of


def kind_of(file: str) -> str:
    """file: its path in tests/."""
    return KINDS.get(file.split("/")[0], "")


def choose(waiting: Iterable[str], seconds: Mapping[str, float], own: Collection[str], others: Collection[str]) -> str:
    """The file for a process that has run files of the kinds `own`, while others have run `others`.

    It stays with what it has started. A process that has started nothing takes what nobody has; one that is done with
    its own takes the longest that is left.
    """

    def order(file: str) -> tuple[bool, bool, float]:
        kind = kind_of(file)
        return kind not in own, not own and kind in others, -seconds.get(file, UNKNOWN_S)

    return min(waiting, key=order)


class LongestFirst(LoadFileScheduling):
    """Shares out whole files. A process keeps to what it has started, as starting takes longer than most tests."""

    def __init__(self, config: Any, log: Any, seconds: Mapping[str, float]) -> None:
        super().__init__(config, log)
        self._seconds = seconds

    def _assign_work_unit(self, node: WorkerController) -> None:
        kinds = {other: {kind_of(file) for file in files} for other, files in self.assigned_work.items()}
        own = kinds.pop(node, set())
        others = {kind for held in kinds.values() for kind in held}
        self.workqueue.move_to_end(choose(self.workqueue, self._seconds, own, others), last=False)
        super()._assign_work_unit(node)
