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
    """The interpreter cannot do this now, or an operator failed on the host.

    Stock interpreters raise RuntimeError in the same places: `invoke` before `allocate_tensors`,
    shapes that an operator refuses, an index out of range in the data, a held `tensor()` view.
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


class GradientError(JaxDelegateError, TypeError):
    """A derivative was asked for by what only integers depend on: JAX would answer zeros.

    The message names the tensor. Remedy: `quant_mode="float_view"`, the default; outputs that are
    integers have a derivative as floats, `model.function(io="float")`.
    """


class CacheWarning(UserWarning):
    """A stored program could not be used: damaged, foreign or old. It is compiled again."""
