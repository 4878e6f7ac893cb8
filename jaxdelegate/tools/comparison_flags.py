"""Flags that inference_diff and bisect share: model, reference, inputs, bounds, the test side."""

import functools

from absl import flags

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.inputs import InputSettings, parse_inputs
from jaxdelegate.comparison.sides import REFERENCES, Test
from jaxdelegate.errors import OptionError
from jaxdelegate.tools import delegate_flags, delegate_names


def define(values: flags.FlagValues, *, num_runs: int) -> None:
    """Declare them, and the delegates' flags; `num_runs` is the tool's default."""
    flags.DEFINE_string("graph", None, "The .tflite file.", flag_values=values)
    flags.DEFINE_enum(
        "reference",
        "numpy",
        list(REFERENCES),
        "What is right: the numpy kernels, or the stock interpreter with its reference kernels, "
        "its optimized kernels, or XNNPACK.",
        flag_values=values,
    )
    flags.DEFINE_integer("num_runs", num_runs, "Sets of inputs.", 1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of the random inputs.", 0, flag_values=values)
    _define_inputs(values)
    flags.DEFINE_float(
        "tolerance",
        None,
        "Allowed error of floats, as a fraction of the largest reference value. "
        "Unset: 1e-4; 1e-2 where the delegate computes, or the tensor is stored, in less than "
        "float32.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "max_lsb",
        Bounds.max_lsb,
        "Allowed difference of quantized integers.",
        0,
        flag_values=values,
    )
    flags.DEFINE_float(
        "max_abs_error",
        None,
        "Allowed absolute error in raw units, instead of these.",
        0.0,
        flag_values=values,
    )
    delegate_names.define(values)
    delegate_flags.define(values)


def _define_inputs(values: flags.FlagValues) -> None:
    for name, text in (
        ("input_layer", "Names of the inputs that get other shapes: a,b"),
        ("input_layer_shape", "Their shapes: 1,224,224,3:1,10"),
        ("input_layer_value_range", "Ranges of integer inputs, inclusive: a,low,high:b,low,high"),
        (
            "input_layer_value_files",
            "Files with the inputs' values, raw or .npy: a:path,b:path; a colon within is '::'",
        ),
    ):
        flags.DEFINE_string(name, "", text, flag_values=values)


def model(values: flags.FlagValues) -> str:
    """The model's path.

    Raises:
        OptionError: none is given.
    """
    if not values.graph:
        raise OptionError("--graph (or --model_file): give one .tflite file, got 0")
    return str(values.graph)


def inputs(values: flags.FlagValues) -> InputSettings:
    """What both sides are fed.

    Raises:
        OptionError: a flag that does not read as documented.
    """
    return parse_inputs(
        seed=values.seed,
        names=values.input_layer,
        shapes=values.input_layer_shape,
        ranges=values.input_layer_value_range,
        files=values.input_layer_value_files,
    )


def bounds(values: flags.FlagValues) -> Bounds:
    """When a tensor agrees."""
    return Bounds(values.tolerance, values.max_lsb, values.max_abs_error)


def test(values: flags.FlagValues) -> Test:
    """The side under test: the delegates, in the interpreter that the flags ask for.

    Raises:
        OptionError: an impossible value or combination.
    """
    opened = functools.partial(delegate_flags.interpreter, values, model(values))
    return Test(opened, delegate_flags.delegates(values), "XNNPACK" if values.use_xnnpack else "")
