"""Processes that load stored programs do not import jax, and return the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import CastOptions
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.testing import ModelBuilder

# Defines `opened` and `run`.
BEGIN = """
import hashlib, json, sys, warnings
import numpy as np
import jaxdelegate as jd

warnings.simplefilter("error", jd.CacheWarning)
folder = sys.argv[1]
outputs, made = [], []

def opened(make=jd.Interpreter, name="model", **options):
    made.append(jd.JaxDelegate(min_gain=0, serialization_dir=f"{folder}/programs", **options))
    return make(model_path=f"{folder}/{name}.tflite", experimental_delegates=[made[-1]])

def run(interpreter, batch=None):
    for detail in interpreter.get_input_details():
        if batch is not None:
            shape = [batch, *detail["shape"][1:]]
            interpreter.resize_tensor_input(detail["index"], shape)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        values = np.random.default_rng(1).normal(0, 3, detail["shape"])
        interpreter.set_tensor(detail["index"], values.astype(detail["dtype"]))
    for _ in range(2):
        interpreter.invoke()
        for detail in interpreter.get_output_details():
            outputs.append(interpreter.get_tensor(detail["index"]).tobytes())
"""
END = """
print(json.dumps({
    "jax": "jax" in sys.modules,
    "loaded": sum(d.programs.statistics.loaded for d in made),
    "stored": sum(d.programs.statistics.stored for d in made),
    "outputs": [hashlib.sha256(y).hexdigest() for y in outputs],
    "reports": [str(d.report()) for d in made],
}))
"""
RUN = "run(opened())"
STOCK = "from ai_edge_litert.interpreter import Interpreter as Stock\nrun(opened(Stock))"


Result = dict[str, Any]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, network: bytes) -> tuple[Path, Result]:
    """A folder with the network and its program, and the output of the process that stored it."""
    folder = tmp_path_factory.mktemp("filled")
    (folder / "model.tflite").write_bytes(network)
    return folder, child(folder)


@pytest.fixture
def folder(tmp_path: Path, network: bytes) -> Path:
    (tmp_path / "model.tflite").write_bytes(network)
    return tmp_path


def child(folder: Path, code: str = RUN, **environment: str) -> Result:
    """The output of a new process that runs this code."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}\n{code}\n{END}", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=clean | environment,
    )
    assert done.returncode == 0, done.stderr
    return Result(json.loads(done.stdout.splitlines()[-1]))


def outcome(result: Result) -> tuple[bool, int, int]:
    return result["jax"], result["loaded"], result["stored"]


STORED = (True, 0, 1)
WITHOUT = (False, 1, 0)
WITH = (True, 1, 0)


@pytest.mark.parametrize("code", [RUN, STOCK])
def test_a_stored_program_needs_no_jax(filled: tuple[Path, Result], code: str) -> None:
    folder, cold = filled
    warm = child(folder, code)
    assert (outcome(cold), outcome(warm)) == (STORED, WITHOUT)
    assert warm["outputs"] == cold["outputs"]
    assert warm["reports"] == cold["reports"]


@pytest.mark.slow
def test_with_jax_the_results_are_the_same(filled: tuple[Path, Result]) -> None:
    folder, cold = filled
    warm = child(folder, f"import jax\n{RUN}")
    assert outcome(warm) == WITH
    assert warm["outputs"] == cold["outputs"]


def test_entries_hold_no_pickle(filled: tuple[Path, Result]) -> None:
    (path,) = (filled[0] / "programs").glob("*.program")
    content = path.read_bytes()
    assert b"jax._src" not in content
    assert b"ShapedArray" not in content


@pytest.mark.slow
def test_programs_stored_after_an_import_of_jax_are_found(folder: Path) -> None:
    """Without jax only its settings from the environment are known, once a process stored them."""
    assert outcome(child(folder, f"import jax\n{RUN}")) == STORED
    assert outcome(child(folder)) == WITH
    assert outcome(child(folder)) == WITHOUT


@pytest.mark.slow
def test_changed_settings_need_other_programs(folder: Path) -> None:
    setting = "import jax\njax.config.update('jax_default_matmul_precision', 'bfloat16')"
    assert outcome(child(folder, f"{setting}\n{RUN}")) == STORED
    assert outcome(child(folder)) == STORED
    by_environment = {"JAX_DEFAULT_MATMUL_PRECISION": "bfloat16"}
    assert [outcome(child(folder, **by_environment)) for _ in "ab"] == [WITH, WITHOUT]


@pytest.mark.slow
def test_jax_can_be_imported_later(filled: tuple[Path, Result]) -> None:
    folder, cold = filled
    later = """
first = opened()
run(first)
assert "jax" not in sys.modules
import jax
assert float(jax.jit(lambda x: x + 1)(1.0)) == 2.0
run(first)
run(opened())
"""
    warm = child(folder, later)
    assert outcome(warm) == (True, 2, 0)
    assert warm["outputs"] == cold["outputs"] * 3


@pytest.mark.slow
def test_shapes_that_are_not_stored_are_compiled(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2, 70), np.float32, "x"), builder.tensor((2, 300))
    matrix = np.random.default_rng(3).normal(size=(300, 70)).astype(np.float32)
    builder.operator("FULLY_CONNECTED", [x, builder.constant(matrix), -1], [y])
    builder.outputs(y)
    (tmp_path / "model.tflite").write_bytes(builder.build())
    shapes = "one = opened()\nrun(one)\nrun(one, 5)\nrun(one, 2)"
    cold, warm = child(tmp_path, shapes), child(tmp_path, shapes)
    assert (outcome(cold), outcome(warm)) == ((True, 0, 2), (False, 3, 0))
    half = child(tmp_path, "one = opened()\nrun(one)\nrun(one, 7)\nrun(one)")
    assert outcome(half) == (True, 2, 1)
    assert warm["outputs"] == cold["outputs"]
    assert half["outputs"][:2] == cold["outputs"][:2]


def stateful() -> bytes:
    rng = np.random.default_rng(5)
    builder = ModelBuilder()
    x = builder.input((1, 8), np.float32, "x")
    w_in, w_state = (builder.constant(rng.normal(size=(8, 8)).astype(np.float32)) for _ in "ab")
    bias = builder.constant(np.zeros(8, np.float32))
    state, y = builder.tensor((1, 8), is_variable=True), builder.tensor((1, 8))
    builder.operator("RNN", [x, w_in, w_state, bias, state], [y])
    builder.outputs(y)
    return builder.build()


def with_every_dtype() -> bytes:
    builder = ModelBuilder()
    x, results = builder.input((2, 33), np.float32, "x"), []
    for name in ("float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"):
        results.append(builder.tensor((2, 33), np.dtype(name)))
        options = CastOptions(TensorType.FLOAT32, TensorType[name.upper()])
        builder.operator("CAST", [x], [results[-1]], options)
    builder.outputs(*results)
    return builder.build()


def around_the_host() -> bytes:
    """RANGE of a tensor, whose shape depends on data, runs in numpy between two partitions."""
    builder = ModelBuilder()
    x, limit = builder.input((1, 9), np.float32, "x"), builder.input((), np.int32, "limit")
    y, z = builder.tensor((1, 9)), builder.tensor((0,), np.int32)
    builder.operator("ADD", [x, x], [y])
    zero, one = builder.constant(np.int32(0)), builder.constant(np.int32(1))
    builder.operator("RANGE", [zero, limit, one], [z])
    builder.outputs(y, z)
    return builder.build()


@pytest.mark.slow
def test_programs_of_every_kind(folder: Path) -> None:
    """The first one keeps a state; the last one has donated inputs."""
    runs = []
    for make in (stateful, with_every_dtype, around_the_host):
        (folder / f"{make.__name__}.tflite").write_bytes(make())
        runs.append(f"run(opened(name={make.__name__!r}))")
    code = "\n".join([*runs, "run(opened(donate_inputs=True))"])
    cold, warm = child(folder, code), child(folder, code)
    assert (outcome(cold), outcome(warm)) == ((True, 0, 4), (False, 4, 0))
    assert warm["outputs"] == cold["outputs"]
    assert warm["reports"] == cold["reports"]
    assert cold["outputs"][0] != cold["outputs"][1]


BROKEN = """
from jaxdelegate.pjrt import client
def broken(*_, **__):
    raise AttributeError("another jaxlib")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        "client.without_jax = broken",
        pytest.param(
            "client._Sharding._internal_device_list = property(broken)",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("client._Aval.__init__ = broken", marks=pytest.mark.exhaustive),
        pytest.param("client.viewed = broken", marks=pytest.mark.exhaustive),
    ],
)
def test_a_jaxlib_with_other_calls_is_used_through_jax(
    filled: tuple[Path, Result], what: str
) -> None:
    folder, cold = filled
    codes = (RUN, STOCK) if "without_jax" in what else (RUN,)
    for code in codes:
        warm = child(folder, f"{BROKEN}\n{what}\n{code}")
        assert (warm["jax"], warm["stored"]) == (True, 0)
        assert warm["outputs"] == cold["outputs"]


def test_constructing_a_delegate_needs_no_jax(folder: Path) -> None:
    code = "delegates = jd.JaxDelegate(), jd.JaxDelegate(platform='cpu')"
    assert child(folder, code)["jax"] is False
