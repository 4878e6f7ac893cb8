"""Delegates and threads by the names that TFLite's evaluation tools have for them."""

from absl import flags

from jaxdelegate.errors import OptionError

# --delegate -> the delegate's own flag.
_DELEGATES = {"jax": "use_jax", "gpu": "use_gpu", "xnnpack": "use_xnnpack"}
_ABSENT = ("nnapi", "hexagon", "coreml")


def define(values: flags.FlagValues) -> None:
    """Declare them; `settle` turns them into the delegates' flags."""
    flags.DEFINE_integer(
        "num_interpreter_threads",
        None,
        "The name of --num_threads in TFLite's evaluation tools.",
        1,
        flag_values=values,
    )
    flags.DEFINE_enum(
        "delegate",
        None,
        [*_DELEGATES, *_ABSENT],
        "Short for --use_jax, --use_gpu or --use_xnnpack; the others are not available here.",
        flag_values=values,
    )


def settle(values: flags.FlagValues) -> None:
    """Turn them into the delegates' flags; once, before these are read.

    Raises:
        OptionError: a delegate that does not exist here, or two names that contradict each other.
    """
    if values.delegate in _ABSENT:
        raise OptionError(
            f"--delegate: {values.delegate!r} is not available here; want one of "
            f"{', '.join(_DELEGATES)}"
        )
    if values.delegate:
        _settle(values, "delegate", _DELEGATES[values.delegate], "true")
    if values.num_interpreter_threads is not None:
        _settle(values, "num_interpreter_threads", "num_threads", values.num_interpreter_threads)


def _settle(values: flags.FlagValues, name: str, other: str, value: object) -> None:
    flag = values[other]
    before = flag.value
    is_given = flag.present
    flag.parse(str(value))
    if is_given and flag.value != before:
        raise OptionError(
            f"--{name}={values[name].value} and --{other}={before} contradict each other; give one"
        )
