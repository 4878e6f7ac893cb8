"""Recognizes errors that mean that a device, or the host, is out of memory."""

# The status in the text of an XlaRuntimeError: jaxlib has one class for all errors.
_STATUS = "RESOURCE_EXHAUSTED"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of jaxlib, jax or numpy means that an allocation failed."""
    is_status = isinstance(error, RuntimeError) and _STATUS in str(error)
    return is_status or isinstance(error, MemoryError)
