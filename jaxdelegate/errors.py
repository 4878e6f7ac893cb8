"""Exceptions and warnings. Each also inherits the builtin exception that users of TFLite catch."""


class JaxDelegateError(Exception):
    """The base of all errors raised on purpose by this package."""


class ModelError(JaxDelegateError, ValueError):
    """The file is not a TFLite model, or a damaged one.

    The message names the file, the table and the field, what was expected and what was found.
    Remedy: export or download the model again; `jaxdelegate analyze` reads it field by field.
    """


class TensorError(JaxDelegateError, ValueError):
    """An array does not fit its tensor: wrong index, dtype or shape.

    Remedy: convert it as `get_input_details()` says, or call `resize_tensor_input` first.
    """


class InterpreterError(JaxDelegateError, RuntimeError):
    """The interpreter cannot do this in its current state, or an operator or a partition failed.

    Stock interpreters raise RuntimeError in the same cases: `invoke` before `allocate_tensors`,
    shapes that an operator rejects, an index out of range in the data, a live `tensor()` view.
    """


class StoppedError(InterpreterError):
    """An invoke was stopped between two operators by `Interpreter.cancel` or by its timeout.

    The interpreter can still be used. States (variable tensors, resources) contain the results of
    the operators that ran; `reset_all_variables` resets variable tensors.
    """


class DeviceMemoryError(InterpreterError, MemoryError):
    """A device does not have enough memory for a partition: its weights, its program or a run.

    The message names the nodes, the required memory and remedies. The interpreter can still be
    used, for example after `resize_tensor_input` to a smaller batch. `allocate_tensors` raises this
    unless `fallback_on_error=True` runs the partition on the host; `invoke`, and functions that
    read results, always raise it.
    """


class UnassignedError(InterpreterError, TensorError):
    """A resource variable is read before anything was assigned to it; names the variable.

    Stock interpreters return what their memory happens to hold. Remedy: run the signature that
    assigns the variable first, or pass on the state of a function that does.
    """


class OptionError(JaxDelegateError, ValueError):
    """An unknown option or an impossible value; the message suggests the closest known ones."""


class GenerationError(JaxDelegateError, ValueError, RuntimeError):
    """A language model cannot read a text, or not in its current state.

    The text is empty or too long, has a token that the model does not have, nothing was read yet,
    or the session is closed. `litert_lm` raises RuntimeError in the same cases.
    """


class DelegationError(JaxDelegateError, NotImplementedError):
    """Operators would stay on the host although full delegation is required.

    The message lists all of them, grouped by reason. Remedy: without `require_full_delegation` they
    run on the host.
    """


class LoweringError(JaxDelegateError, RuntimeError):
    """A lowering is wrong. This is a bug in jaxdelegate: please report it.

    The message names the node, the operator, and the expected and the traced results.
    `fallback_on_error=True` runs the partition on the host instead.
    """


class ConversionError(JaxDelegateError, NotImplementedError):
    """`from_jax` cannot write a function, because TFLite has no operator for a part of it.

    The message names the primitive, the line of the function, and what to write instead.
    """


class GradientError(JaxDelegateError, TypeError, ValueError):
    """A requested gradient does not exist; JAX would return zeros.

    It is that of integers (for which JAX raises a TypeError), or of a loop whose number of
    iterations depends on its data (a ValueError). The message names the tensor or the operator.
    Remedy: for integers `quant_mode="float_view"`, the default of `load`, and
    `model.function(io="float")`;
    for loops forward-mode derivatives (`jax.jvp`), or a model whose loop counts to a constant.
    """


class CacheWarning(UserWarning):
    """A stored program could not be used: damaged, foreign or old. It is compiled again."""


def check_least(least: float, **values: float | None) -> None:
    """Check that values are at least this, or None; an OptionError names the one that is not."""
    for name, value in values.items():
        if value is not None and value < least:
            raise OptionError(f"{name}: must be at least {least}, got {value}")
