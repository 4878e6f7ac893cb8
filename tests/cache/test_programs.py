"""The cache end to end: what is loaded, and what changes a key."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.cache import environment, program_key, sources
from jaxdelegate.cache.entry import unpack
from jaxdelegate.cache.key import Part
from jaxdelegate.cache.programs import Statistics
from jaxdelegate.kernels.processor import core_count
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.xla import aot

LOADED, STORED = Statistics(loaded=1), Statistics(stored=1)


def statistics(delegate: jd.JaxDelegate) -> Statistics:
    assert delegate.programs is not None
    return delegate.programs.statistics


# ---- warm loads


def test_the_second_time_it_is_loaded(run) -> None:
    assert run() == "stored"
    (program,) = run.programs()
    assert run() == "loaded"
    assert run.programs() == [program]


def test_a_warm_load_neither_lowers_nor_traces(run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.fill()

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a warm load must not call this")

    monkeypatch.setattr(lowering, "lower_partition", forbidden)
    monkeypatch.setattr(aot, "compile_partition", forbidden)
    monkeypatch.setattr(jax, "jit", forbidden)
    monkeypatch.setattr(jax, "eval_shape", forbidden)
    assert run() == "loaded"


@pytest.mark.usefixtures("no_native_kernels")
def test_only_prepared_weights_have_files(run, directory: Path) -> None:
    run.run_with(jd.JaxDelegate(serialization_dir=str(directory)))
    entry = unpack(run.programs()[0].read_bytes())
    kinds = {w.shape: w.tensor is None for w in entry.weights}
    assert kinds == {(128, 128): True, (16, 2048): False, (2048, 128): True}
    (weights,) = run.weights()
    assert weights.stat().st_size == 64 + 4 * (128 * 128 + 2048 * 128)  # a head before them


def test_programs_do_not_contain_the_paths_of_callers(run) -> None:
    run()
    content = run.programs()[0].read_bytes()
    assert b"jit_partition_0_" in content
    for path in (__file__, pytest.__file__):
        assert str(Path(path).parent).encode() not in content


def test_files_are_private(run, directory: Path) -> None:
    run()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in directory.iterdir()} == {0o600}


def test_a_stock_interpreter_loads_what_ours_stored(run, network: bytes, directory: Path) -> None:
    run.fill()
    delegate = jd.JaxDelegate(serialization_dir=str(directory))
    interpreter = StockInterpreter(model_content=network, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, run.x)
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(got, run.want)
    assert statistics(delegate) == LOADED


def matrix_model() -> tuple[bytes, np.ndarray, int]:
    """x [rows, 128] times a matrix; the output's index."""
    matrix = np.random.default_rng(3).normal(size=(256, 128)).astype(np.float32)
    builder = ModelBuilder()
    x = builder.input((2, 128), np.float32, "x")
    y = builder.tensor((2, 256))
    builder.operator("FULLY_CONNECTED", [x, builder.constant(matrix, "w"), -1], [y])
    builder.outputs(y)
    return builder.build(), matrix, y


def run_rows(directory: Path, rows: list[int]) -> tuple[Statistics, list[int]]:
    """Run for each number of rows in one interpreter; also the matrix's address each time."""
    content, matrix, y = matrix_model()
    delegate = jd.JaxDelegate(serialization_dir=str(directory))
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    kept = []
    for n in rows:
        interpreter.resize_tensor_input(0, [n, 128])
        interpreter.allocate_tensors()
        given = np.arange(n * 128, dtype=np.float32).reshape(n, 128) / 1000
        interpreter.set_tensor(0, given)
        interpreter.invoke()
        np.testing.assert_allclose(interpreter.get_tensor(y), given @ matrix.T, 1e-4, 1e-4)
        (partition,) = delegate.partitions()
        kept.append(partition.program.weights[0])
    return statistics(delegate), [array.unsafe_buffer_pointer() for array in kept]


def test_shapes_have_separate_entries_and_share_weights(directory: Path) -> None:
    assert run_rows(directory, [2, 5])[0] == Statistics(stored=2)
    assert len(list(directory.glob("*.program"))) == 2
    assert len(list(directory.glob("*.weights"))) == 1
    assert run_rows(directory, [5, 2])[0] == Statistics(loaded=2)


@pytest.mark.parametrize("rows", [[2, 5], [5, 2], [2, 7], [8, 2]])
def test_a_weight_is_on_the_device_once(directory: Path, rows: list[int]) -> None:
    """Whether shapes are loaded or compiled, and in any order."""
    run_rows(directory, [2, 5])
    _, places = run_rows(directory, rows)
    assert len(set(places)) == 1


def test_states_survive(directory: Path) -> None:
    rng = np.random.default_rng(5)
    builder = ModelBuilder()
    x = builder.input((1, 8), np.float32, "x")
    w_in, w_state = (builder.constant(rng.normal(size=(8, 8)).astype(np.float32)) for _ in "ab")
    bias = builder.constant(np.zeros(8, np.float32))
    state = builder.tensor((1, 8), is_variable=True)
    y = builder.tensor((1, 8))
    builder.operator("RNN", [x, w_in, w_state, bias, state], [y])
    builder.outputs(y)

    def run() -> tuple[list[np.ndarray], Statistics]:
        delegate = jd.JaxDelegate(serialization_dir=str(directory))
        interpreter = jd.Interpreter(
            model_content=builder.build(), experimental_delegates=[delegate]
        )
        interpreter.allocate_tensors()
        results = []
        for value in (1.0, 1.0, 2.0):
            interpreter.set_tensor(x, np.full((1, 8), value, np.float32))
            interpreter.invoke()
            results.append(interpreter.get_tensor(y))
        return results, statistics(delegate)

    cold, stored = run()
    warm, loaded = run()
    assert (stored, loaded) == (STORED, LOADED)
    np.testing.assert_array_equal(cold, warm)
    assert not np.array_equal(cold[0], cold[1])


# ---- what changes the key


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("versions", lambda _: {"jax": "0.0.1"}),
        ("device_identity", lambda _: ["cpu", "another kind", 0]),
        ("device_identity", lambda _: ["cpu", "cpu", 1]),
        ("host_cpu", lambda: ["x86_64", "flags: sse2"]),
    ],
)
def test_another_environment_is_another_program(
    run, monkeypatch: pytest.MonkeyPatch, attribute: str, value: Callable[..., object]
) -> None:
    run.fill()
    with monkeypatch.context() as patch:
        patch.setattr(environment, attribute, value)
        assert run() == "stored"
    assert run() == "loaded"


def test_other_sources_are_another_program(run, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_digest", lambda _package, _names: "0" * 64)
        assert run() == "stored"
    assert run() == "loaded"


def test_flags_and_threads_are_part_of_the_key(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    run()
    for name in ("XLA_FLAGS", "NPROC"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "17")
            assert run() == "stored"
    monkeypatch.setenv("NPROC", str(core_count()))  # as XLA does without it
    assert run() == "loaded"


def test_options_and_tokens_are_part_of_the_key(run) -> None:
    run.fill()
    assert run(quant_mode="integer") == "stored"
    assert run(model_token="mine") == "stored"
    assert run(model_token="mine") == "loaded"
    assert run(min_nodes_per_partition=1) == "loaded"


def test_a_users_64_bit_types_make_no_difference(run) -> None:
    run()
    with jax.enable_x64(True):
        assert run() == "loaded"
    with jax.default_matmul_precision("bfloat16"):
        assert run() == "stored"


@pytest.mark.parametrize("elements", [4, 40_000])
def test_constants_are_part_of_the_key(
    directory: Path, elements: int, rng: np.random.Generator
) -> None:
    """Small ones are compiled in, large ones are arguments: neither may be another model's."""
    for seed in (1, 2):
        table = np.random.default_rng(seed).normal(size=elements).astype(np.float32)
        builder = ModelBuilder()
        x = builder.input((elements,), np.float32, "x")
        y = builder.tensor((elements,))
        builder.operator("MUL", [x, builder.constant(table, "table")], [y])
        builder.outputs(y)
        delegate = jd.JaxDelegate(serialization_dir=str(directory), model_token="the same")
        interpreter = jd.Interpreter(
            model_content=builder.build(), experimental_delegates=[delegate]
        )
        interpreter.allocate_tensors()
        given = rng.normal(size=elements).astype(np.float32)
        interpreter.set_tensor(x, given)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), given * table)
        assert statistics(delegate) == STORED


def test_an_operator_with_a_foreign_rule_is_not_stored(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = RULES["ADD"]

    def lower(*arguments: object) -> object:
        return own.lower(*arguments)

    monkeypatch.setitem(RULES, "ADD", dataclasses.replace(own, lower=lower))
    assert run() == "neither"
    assert run.programs() == []


def test_a_miss_reports_which_part_changed(run, caplog: pytest.LogCaptureFixture) -> None:
    run.fill()
    with caplog.at_level(logging.DEBUG, "jaxdelegate"):
        run(model_token="other")
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("cache")]
    assert any(line.endswith("is not stored; changed: model_token") for line in lines)
    named = {line.split()[3] for line in lines if line.startswith("cache key")}
    assert named >= {"model", "partition", "inputs", "options", "sources", "versions", "device"}
    assert named >= {"host_cpu", "jax_config", "xla_flags", "threads", "model_token"}


def test_sources_that_changed_under_a_running_process_are_not_stored(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_LOADED", 0.0)
    with pytest.warns(jd.CacheWarning, match="has changed since this process loaded it"):
        run()
    assert run.programs() == []


def test_sources_that_change_after_the_key_was_computed_are_not_stored(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that are imported later may differ from those that the key covers."""

    def parts(**kinds: Any) -> dict[str, Part]:
        found = sources.source_parts(**kinds)
        monkeypatch.setattr(sources, "_LOADED", 0.0)
        return found

    monkeypatch.setattr(program_key, "source_parts", parts)
    with pytest.warns(jd.CacheWarning, match="is not stored: .* has changed since this process"):
        run()
    assert run.programs() == []


def test_balanced_measures_nothing(run) -> None:
    assert run(inference_preference="balanced") == "stored"
    assert run(inference_preference="balanced") == "loaded"
    assert len(run.programs()) == 1
