"""A small network with weights of every kind, and a cache directory for its programs."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    AddOptions,
    Conv2DOptions,
    FullyConnectedOptions,
    ReshapeOptions,
)
from jaxdelegate.testing import ModelBuilder

PIXELS, CHANNELS, CLASSES = 4, 128, 128


@pytest.fixture(scope="session")
def network() -> bytes:
    """CONV_2D (a weight that is prepared), FULLY_CONNECTED, ADD of a constant as it is stored."""
    rng = np.random.default_rng(7)
    builder = ModelBuilder()

    def constant(name: str, *shape: int) -> int:
        return builder.constant(rng.normal(0, 0.1, shape).astype(np.float32), name)

    x = builder.input((1, PIXELS, PIXELS, CHANNELS), np.float32, "x")
    y = builder.tensor((1, PIXELS, PIXELS, CHANNELS))
    filters, bias = constant("filters", CHANNELS, 1, 1, CHANNELS), constant("bias", CHANNELS)
    conv = Conv2DOptions(stride_h=1, stride_w=1)
    builder.operator("CONV_2D", [x, filters, bias], [y], conv)
    flat = builder.tensor((1, PIXELS * PIXELS * CHANNELS))
    shape = builder.constant(np.array([1, -1], np.int32))
    builder.operator("RESHAPE", [y, shape], [flat], ReshapeOptions(new_shape=(1, -1)))
    table = constant("table", 16, PIXELS * PIXELS * CHANNELS)
    added = builder.tensor((16, PIXELS * PIXELS * CHANNELS))
    builder.operator("ADD", [flat, table], [added], AddOptions())
    weights = constant("weights", CLASSES, PIXELS * PIXELS * CHANNELS)
    z = builder.tensor((16, CLASSES))
    builder.operator("FULLY_CONNECTED", [added, weights, -1], [z], FullyConnectedOptions())
    builder.outputs(z)
    return builder.build()


@pytest.fixture(scope="session")
def x() -> np.ndarray:
    return np.random.default_rng(8).normal(size=(1, PIXELS, PIXELS, CHANNELS)).astype(np.float32)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "programs"


def outcome(delegate: jd.JaxDelegate) -> str:
    """Whether the delegate's only program was "loaded", "stored" or "neither"."""
    if delegate.programs is None:
        return "neither"
    done = delegate.programs.statistics
    return {(1, 0): "loaded", (0, 1): "stored", (0, 0): "neither"}[done.loaded, done.stored]


class Runner:
    """Runs the network with a delegate that stores programs in a directory."""

    def __init__(self, network: bytes, x: np.ndarray, want: np.ndarray, directory: Path) -> None:
        self.network, self.x, self.want, self.directory = network, x, want, directory
        self.stored: Path | None = None  # a directory with the program

    def __call__(self, **options: object) -> str:
        """Run and compare with a run without a cache; returns the delegate's `outcome`."""
        delegate = jd.JaxDelegate({"serialization_dir": str(self.directory), **options})
        np.testing.assert_array_equal(self.run_with(delegate), self.want)
        return outcome(delegate)

    def fill(self) -> None:
        """Have the program stored, as a run does."""
        assert self.stored is not None
        shutil.copytree(self.stored, self.directory)

    def programs(self) -> list[Path]:
        return sorted(self.directory.glob("*.program"))

    def weights(self) -> list[Path]:
        return sorted(self.directory.glob("*.weights"))

    def run_with(self, delegate: jd.JaxDelegate) -> np.ndarray:
        return result(self.network, self.x, delegate)


def result(network: bytes, x: np.ndarray, delegate: jd.JaxDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(model_content=network, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.fixture(scope="session")
def want(network: bytes, x: np.ndarray) -> np.ndarray:
    """The result without a cache."""
    return result(network, x, jd.JaxDelegate())


@pytest.fixture(scope="session")
def stored(
    network: bytes, x: np.ndarray, want: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A directory with the network's program."""
    folder = tmp_path_factory.mktemp("stored") / "programs"
    assert Runner(network, x, want, folder)() == "stored"
    return folder


@pytest.fixture
def run(network: bytes, x: np.ndarray, want: np.ndarray, stored: Path, directory: Path) -> Runner:
    runner = Runner(network, x, want, directory)
    runner.stored = stored
    return runner
