"""What the engine refuses, and says so in words for the person in the editor; and what is lack of memory."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator

# In the texts of errors for which torch and safetensors have no class of their own.
NO_MEMORY = (
    "can't allocate memory",
    "bad_alloc",
    "Cannot allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class RequestError(ValueError):
    """A request that cannot be served as asked. Raised on every rank alike, before any collective runs."""


class PlanError(RequestError):
    """A plan that the model, the input or the machine does not allow. fields: of the plan, those that it is about."""

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
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
