"""Of several ranks that failed, the one that brought the others down is named."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from worker.launch import root_cause

LOST = "Connection closed by peer [127.0.0.1]:4242"


@dataclass
class Failure:
    """What torch's ProcessFailure tells of a rank."""

    exitcode: int
    message: str = ""
    timestamp: int = 1_700_000_000
    pid: int = 4242
    error_file_data: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.error_file_data = {"message": {"message": self.message, "extraInfo": {}}} if self.message else {}


KILLED, ABORTED, ENDED = (Failure(-number) for number in (signal.SIGKILL, signal.SIGABRT, signal.SIGTERM))
WRONG, CUT_OFF = Failure(1, "ValueError: wrong"), Failure(1, f"RuntimeError: {LOST}")


@pytest.mark.parametrize(
    ("failures", "rank", "said", "lost"),
    [
        ([ABORTED, KILLED], 1, "was killed by SIGKILL", False),
        ([CUT_OFF, KILLED], 1, "was killed by SIGKILL", False),
        ([CUT_OFF, ABORTED], 1, "was killed by SIGABRT", False),
        ([ENDED, CUT_OFF, WRONG], 2, "failed: ValueError: wrong", False),
        ([ENDED, CUT_OFF], 1, LOST, True),
        ([Failure(-signal.SIGKILL, timestamp=1_700_000_009), KILLED], 1, "was killed by SIGKILL", False),
    ],
    ids=["killed", "killed, lost", "aborted, lost", "an exception", "lost alone", "the first"],
)
def test_the_root_cause_is_no_consequence(failures: list[Failure], rank: int, said: str, lost: bool) -> None:
    named, reason, is_lost = root_cause(dict(enumerate(failures)))
    assert named == rank and said in reason.cause and is_lost == lost
