"""`jaxdelegate compile`: fill a directory of compiled programs ahead of time."""

import importlib

from absl import flags

from jaxdelegate.errors import OptionError
from jaxdelegate.measuring.inputs import parse_input_layers
from jaxdelegate.tools import command_line, delegate_flags

DELEGATES = True  # --jax_serialization_dir is one of their flags
FLAGS = (command_line.GRAPH, command_line.INPUT_LAYER, command_line.INPUT_LAYER_SHAPE)


def run(values: flags.FlagValues) -> int:
    if not delegate_flags.options(values).serialization_dir:
        raise OptionError("--jax_serialization_dir is required: the directory for the programs")
    layers = parse_input_layers(values.input_layer, values.input_layer_shape)
    delegates = delegate_flags.delegates(values)  # --num_threads must precede the import of jax
    precompile = importlib.import_module("jaxdelegate.precompile").precompile
    for delegate in delegates:
        print(precompile(values.graph, delegate, {layer.name: layer.shape for layer in layers}))
    return 0
