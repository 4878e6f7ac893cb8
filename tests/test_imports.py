"""What a start imports: users wait for it. Modules are counted, since times are never the same."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import Conv2DOptions, FullyConnectedOptions, ReshapeOptions
from jaxdelegate.testing import ModelBuilder

# Prints what is imported before a model is opened, and what by the time that it is ready.
START = """
import json, sys
import jaxdelegate as jd

jd.Interpreter, jd.JaxDelegate
before = set(sys.modules)
if len(sys.argv) > 1:
    delegate = jd.JaxDelegate(serialization_dir=sys.argv[2])
    interpreter = jd.Interpreter(model_path=sys.argv[1], experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    assert delegate.programs.statistics.loaded + delegate.programs.statistics.stored == 1
print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""

# By what needs them: a tuned delegate, a program that is compiled, other operators, tests.
OF_OTHERS = (
    "jaxdelegate.analysis",
    "jaxdelegate.benchmark",
    "jaxdelegate.comparison",
    "jaxdelegate.evaluation",
    "jaxdelegate.kernel_chains",
    "jaxdelegate.op_lowering.detection",
    "jaxdelegate.op_lowering.lstm",
    "jaxdelegate.op_lowering.stablehlo",
    "jaxdelegate.reference.detection",
    "jaxdelegate.reference.lstm",
    "jaxdelegate.reference.stablehlo",
    "jaxdelegate.rewrites.attention",
    "jaxdelegate.testing",
    "jaxdelegate.tools",
    "jaxdelegate.tuning",
    "jax.extend",
    "tqdm",
)


def start(*arguments: object) -> tuple[set[str], set[str]]:
    command = [sys.executable, "-c", START, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, more = json.loads(done.stdout)
    return set(before), set(more)


def of(names: set[str], package: str) -> set[str]:
    return {name for name in names if name == package or name.startswith(f"{package}.")}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """CONV_2D, RESHAPE, FULLY_CONNECTED."""
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


def test_a_start_leaves_alone_what_it_does_not_need() -> None:
    before, _ = start()
    assert {name for package in OF_OTHERS for name in of(before, package)} == set()


def test_a_stored_program_of_a_convolutional_network_needs_no_more(
    network: Path, tmp_path: Path
) -> None:
    """Whoever waits for it has imported all operators of such networks before."""
    directory = tmp_path / "programs"
    _, to_compile = start(network, directory)
    _, to_load = start(network, directory)
    assert of(to_compile, "jaxdelegate.rewrites")
    assert of(to_load, "jaxdelegate") == set()
