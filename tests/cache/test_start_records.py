"""Interpreters that start from a stored record, and read the model only when they must."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.cache import records
from jaxdelegate.op_lowering.options import AddOptions, FullyConnectedOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.quantized import scaled


def quantized() -> bytes:
    """int8 -> int8, ADD of a constant: scales, zero points and a shape signature."""

    def scale(value: float, zero: int) -> Quantization:
        return scaled(value, zero)

    builder = ModelBuilder()
    x = builder.input((1, 40), np.int8, "x", quantization=scale(0.1, 3))
    table = np.random.default_rng(2).integers(-100, 100, (1, 40), np.int8)
    constant = builder.constant(table, "table", quantization=scale(0.05, -7))
    y = builder.tensor((1, 40), np.int8, quantization=scale(0.15, -1))
    builder.operator("ADD", [x, constant], [y], AddOptions())
    builder.outputs(y)
    return builder.build()


@pytest.fixture(params=["network", "quantized"])
def model(request: pytest.FixtureRequest, network: bytes) -> bytes:
    return network if request.param == "network" else quantized()


def opened(model: bytes, directory: Path, **options: Any) -> jd.Interpreter:
    delegate = jd.JaxDelegate(serialization_dir=str(directory), **options)
    return jd.Interpreter(model_content=model, experimental_delegates=[delegate])


def fill(model: bytes, directory: Path, **options: Any) -> jd.Interpreter:
    """An interpreter that has read the model and stored the start record."""
    interpreter = opened(model, directory, **options)
    interpreter.allocate_tensors()
    return interpreter


def ends(interpreter: jd.Interpreter) -> list[dict[str, Any]]:
    return interpreter.get_input_details() + interpreter.get_output_details()


def run(interpreter: jd.Interpreter, seed: int = 0) -> np.ndarray:
    (detail,) = interpreter.get_input_details()
    values = np.random.default_rng(seed).normal(0, 20, detail["shape"])
    interpreter.set_tensor(detail["index"], values.astype(detail["dtype"]))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def was_read(interpreter: jd.Interpreter) -> bool:
    return interpreter._read is not None


def started(model: bytes, directory: Path) -> jd.Interpreter:
    interpreter = opened(model, directory)
    interpreter.allocate_tensors()
    assert not was_read(interpreter)
    return interpreter


# ---- calls that do not read the model


def test_it_runs_and_describes_without_reading(model: bytes, directory: Path) -> None:
    first = fill(model, directory)
    second = started(model, directory)
    np.testing.assert_equal(ends(second), ends(first))
    for detail, other in zip(ends(second), ends(first), strict=True):
        assert detail["dtype"] is other["dtype"]
        for name in ("scales", "zero_points"):
            own = detail["quantization_parameters"][name]
            assert own.dtype == other["quantization_parameters"][name].dtype
    for seed in (1, 2):
        np.testing.assert_array_equal(run(second, seed), run(first, seed))
    assert str(second._delegates[0].report()) == str(first._delegates[0].report())
    assert not was_read(second)


def test_packed_weights_are_read_in_the_models_file(directory: Path) -> None:
    builder, rng = ModelBuilder(), np.random.default_rng(3)
    x, y = builder.input((1, 512), np.float32), builder.tensor((1, 256))
    scale = Quantization(np.full(256, 0.1, np.float32), np.zeros(256, np.int64))
    values = rng.integers(-8, 8, (256, 512)).astype(ml_dtypes.int4)
    w = builder.constant(values, quantization=scale)
    options = FullyConnectedOptions(asymmetric_quantize_inputs=True)
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], options, version=9)
    builder.outputs(y)
    first = fill(builder.build(), directory, quant_mode="integer")
    second = opened(builder.build(), directory, quant_mode="integer")
    second.allocate_tensors()
    assert not was_read(second)
    np.testing.assert_array_equal(run(second), run(first))
    (others,) = directory.glob("*.weights")  # scales and sums of rows
    assert others.stat().st_size < values.size // 8


def test_inputs_are_copied_and_results_belong_to_the_caller(model: bytes, directory: Path) -> None:
    fill(model, directory)
    interpreter = started(model, directory)
    one = run(interpreter, 1)
    kept = one.copy()
    two = run(interpreter, 2)
    np.testing.assert_array_equal(one, kept)
    assert not np.array_equal(one, two)
    one[...] = 0  # writable
    (detail,) = interpreter.get_input_details()
    given = interpreter.get_tensor(detail["index"])
    given[...] = 0
    np.testing.assert_array_equal(run(interpreter, 1), kept)


def test_resizing_to_the_same_shape_does_not_read_it(network: bytes, directory: Path) -> None:
    fill(network, directory)
    interpreter = started(network, directory)
    (detail,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(detail["index"], detail["shape"])
    interpreter.allocate_tensors()
    assert not was_read(interpreter)


def test_messages_are_the_same(network: bytes, directory: Path) -> None:
    first, second = fill(network, directory), started(network, directory)
    calls: list[Callable[[jd.Interpreter], object]] = [
        lambda i: i.set_tensor(0, np.zeros((1, 2), np.float32)),
        lambda i: i.set_tensor(0, np.zeros(i.get_input_details()[0]["shape"], np.int8)),
        lambda i: i.get_tensor(i.get_output_details()[0]["index"]),
        lambda i: i.get_tensor(99),
        lambda i: i.set_tensor(99, 0),
        lambda i: i.resize_tensor_input(99, [1]),
    ]
    for call in calls:
        errors = []
        for interpreter in (first, second):
            with pytest.raises((ValueError, RuntimeError)) as error:
                call(interpreter)
            errors.append((type(error.value), str(error.value)))
        assert errors[0] == errors[1]


def test_running_before_allocation_is_refused(network: bytes, directory: Path) -> None:
    fill(network, directory)
    with pytest.raises(jd.InterpreterError, match="Invoke called on model that is not ready"):
        opened(network, directory).invoke()


# ---- calls that read the model


@pytest.mark.parametrize(
    "call",
    [
        lambda i: i.get_tensor_details(),
        lambda i: i.tensor(0)(),
        lambda i: i.get_signature_list(),
        lambda i: i._get_ops_details(),
        lambda i: i.num_subgraphs(),
        lambda i: i.reset_all_variables(),
        lambda i: i._delegates[0].partitions(),
    ],
)
def test_other_calls_read_it_and_values_stay(
    network: bytes, directory: Path, call: Callable[[jd.Interpreter], object]
) -> None:
    fill(network, directory)
    interpreter = started(network, directory)
    want = run(interpreter, 1)
    given = interpreter.get_tensor(0)
    call(interpreter)
    assert was_read(interpreter)
    output = interpreter.get_output_details()[0]["index"]
    np.testing.assert_array_equal(interpreter.get_tensor(0), given)
    np.testing.assert_array_equal(interpreter.get_tensor(output), want)
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(output), want)
    assert len(interpreter._delegates[0].partitions()) == 1


def test_weights_are_on_the_device_once(network: bytes, directory: Path) -> None:
    fill(network, directory)
    interpreter = started(network, directory)
    assert interpreter._stored is not None
    assert interpreter._stored._program is not None
    before = interpreter._stored._program.weights
    (partition,) = interpreter._delegates[0].partitions()
    assert [id(w) for w in partition.program.weights] == [id(w) for w in before]


def test_nothing_keeps_an_interpreter_alive(network: bytes, directory: Path) -> None:
    fill(network, directory)
    interpreter, other = started(network, directory), object()
    assert sys.getrefcount(interpreter) == sys.getrefcount(other)


# ---- what is not stored


def test_another_file_has_another_record(network: bytes, directory: Path) -> None:
    """Even if only a byte that no operator reads differs."""
    fill(network, directory)
    assert not was_read(opened(network, directory))
    assert was_read(opened(network + b"\0", directory))


@pytest.mark.parametrize(
    "options",
    [
        {"quant_mode": "integer"},
        {"min_nodes_per_partition": 2},
        {"last_delegate_node_index": 1},
        {"model_token": "mine"},
    ],
)
def test_other_options_have_another_record(
    network: bytes, directory: Path, options: dict[str, Any]
) -> None:
    fill(network, directory)
    assert was_read(opened(network, directory, **options))


def test_preserving_all_tensors_reads_the_model(network: bytes, directory: Path) -> None:
    fill(network, directory)
    delegate = jd.JaxDelegate(serialization_dir=str(directory))
    interpreter = jd.Interpreter(
        model_content=network,
        experimental_delegates=[delegate],
        experimental_preserve_all_tensors=True,
    )
    assert was_read(interpreter)


def test_a_subclass_of_the_delegate_uses_no_record(network: bytes, directory: Path) -> None:
    class Mine(jd.JaxDelegate):
        pass

    fill(network, directory)
    delegate = Mine(serialization_dir=str(directory))
    assert was_read(jd.Interpreter(model_content=network, experimental_delegates=[delegate]))


def test_two_partitions_have_no_record(network: bytes, directory: Path) -> None:
    fill(network, directory, last_delegate_node_index=0)
    assert not list(directory.glob(f"*{records.STARTS.suffix}"))


def test_donated_inputs_use_no_record(network: bytes, directory: Path) -> None:
    fill(network, directory, donate_inputs=True)
    interpreter = fill(network, directory, donate_inputs=True)
    if interpreter._runner(0).steps[0].kernel.only_program.donated:  # type: ignore[attr-defined]
        assert was_read(interpreter)


# ---- damage


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_damaged_record_is_reported_and_replaced(
    network: bytes, directory: Path, at: int
) -> None:
    fill(network, directory)
    (path,) = directory.glob(f"*{records.STARTS.suffix}")
    content = bytearray(sound := path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.warns(jd.CacheWarning, match="start record .* is not used: its SHA-256 is wrong"):
        interpreter = opened(network, directory)
    assert was_read(interpreter)
    interpreter.allocate_tensors()
    assert path.read_bytes() == sound


@pytest.mark.parametrize("kind", ["*.program", "*.weights"])
def test_without_its_program_the_model_is_read(network: bytes, directory: Path, kind: str) -> None:
    want = run(fill(network, directory))
    for path in directory.glob(kind):
        path.unlink()
    interpreter = opened(network, directory)
    assert not was_read(interpreter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jd.CacheWarning)  # about missing weights
        interpreter.allocate_tensors()
    assert was_read(interpreter)
    np.testing.assert_array_equal(run(interpreter), want)
