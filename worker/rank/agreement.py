"""All ranks that run a request agree how it ended. If one rank alone decided what runs next, the ranks would
deadlock."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from parallel_backend.device import CPU
from parallel_backend.groups.collectives import gather_json
from parallel_backend.groups.mesh import new_group

from ..errors import Explanation
from ..wire.protocol import FAILED, MEMORY, NO_ROOM, Header
from .channels.relay import FOREVER

DONE, BROKEN, CANCELLED, REFUSED = "done", "broken", "cancelled", "refused"
# From best to worst. The worst outcome of any rank counts for all ranks. Broken: another rank broke the job off, and
# its outcome has the reason.
KINDS = (DONE, BROKEN, CANCELLED, REFUSED, NO_ROOM, FAILED, MEMORY)


@dataclass(frozen=True)
class Outcome:
    """said: the error for the editor, if the request was refused, failed or ran out of memory."""

    kind: str = DONE
    said: Explanation = Explanation("")

    def reply(self) -> Header:
        """Returns the fields of the reply to ComfyUI."""
        if self.kind in (DONE, CANCELLED):
            return {} if self.kind == DONE else {"cancelled": True}
        return {"error": self.said._asdict(), "kind": self.kind}


class JobEnded(Exception):
    """All ranks have agreed that the request ends here."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(str(outcome.said))
        self.outcome = outcome


class AgreementGroups:
    """The process groups by which ranks agree, separate from those of jobs: one of all ranks, and one of each plan's
    ranks. A plan uses the first ranks. The other ranks skip the plan's jobs. groups: by rank count. plan_ranks: the
    rank count of the last loaded plan."""

    def __init__(self, everyone: dist.ProcessGroup) -> None:
        self.plan_ranks = dist.get_world_size()
        self.groups = {self.plan_ranks: everyone}

    def set_plan_ranks(self, ranks: int) -> None:
        """Sets the rank count of the plan that is loaded from here on. All ranks call this together."""
        if ranks not in self.groups:
            self.groups[ranks] = new_group(torch.device(CPU), list(range(ranks)), FOREVER)
        self.plan_ranks = ranks

    def agree(self, own: Outcome, ranks: int) -> Outcome:
        """Returns the worst outcome of the first `ranks` ranks; if several have it, the first one's. All of them call
        this."""
        if ranks == 1:
            return own
        group, worst = self.groups[ranks], torch.tensor([(KINDS.index(own.kind) + 1) * ranks - dist.get_rank()])
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=group)
        kind, back = divmod(int(worst) - 1, ranks)
        if KINDS[kind] == DONE:
            return own
        # A file's name may not be valid text.
        words = [field.encode(errors="backslashreplace").decode() for field in own.said]
        return Outcome(KINDS[kind], Explanation(*gather_json(words, group)[ranks - 1 - back]))
