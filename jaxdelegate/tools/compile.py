"""`jaxdelegate compile`: fill a directory of compiled programs before anybody waits for them."""

import importlib

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.measuring.inputs import parse_input_layers
from jaxdelegate.tools import delegate_flags


def define(values: flags.FlagValues) -> None:
    """Declare the tool's flags; --jax_serialization_dir is among the delegates'."""
    flags.DEFINE_string("graph", None, "The .tflite file.", flag_values=values)
    flags.DEFINE_string("input_layer", "", "Inputs by name: a,b.", flag_values=values)
    flags.DEFINE_string(
        "input_layer_shape", "", "Their shapes: 1,224,224,3:1,10.", flag_values=values
    )
    delegate_flags.define(values)


def run(values: flags.FlagValues) -> int:
    """Compile and store; prints how many programs were new."""
    if not values.graph:
        raise OptionError("graph: want a .tflite file, got none")
    if not delegate_flags.options(values).serialization_dir:
        raise OptionError("--jax_serialization_dir: want the directory for the programs, got none")
    layers = parse_input_layers(values.input_layer, values.input_layer_shape)
    delegates = delegate_flags.delegates(values)  # --num_threads must precede the import of jax
    precompile = importlib.import_module("jaxdelegate.precompile").precompile
    for delegate in delegates:
        print(precompile(values.graph, delegate, {layer.name: layer.shape for layer in layers}))
    return 0
