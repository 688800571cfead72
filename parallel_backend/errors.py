"""How the pack says what went wrong; what the engine refuses; and what is lack of memory.

The form of an error's text is here, below all that raises one, and nowhere else.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from typing import NamedTuple

DETAILS = "Details:"  # `web/errors/message.mjs` has it, too
# In the texts of errors for which torch and safetensors have no class of their own.
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
    """What went wrong, for a person.

    cause: what happened, and in further lines why. advice: what to do; each line is one that `errors.advices` of
    `locales/*/main.json` may translate. details: a traceback, the end of a log.

    ComfyUI passes on the text of an error alone, so this has one: paragraphs in the order of importance, of which the
    last is the details, under a line of their own. Every other way, between ranks, processes and machines, has the
    fields.
    """

    cause: str
    advice: str = ""
    details: str = ""

    def __str__(self) -> str:
        details = f"{DETAILS}\n{self.details}" if self.details else ""
        return "\n\n".join(filter(None, (one_paragraph(self.cause), one_paragraph(self.advice), details)))

    def because(self, said: str) -> Explanation:
        """The same as the cause of something else, that these words say."""
        return self._replace(cause=f"{said}{self.cause}")

    def advised(self, advice: str) -> Explanation:
        """The same with this advice after its own."""
        return self._replace(advice="\n".join(filter(None, (self.advice, advice))))


def one_paragraph(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())


class Explained(Exception):
    """An error whose text is that of an Explanation."""

    def __init__(self, cause: str, advice: str = "", details: str = "") -> None:
        self.explanation = Explanation(cause, advice, details)
        super().__init__(str(self.explanation))


class GroupError(Explained, RuntimeError):
    """The ranks have no group, or could not be connected to each other."""


class RequestError(Explained, ValueError):
    """A request that cannot be served as asked. Raised on every rank alike, before any collective runs."""


class PlanError(RequestError):
    """A plan that the model, the input or the machine does not allow. fields: of the plan, those that it is about."""

    def __init__(self, cause: str, advice: str = "", *fields: str) -> None:
        super().__init__(cause, advice)
        self.fields = fields


class UnknownModelError(RequestError):
    """A transformer class without a spec."""


class ModelFileError(RequestError):
    """Model files that are missing, broken, or do not belong to the model they are loaded as."""


def reasons(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from or in the handling of, and so on, as a traceback shows them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def lack_of_memory(error: BaseException) -> BaseException | None:
    """The failed allocation, on whichever device, that the error is or comes of; None if there is none.

    A RequestError is none, and none is looked for behind it.
    """
    unforeseen = itertools.takewhile(lambda reason: not isinstance(reason, RequestError), reasons(error))
    return next(filter(_lacks_memory, unforeseen), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; also where a library says so in an error of its own."""
    return lack_of_memory(error) is not None


def _lacks_memory(error: BaseException) -> bool:
    import torch  # what only describes requests needs none

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(text in str(error) for text in NO_MEMORY)
