"""Resource variables: delegated as state, and quantized."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import AddOptions, IfOptions, TensorType, VarHandleOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from jaxdelegate.testing.running import run_once
from tests.support.quantized import scaled

ONES = np.ones(4, np.float32)
OPERATORS = ["VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE", "ADD"]


def quantized(scale: float, zero_point: int = 3) -> Quantization:
    return scaled(scale, zero_point)


def doubled(read: Quantization | None, q: Quantization | None, dtype: type) -> bytes:
    """variable = x; y = x + variable, which is read with another scale."""
    builder = ModelBuilder()
    x = builder.input((4,), dtype, "x", quantization=q)
    handle = builder.tensor((1,), DTYPES[TensorType.RESOURCE], "handle")
    old = builder.tensor((4,), dtype, "old", quantization=read)
    y = builder.tensor((4,), dtype, "y", quantization=q)
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions("container", "sum"))
    builder.operator("ASSIGN_VARIABLE", [handle, x], [])
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("ADD", [x, old], [y], AddOptions())
    builder.outputs(y)
    return builder.build()


def invokes(content: bytes, *delegates: jd.JaxDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(
        model_content=content, experimental_delegates=list(delegates) or None
    )
    dtype = interpreter.get_input_details()[0]["dtype"]
    return np.stack([run_once(interpreter, [np.array([k, 5, -2, 40], dtype)])[0] for k in range(4)])


@pytest.mark.parametrize("quant_mode", ["float_view", "integer"])
@pytest.mark.parametrize(
    ("dtype", "q"), [(np.float32, None), (np.int8, quantized(0.5))], ids=["float32", "int8"]
)
def test_variables_are_delegated(dtype: type, q: Quantization | None, quant_mode: str) -> None:
    content = doubled(q, q, dtype)
    delegate = jd.JaxDelegate(quant_mode=quant_mode)
    np.testing.assert_array_equal(invokes(content, delegate), invokes(content))
    assert [n.op for n in delegate.report().delegated] == OPERATORS


def in_order(order: str, *, by_if: bool = False) -> bytes:
    """READ_VARIABLE ("r") and ASSIGN_VARIABLE ("a", also as the branch of an IF) in some order."""
    builder = ModelBuilder()
    resource = DTYPES[TensorType.RESOURCE]
    x, condition = builder.input((4,), name="x"), builder.constant(np.array([True]))

    def handle(graph: SubgraphBuilder) -> int:
        made = graph.tensor((1,), resource)
        graph.operator("VAR_HANDLE", [], [made], VarHandleOptions("", "v"))
        return made

    y = x
    for step in order:
        if step == "r":
            old, total = builder.tensor((4,)), builder.tensor((4,))
            builder.operator("READ_VARIABLE", [handle(builder)], [old])
            builder.operator("ADD", [old, y], [total], AddOptions())
            y = total
        elif by_if:
            same = builder.tensor((4,))
            builder.operator("IF", [condition, y], [same], IfOptions(1, 2))
            y = same
        else:
            builder.operator("ASSIGN_VARIABLE", [handle(builder), y], [])
    builder.outputs(y)
    builder.signature("serving_default", {"x": x}, {"y": y})
    for name in ("then", "otherwise") if by_if else ():
        branch = builder.subgraph(name)
        given = branch.input((4,))
        if name == "then":
            branch.operator("ASSIGN_VARIABLE", [handle(branch), given], [])
        result = branch.tensor((4,))
        branch.operator("NEG", [given], [result])
        branch.outputs(result)
    return builder.build()


def invoked_twice(content: bytes, *delegates: jd.JaxDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(
        model_content=content, experimental_delegates=list(delegates) or None
    )
    return np.stack([run_once(interpreter, [np.float32([k, 1, 2, 3])])[0] for k in range(2)])


@pytest.mark.parametrize("by_if", [False, True])
@pytest.mark.parametrize("order", ["r", "ra", "rar", "rra"])
def test_what_is_read_before_it_is_assigned_is_refused(order: str, by_if: bool) -> None:
    """By the reference, delegates and functions alike; LiteRT returns what memory holds."""
    content = in_order(order, by_if=by_if)
    named = "the variable 'v' is read before anything was assigned to it"
    for delegates in ([], [jd.JaxDelegate()]):
        with pytest.raises(jd.UnassignedError, match=named):
            invoked_twice(content, *delegates)
    if by_if and "a" in order:  # load does not take a subgraph with variables
        return
    model = jd.load(content)
    for call in (lambda: model(np.ones(4, np.float32)), lambda: model.function()[0]({}, x=ONES)):
        with pytest.raises(jd.UnassignedError, match="reads the variable 'v'") as caught:
            call()
        assert isinstance(caught.value, jd.TensorError)


def test_a_variable_whose_handle_a_caller_passes_is_refused_likewise() -> None:
    builder, resource = ModelBuilder(), DTYPES[TensorType.RESOURCE]
    x, handle, y = builder.input((4,)), builder.tensor((1,), resource), builder.tensor((4,))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions("", "v"))
    builder.operator("IF", [builder.constant(np.array([True])), handle, x], [y], IfOptions(1, 1))
    builder.outputs(y)
    branch = builder.subgraph("branch")
    given, other = branch.input((1,), resource), branch.input((4,))
    old, total = branch.tensor((4,)), branch.tensor((4,))
    branch.operator("READ_VARIABLE", [given], [old])
    branch.operator("ADD", [old, other], [total], AddOptions())
    branch.outputs(total)
    for delegates in ([], [jd.JaxDelegate()]):
        with pytest.raises(jd.UnassignedError, match="the variable 'v' is read before"):
            invoked_twice(builder.build(), *delegates)


@pytest.mark.parametrize("by_if", [False, True])
@pytest.mark.parametrize("order", ["ar", "ara"])
def test_what_is_assigned_before_is_read(order: str, by_if: bool) -> None:
    content = in_order(order, by_if=by_if)
    x = np.float32([[0, 1, 2, 3], [1, 1, 2, 3]])
    want = {False: 2 * x, True: 0 * x if order == "ar" else -0 * x}[by_if]
    np.testing.assert_array_equal(invoked_twice(content), want)
    np.testing.assert_array_equal(invoked_twice(content, jd.JaxDelegate()), want)
    if not by_if:
        np.testing.assert_array_equal(jd.load(content)(x[1])[0], want[1])


def test_bytes_that_are_read_as_other_numbers_stay_bytes() -> None:
    content = doubled(quantized(0.25), quantized(0.5), np.int8)
    delegate = jd.JaxDelegate(quant_mode="float_view", min_gain=0)
    np.testing.assert_array_equal(invokes(content, delegate), invokes(content))
    assert [n.op for n in delegate.report().left] == ["ASSIGN_VARIABLE", "READ_VARIABLE"]
    integers = jd.JaxDelegate(quant_mode="integer")
    np.testing.assert_array_equal(invokes(content, integers), invokes(content))
    assert [n.op for n in integers.report().delegated] == OPERATORS


def test_a_variable_that_holds_a_handle_stays_on_the_host() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    handle, other = (builder.tensor((1,), DTYPES[TensorType.RESOURCE], n) for n in ("a", "b"))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions("", "a"))
    builder.operator("VAR_HANDLE", [], [other], VarHandleOptions("", "b"))
    builder.operator("ASSIGN_VARIABLE", [handle, other], [])
    builder.operator("ADD", [x, x], [y], AddOptions())
    builder.outputs(y)
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = jd.Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    np.testing.assert_array_equal(run_once(interpreter, [np.ones(4, np.float32)])[0], 2)
    reasons = {node.op: node.reason for node in delegate.report().left}
    assert reasons["ASSIGN_VARIABLE"] == "'b' is a handle, which XLA does not have"


@pytest.mark.parametrize("names", [("a", "b/c", "a/b", "c"), ("", "x", "", "y")])
def test_two_variables_are_never_one(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxdelegate.op_lowering.resources.reference.zlib.crc32", lambda _: 7)
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    one, other = (builder.tensor((1,), DTYPES[TensorType.RESOURCE], n) for n in "ab")
    builder.operator("VAR_HANDLE", [], [one], VarHandleOptions(*names[:2]))
    builder.operator("VAR_HANDLE", [], [other], VarHandleOptions(*names[2:]))
    builder.operator("ASSIGN_VARIABLE", [one, x], [])
    builder.operator("ASSIGN_VARIABLE", [other, builder.constant(np.zeros(4, np.float32))], [])
    builder.operator("READ_VARIABLE", [one], [y])
    builder.outputs(y)
    for delegates in ([], [jd.JaxDelegate(min_gain=0)]):
        interpreter = jd.Interpreter(
            model_content=builder.build(), experimental_delegates=delegates
        )
        np.testing.assert_array_equal(run_once(interpreter, [np.ones(4, np.float32)])[0], 1)
