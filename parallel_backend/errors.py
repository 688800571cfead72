"""What the engine refuses, and says so in words for the person in the editor; and what is lack of memory."""

from __future__ import annotations

import errno

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on whichever device; also where a library says it in an error of its own."""
    if isinstance(error, RequestError):
        return False
    return _lacked_memory(error) or any(
        is_out_of_memory(reason) for reason in (error.__cause__, error.__context__) if reason
    )


def _lacked_memory(error: BaseException) -> bool:
    import torch  # what only describes requests needs none

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(text in str(error) for text in NO_MEMORY)
