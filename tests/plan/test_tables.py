"""On a CPU the host looks up rows of large tables, which a program would copy."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import CastOptions, FullyConnectedOptions, GatherOptions
from jaxdelegate.plan import tables
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.combinations import covering
from tests.support.unpacking import watch_unpacking

ROWS, WIDTH, IDS = 400, 64, 5
REASON = "its table is large, and the host reads rows of it in the file, without a copy (0 MiB)"
HOSTS = {"jaxdelegate": jd.Interpreter, "litert": StockInterpreter}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_LEAST_TABLE", ROWS * WIDTH)


def model(
    operator: str = "EMBEDDING_LOOKUP",
    *,
    dtype: Any = np.int8,
    casts: int = 0,
    tied: bool = False,
    rows: int = ROWS,
    axis: int = 0,
) -> bytes:
    """Rows of a table, times a matrix, or times the table itself; `casts` of the ids come first."""
    builder, rng = ModelBuilder(), np.random.default_rng(0)
    ids = builder.input((IDS,), np.int32, "ids")
    for i in range(casts):
        cast = builder.tensor((IDS,), (np.int64, np.int32)[i % 2])
        builder.operator("CAST", [ids], [cast], CastOptions())
        ids = cast
    values = rng.integers(-8, 8, (rows, WIDTH))
    quantization = None
    if np.dtype(dtype).kind != "f":
        quantization = Quantization(np.full(rows, 0.1, np.float32), np.zeros(rows, np.int64))
    table = builder.constant(values.astype(dtype), quantization=quantization)
    count, width = (IDS, WIDTH) if axis == 0 else (rows, IDS)
    x = builder.tensor((count, width))
    if operator == "GATHER":
        builder.operator("GATHER", [table, ids], [x], GatherOptions(axis=axis))
    else:
        builder.operator("EMBEDDING_LOOKUP", [ids, table], [x], version=4)
    w, columns = table, rows
    if not tied:
        columns = 20_000
        w = builder.constant(rng.normal(size=(columns, width)).astype(np.float32))
    y = builder.tensor((count, columns))
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions(), version=9)
    builder.outputs(y)
    return builder.build()


def opened(content: bytes, host: Any = jd.Interpreter, **options: Any) -> tuple[Any, Any]:
    delegate = jd.JaxDelegate(platform="cpu", **options)
    return host(model_content=content, experimental_delegates=[delegate]), delegate.report()


def results(interpreter: Any) -> np.ndarray:
    interpreter.allocate_tensors()
    given = np.arange(IDS, dtype=np.int32) * 79
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
    interpreter.invoke()
    found: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return found


@pytest.mark.parametrize(
    ("how", "host"),
    covering(
        [{}, {"operator": "GATHER", "dtype": np.float32}, {"casts": 2}, {"dtype": ml_dtypes.int4}],
        [*HOSTS],
    ),
    ids=str,
)
def test_the_host_looks_rows_up(host: str, how: dict[str, Any]) -> None:
    if how.get("dtype") == ml_dtypes.int4:
        how = how | {"rows": 2 * ROWS}
    content = model(**how)
    interpreter, report = opened(content, HOSTS[host])
    left = {node.op: node.reason for node in report.left}
    assert str(left[how.get("operator", "EMBEDDING_LOOKUP")]).startswith(REASON)
    assert [node.op for node in report.delegated] == ["FULLY_CONNECTED"]
    everything, _ = opened(content, min_gain=0)
    np.testing.assert_array_equal(results(interpreter), results(everything))


@pytest.mark.parametrize(
    "how",
    [
        {"tied": True},
        {"rows": 16 * IDS - 1},  # most rows are read
        {"rows": ROWS - 1},
        {"casts": 10},
        {"operator": "GATHER", "dtype": np.float32, "axis": 1},
    ],
    ids=str,
)
def test_other_lookups_are_delegated(how: dict[str, Any]) -> None:
    _, report = opened(model(**how))
    assert not report.left


@pytest.mark.parametrize(
    "options",
    [{"min_gain": 0}, {"require_full_delegation": True}, {"last_delegate_node_index": 1}],
    ids=str,
)
def test_whoever_asks_for_all_gets_all(options: dict[str, Any]) -> None:
    _, report = opened(model(), **options)
    assert not report.left


@pytest.mark.parametrize("operator", ["EMBEDDING_LOOKUP", "GATHER"])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.int2], ids=["int4", "int2"])
def test_the_host_unpacks_only_the_rows_it_needs(
    operator: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).integers(-2, 2, (4096, WIDTH)).astype(dtype)
    builder = ModelBuilder()
    scale = Quantization(np.float32([0.5]), np.int64([0]))
    table = builder.constant(values, quantization=scale)
    ids = builder.input((3,), np.int32, "ids")
    if operator == "GATHER":
        y = builder.tensor((3, WIDTH), dtype, quantization=scale)
        builder.operator("GATHER", [table, ids], [y], GatherOptions())
    else:
        y = builder.tensor((3, WIDTH))
        builder.operator("EMBEDDING_LOOKUP", [ids, table], [y], version=4)
    builder.outputs(y)
    given, counts = np.int32([7, 4095, 7]), watch_unpacking(monkeypatch)
    interpreter = jd.Interpreter(model_content=builder.build())
    interpreter.allocate_tensors()
    interpreter.set_tensor(ids, given)
    interpreter.invoke()
    want = values[given].astype(np.float32) * (1 if operator == "GATHER" else 0.5)
    np.testing.assert_array_equal(interpreter.get_tensor(y).astype(np.float32), want)
    assert counts == [3 * WIDTH]


def test_other_delegates_copy_nothing() -> None:
    assert not jd.SimpleDelegate.transfer_cost.copies_tables
