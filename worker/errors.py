"""What goes wrong between ComfyUI and the worker group, and the form of its words."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

DETAILS = "Details:"  # `web/errors/message.js` has it, too
MAX_TRACEBACK = 8000  # characters, the last of them


@dataclass(frozen=True)
class Explanation:
    """What went wrong, for a person.

    ComfyUI passes on the text of an error alone, so this has one: paragraphs in the order of importance, of which the
    last is the details, under a line of their own.

    cause: what happened, and in further lines why. advice: what to do. details: a traceback, the end of a log.
    """

    cause: str
    advice: str = ""
    details: str = ""

    def __str__(self) -> str:
        details = f"{DETAILS}\n{self.details}" if self.details else ""
        return "\n\n".join(filter(None, (one_paragraph(self.cause), one_paragraph(self.advice), details)))

    @classmethod
    def parse(cls, text: str) -> Explanation:
        """What has such a text. Of another, the first paragraph is the cause, and the others the advice."""
        head, _, details = text.partition(f"\n\n{DETAILS}\n")
        cause, _, advice = head.partition("\n\n")
        return cls(cause, advice, details)


def one_paragraph(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


class Explained(Exception):
    """An error whose text is that of an Explanation."""

    def __init__(self, cause: str, advice: str = "", details: str = "") -> None:
        self.explanation = Explanation(cause, advice, details)
        super().__init__(str(self.explanation))

    @classmethod
    def parse(cls, text: str) -> Explained:
        """The error that has this text; it may have come from another process."""
        said = Explanation.parse(text)
        return cls(said.cause, said.advice, said.details)


class WorkerGroupError(Explained, RuntimeError):
    """The worker group did not start, died, or is left down."""


class RequestRefused(Explained, ValueError):
    """The worker group cannot serve this request, and says why; it lives on."""


class OutOfMemory(RequestRefused):
    """A rank ran out of memory (OOM) in this request; the group lives on, without a model."""


def unforeseen(error: Exception, rank: int) -> Explanation:
    """An error in a rank for which nobody has written words."""
    trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:].rstrip()
    return Explanation(
        f"{type(error).__name__}: {error}", "If it comes again, report it with the details.", f"Rank {rank}:\n{trace}"
    )
