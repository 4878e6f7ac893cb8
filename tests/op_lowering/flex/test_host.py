"""Sets, checks, tables and tf.Example records."""

from typing import Any

import numpy as np
import pytest

from jaxdelegate.interpreter import Interpreter
from jaxdelegate.op_lowering.options import CustomOptions, custom_options
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference import KERNELS
from jaxdelegate.testing import Arg, Case, ModelBuilder, const, f32, value
from tests.op_lowering.flex.test_math import case
from tests.support.node_defs import flex_options

F32 = np.float32


def unique(label: str, x: Arg, *axis: int) -> Case:
    inputs = [x, const(np.array(axis, np.int32))]
    return case("UniqueV2", label, inputs, [x.value.dtype, np.int32])


# Each with TensorFlow 2.17.1's results.
UNIQUE = [
    (unique("rows", value([[1, 2], [3, 4], [1, 2]], np.int32), 0), [[1, 2], [3, 4]], [0, 1, 0]),
    (unique("columns", value([[1, 2, 1], [3, 4, 3]], np.int32), -1), [[1, 2], [3, 4]], [0, 1, 0]),
    (
        unique("floats", value([np.nan, 1, np.nan, 1, -0.0, 0.0], F32)),
        [np.nan, 1, np.nan, -0.0],
        [0, 1, 2, 1, 3, 3],
    ),
    (
        unique("rows-of-nan", value([[np.nan, 1], [np.nan, 1], [0, 1], [-0.0, 1]], F32), 0),
        [[np.nan, 1], [np.nan, 1], [0, 1]],
        [0, 1, 2, 2],
    ),
    (unique("none", f32(0, 2), 0), np.zeros((0, 2)), []),
    (unique("strings", value(np.array([b"b", b"a", b"b"], object)), 0), [b"b", b"a"], [0, 1, 0]),
]
RUN_TIME = [found for found, *_ in UNIQUE]


@pytest.mark.parametrize(("given", "values", "index"), UNIQUE, ids=str)
def test_values_of_tensorflow(given: Case, values: Any, index: Any) -> None:
    found, places = given.run_reference()
    np.testing.assert_array_equal(found, np.array(values, found.dtype))
    assert (places.tolist(), places.dtype) == (index, np.int32)


def check(name: str, inputs: list[Arg], outputs: list[Any], **attributes: Any) -> Case:
    return case(name, "", inputs, outputs, attributes=attributes)


DATA = [value([1, 2, 3, 4], np.int32), value(np.array([b"x"], object))]
FAILED = check("Assert", [value(np.bool_(False)), *DATA], [], summarize=2)
WRONG = check("CheckNumerics", [value([1, np.nan, np.inf], F32)], [F32], message="logits")
REFUSED = {
    "stops the model if a condition fails": check("Assert", [value(np.bool_(True))], []),
    "stops the model at NaN or infinity": WRONG,
    "it prints": check("Print", [f32(2)], [F32]),
    "it computes nothing": check("NoOp", [f32(2)], []),
}
STOPPED = {
    "assertion failed: [1 2...] [x]": FAILED,
    "logits: the tensor has NaN and infinity": WRONG,
    "expected one axis": unique("", f32(2, 2)),
}
IMPOSSIBLE = [unique("", f32(2, 2)), unique("", f32(2, 2), 0, 1), unique("", f32(2, 2), 2)]


def test_what_passes_a_check() -> None:
    x = f32(2, 3)
    assert check("Assert", [value(np.bool_(True))], []).run_reference() == []
    assert check("NoOp", [x], []).run_reference() == []
    (found,) = check("CheckNumerics", [x], [F32], message="").run_reference()
    assert found is x.value


def test_prints(capsys: pytest.CaptureFixture[str]) -> None:
    x = value([1, 2, 3, 4.5], F32)
    (found,) = check("Print", [x, x, DATA[1]], [F32], message="m: ").run_reference()
    assert found is x.value
    check("PrintV2", [value(np.array(b"hello", object))], [], end="!\n").run_reference()
    assert capsys.readouterr().err == "m: [1 2 3...] [x]\nhello!\n"


def _table_model(filling: str) -> bytes:
    """Fills a table from words to numbers, looks words up and counts the entries."""
    builder = ModelBuilder()
    words = builder.input((3,), np.dtype(object), "words")
    keys, values = (
        builder.constant(np.array(v, d))
        for v, d in (([b"red", b"green"], object), ([10, 20], np.int64))
    )
    default = builder.constant(np.int64(-1))
    table, found = builder.tensor((), np.dtype("V4")), builder.tensor((3,), np.int64, "found")
    size = builder.tensor((), np.int64, "size")

    def add(name: str, inputs: list[int], outputs: list[int], **attributes: Any) -> None:
        options = CustomOptions(flex_options(name, **attributes))
        builder.operator(f"Flex{name}", inputs, outputs, options)

    add("HashTableV2", [], [table], shared_name="colors")
    add(filling, [table, keys, values], [])
    add("LookupTableFindV2", [table, words, default], [found])
    add("LookupTableSizeV2", [table], [size])
    builder.outputs(found, size)
    return builder.build()


@pytest.mark.parametrize("filling", ["InitializeTableV2", "LookupTableImportV2"])
def test_tables(filling: str) -> None:
    interpreter = Interpreter(model_content=_table_model(filling))
    interpreter.allocate_tensors()
    words = np.array([b"green", b"blue", b"red"], object)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], words)
    for _ in range(2):
        interpreter.invoke()
    found, size = (interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details())
    assert found.tolist() == [20, -1, 10]
    assert (size.shape, size.tolist()) == ((), 2)


def test_tables_without_a_shared_name_are_apart() -> None:
    name = "FlexHashTableV2"
    first, second = (
        custom_options(name, flex_options("HashTableV2", key_dtype=np.dtype(dtype)))
        for dtype in (np.int64, object)
    )
    run = KERNELS[name].run
    outputs = (TensorSpec("table", (), np.dtype("V4")),)
    assert run(first, (), outputs) == run(first, (), outputs) != run(second, (), outputs)
