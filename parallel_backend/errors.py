"""Error texts, the errors that the engine raises, and the detection of missing memory.

Only this module defines the form of an error's text. Every module that raises an error may import it.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

MODULE = "paralleldit"  # `web/errors/message.mjs` repeats this, too
DETAILS = "Details:"  # `web/errors/message.mjs` repeats this word
# The texts of memory errors for which torch and safetensors have no class of their own.
NO_MEMORY = (
    "can't allocate memory",
    "bad_alloc",
    "Cannot allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",  # Intel's
    "CUBLAS_STATUS_ALLOC_FAILED",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL's, and the next two
    "Failed to CUDA calloc",
    "Failed to CUDA malloc",
)


class Explanation(NamedTuple):
    """Describes an error for a person.

    cause: what happened; further lines say why. advice: what to do. `said` in `locales/*/main.json` translates both,
    sentence by sentence. details: a traceback or the end of a log.

    An editor may get only the text of an error. The text has the fields as paragraphs, the most important first. The
    details come last, below a line of their own. Ranks, processes and machines send each other the fields.
    """

    cause: str
    advice: str = ""
    details: str = ""

    def __str__(self) -> str:
        details = f"{DETAILS}\n{self.details}" if self.details else ""
        return "\n\n".join(filter(None, (one_paragraph(self.cause), one_paragraph(self.advice), details)))

    @property
    def brief(self) -> str:
        """Cause and advice in one paragraph, without details."""
        return " ".join(filter(None, (*self.cause.splitlines(), *self.advice.splitlines())))

    def because(self, said: str) -> Explanation:
        """Returns this explanation with these words put before its cause."""
        return self._replace(cause=f"{said}{self.cause}")

    def advised(self, advice: str) -> Explanation:
        """Returns this explanation with this advice added at the end."""
        return self._replace(advice="\n".join(filter(None, (self.advice, advice))))


def one_paragraph(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


class Explained(Exception):
    """An error whose text comes from an Explanation.

    Where this package was found by its path, its modules are named so. The name of an error's class goes to the
    editor, so these errors give the module `MODULE` instead, on every machine the same.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if os.sep in cls.__module__:
            cls.__module__ = MODULE

    def __init__(self, cause: str, advice: str = "", details: str = "") -> None:
        self.explanation = Explanation(cause, advice, details)
        super().__init__(str(self.explanation))


class GroupError(Explained, RuntimeError):
    """The ranks have no group, or could not connect to each other."""


class RequestError(Explained, ValueError):
    """The request cannot be served. Every rank raises this alike, before any collective runs."""


class PlanError(RequestError):
    """The model, the input or the machine does not allow the plan. fields: the fields of the plan that cause this."""

    def __init__(self, cause: str, advice: str = "", *fields: str) -> None:
        super().__init__(cause, advice)
        self.fields = fields


class UnknownModelError(RequestError):
    """The transformer class has no spec."""


class ModelFileError(RequestError):
    """Model files are missing, broken, or belong to another model."""


class NoRoomError(RequestError):
    """A machine has no room for the file of weights by value."""


def reasons(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and the chain of its causes and contexts, as a traceback shows them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def lack_of_memory(error: BaseException) -> BaseException | None:
    """Returns the failed allocation, on any device, that is or caused this error. None if there is none.

    A RequestError does not count, and the search stops there.
    """
    unforeseen = itertools.takewhile(lambda reason: not isinstance(reason, RequestError), reasons(error))
    return next(filter(_lacks_memory, unforeseen), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an allocation failed. This includes errors in which a library reports it in its own way."""
    return lack_of_memory(error) is not None


def _lacks_memory(error: BaseException) -> bool:
    import torch  # code that only describes requests needs no torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(text in str(error) for text in NO_MEMORY)


def format_bytes(count: float) -> str:
    """Formats bytes as the editor's panel does: "412 MiB", "1.2 GiB"; fewer than a MiB as "3 KiB"."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.1f} GiB"
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.0f} KiB"
