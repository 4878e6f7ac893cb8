"""What an error of jaxlib, jax or numpy is raised as where a program is compiled or run."""

from jaxdelegate.errors import DeviceMemoryError, InterpreterError, JaxDelegateError

# The status in the text of an XlaRuntimeError: jaxlib has one class for all errors.
_STATUS = "RESOURCE_EXHAUSTED"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of jaxlib, jax or numpy means that an allocation failed."""
    is_status = isinstance(error, RuntimeError) and _STATUS in str(error)
    return is_status or isinstance(error, MemoryError)


def device_error(
    error: BaseException, message: str, otherwise: type[JaxDelegateError] = InterpreterError
) -> JaxDelegateError:
    """The error to raise for one of a device: a DeviceMemoryError if an allocation failed."""
    return (DeviceMemoryError if is_out_of_memory(error) else otherwise)(message)
