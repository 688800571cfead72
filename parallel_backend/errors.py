"""What the engine refuses, and says so in words for the person in the editor."""


class RequestError(ValueError):
    """A request that cannot be served as asked. Raised on every rank alike, before any collective runs."""


class PlanError(RequestError):
    """A plan that the model, the input or the machine does not allow."""


class UnknownModelError(RequestError):
    """A transformer class without a spec."""


class ModelFileError(RequestError):
    """Model files that are missing, broken, or do not belong to the model they are loaded as."""
