"""What can go wrong. Every class also inherits the builtin that users of TFLite already catch."""


class JaxDelegateError(Exception):
    """The base of all errors raised on purpose by this package."""


class ModelError(JaxDelegateError, ValueError):
    """The file is not a TFLite model, or a damaged one.

    The message names the file, the table and the field, what was expected and what stood there.
    Remedy: export or download the model again; `jaxdelegate analyze` reads it field by field.
    """


class TensorError(JaxDelegateError, ValueError):
    """An array does not fit the tensor it was given for: index, dtype or shape.

    Remedy: convert it to what `get_input_details()` names, or call `resize_tensor_input` first.
    """


class InterpreterError(JaxDelegateError, RuntimeError):
    """The interpreter cannot do this now, or an operator or a partition failed.

    Stock interpreters raise RuntimeError in the same places: `invoke` before `allocate_tensors`,
    shapes that an operator refuses, an index out of range in the data, a held `tensor()` view.
    """


class StoppedError(InterpreterError):
    """An invoke was ended between two operators: by `Interpreter.cancel`, or by its timeout.

    The interpreter can be used on. States (variable tensors, resources) keep what the operators
    until then have made of them; `reset_all_variables` sets variable tensors back.
    """


class DeviceMemoryError(InterpreterError, MemoryError):
    """A device has no memory for a partition: for its weights, its program or a run of it.

    The message names the nodes, what the partition takes and what helps. The interpreter can be
    used again: after `resize_tensor_input` to a smaller batch, for example. Raised by
    `allocate_tensors` unless `fallback_on_error=True` runs the partition on the host; always by
    `invoke` and where results are read.
    """


class OptionError(JaxDelegateError, ValueError):
    """An option is unknown, or its value impossible; the message names the closest known ones."""


class DelegationError(JaxDelegateError, NotImplementedError):
    """Operators would stay on the host although full delegation was required.

    The message lists every one of them, grouped by reason. Remedy: without
    `require_full_delegation` they run on the host.
    """


class LoweringError(JaxDelegateError, RuntimeError):
    """A lowering did not do what it promised. This is a bug of ours: please report it.

    The message names the node, the operator, and what was expected against what was traced.
    `fallback_on_error=True` runs the partition on the host instead.
    """


class GradientError(JaxDelegateError, TypeError, ValueError):
    """There is no gradient where one was asked for; JAX would answer zeros.

    Of integers (JAX raises a TypeError in such places), or of a loop that runs as often as its data
    say (a ValueError). The message names the tensor or the operator. Remedy: for integers
    `quant_mode="float_view"`, the default, and `model.function(io="float")`; for loops forward-mode
    derivatives (`jax.jvp`), or a model whose loop counts to a constant.
    """


class CacheWarning(UserWarning):
    """A stored program could not be used: damaged, foreign or old. It is compiled again."""
