"""Flags that inference_diff and bisect share: model, reference, inputs, bounds, the test side."""

import functools

from absl import flags

from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.inputs import InputSettings, parse_inputs
from jaxdelegate.comparison.sides import REFERENCES, Test
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.tools import command_line, delegate_flags

REFERENCE = Flag(
    "reference", str, "numpy",
    "The reference: the numpy kernels, or the stock interpreter with its reference kernels, "
    "its optimized kernels, or XNNPACK.",
    tuple(REFERENCES),
)  # fmt: skip
FLAGS = (
    command_line.GRAPH,
    Flag("seed", int, 0, "Seed of the random inputs.", lower=0),
    command_line.INPUT_LAYER,
    command_line.INPUT_LAYER_SHAPE,
    Flag(
        "input_layer_value_range", str, "",
        "Ranges of integer inputs, inclusive: a,low,high:b,low,high",
    ),
    Flag(
        "input_layer_value_files", str, "",
        "Files with the inputs' values, raw or .npy: a:path,b:path; '::' is a colon in a path",
    ),
    Flag(
        "tolerance", float, None,
        "Allowed error of floats, as a fraction of the largest reference value. "
        "Unset: 1e-4; 1e-2 where the delegate computes, or the tensor is stored, in less than "
        "float32.",
        lower=0.0,
    ),
    Flag("max_lsb", int, Bounds.max_lsb, "Allowed difference of quantized integers.", lower=0),
    Flag(
        "max_abs_error", float, None,
        "Allowed absolute error in raw units, instead of --tolerance and --max_lsb.", lower=0.0,
    ),
    command_line.RESULT_JSON,
    *delegate_flags.SHORT_NAMES,
)  # fmt: skip


def inputs(values: flags.FlagValues) -> InputSettings:
    return parse_inputs(
        seed=values.seed,
        names=values.input_layer,
        shapes=values.input_layer_shape,
        ranges=values.input_layer_value_range,
        files=values.input_layer_value_files,
    )


def bounds(values: flags.FlagValues) -> Bounds:
    return Bounds(values.tolerance, values.max_lsb, values.max_abs_error)


def test(values: flags.FlagValues) -> Test:
    opened = functools.partial(delegate_flags.interpreter, values, values.graph)
    return Test(opened, delegate_flags.delegates(values), "XNNPACK" if values.use_xnnpack else "")
