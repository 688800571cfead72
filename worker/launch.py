"""`python -m worker.launch REPORT ARGUMENTS`: torchrun that dies with its parent, and says why a rank failed.

When a rank fails, the root cause is written to the file REPORT for the node's error.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from .lifetime import die_with_parent

TRACEBACK_LINES = 12


def main() -> None:
    die_with_parent()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    report, *arguments = sys.argv[1:]
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        Path(report).write_text(root_cause(error.failures))
        raise


def root_cause(failures: dict) -> str:
    """The failure that brought the others down: a signal, else an exception that is no lost connection.

    failures: rank to torch's ProcessFailure. A rank that torchrun ended itself (SIGTERM) is never the cause.
    """

    def order(item: tuple) -> tuple:
        _, failure = item
        lost_peer = "onnection" in str(failure.message)
        return (failure.exitcode == -signal.SIGTERM, failure.exitcode > 0 and lost_peer, failure.timestamp)

    rank, failure = min(failures.items(), key=order)
    if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
        return f"Rank {rank} (process {failure.pid}) was killed by {signal.Signals(-failure.exitcode).name}."
    details = failure.error_file_data.get("message", {}) if isinstance(failure.error_file_data, dict) else {}
    details = details if isinstance(details, dict) else {}
    trace = details.get("extraInfo", {}).get("py_callstack", "").strip().splitlines()[-TRACEBACK_LINES:]
    message = details.get("message") or f"exit code {failure.exitcode}"
    return "\n".join([f"Rank {rank} (process {failure.pid}) failed: {message}", *trace])


if __name__ == "__main__":
    main()
