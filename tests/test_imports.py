"""Modules that a start imports. They are counted because times vary."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import Conv2DOptions, FullyConnectedOptions, ReshapeOptions
from jaxdelegate.testing import ModelBuilder

# Prints the modules that are imported after the first result of a model, if one is given.
START = """
import json, sys
import jaxdelegate as jd

jd.Interpreter, jd.JaxDelegate
if len(sys.argv) > 1:
    delegate = jd.JaxDelegate(serialization_dir=sys.argv[2])
    interpreter = jd.Interpreter(model_path=sys.argv[1], experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.invoke()
    assert delegate.programs.statistics.loaded + delegate.programs.statistics.stored == 1
print(json.dumps(sorted(sys.modules)))
"""

# Needed only to compile a program, to run an operator in numpy, or to read a model.
OF_OTHERS = (
    "jax",
    "jaxdelegate.analysis",
    "jaxdelegate.benchmark",
    "jaxdelegate.comparison",
    "jaxdelegate.compile.compilation",
    "jaxdelegate.evaluation",
    "jaxdelegate.runtime.subgraph",
    "jaxdelegate.model.records",
    "jaxdelegate.op_lowering.options",
    "jaxdelegate.reference",
    "jaxdelegate.lowering.rewrites",
    "jaxdelegate.testing",
    "jaxdelegate.tools",
    "ai_edge_litert",
    "tqdm",
)


def start(*arguments: object) -> set[str]:
    command = [sys.executable, "-c", START, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_others(names: set[str]) -> set[str]:
    return {
        package
        for package in OF_OTHERS
        if any(name == package or name.startswith(f"{package}.") for name in names)
    }


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A model of CONV_2D, RESHAPE and FULLY_CONNECTED."""
    builder = ModelBuilder()
    y, z, out = builder.tensor((1, 4, 4, 8)), builder.tensor((1, 128)), builder.tensor((1, 10))
    filters = builder.constant(np.ones((8, 3, 3, 4), np.float32))
    weights = builder.constant(np.ones((10, 128), np.float32))
    conv = Conv2DOptions(stride_w=1, stride_h=1)
    builder.operator("CONV_2D", [builder.input((1, 4, 4, 4)), filters, -1], [y], conv)
    builder.operator("RESHAPE", [y, -1], [z], ReshapeOptions(new_shape=(1, 128)))
    builder.operator("FULLY_CONNECTED", [z, weights, -1], [out], FullyConnectedOptions())
    builder.outputs(out)
    path = tmp_path / "network.tflite"
    path.write_bytes(builder.build())
    return path


def test_importing_the_package_imports_nothing_else() -> None:
    assert of_others(start()) == set()


@pytest.mark.slow
def test_a_stored_program_needs_nothing_else(network: Path, tmp_path: Path) -> None:
    directory = tmp_path / "programs"
    assert of_others(start(network, directory)) >= {"jax", "jaxdelegate.runtime.subgraph"}
    assert of_others(start(network, directory)) == set()
