"""Delegates written in Python, in the unmodified stock interpreter."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.measuring.tolerance import NETWORK
from jaxdelegate.op_lowering.options import (
    AddOptions,
    CustomOptions,
    FullyConnectedOptions,
    PackOptions,
    RNNOptions,
    ShapeOptions,
    StridedSliceOptions,
    TensorType,
    WhileOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import OpRule
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.simple_delegate import SimpleDelegateOptions
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import random_inputs, run_once

Stock = Callable[..., Interpreter]
pytestmark = pytest.mark.litert


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "jaxdelegate")


def pair(n: int = 4) -> list[np.ndarray]:
    return [np.arange(n, dtype=np.float32), np.full(n, 3, np.float32)]


def wanted(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    return [(x + y) * y - x]


class Taking(jd.SimpleDelegate):
    """Delegates operators by name, and runs each by a function of its input arrays."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions = functions
        self.prepared: list[tuple[Any, ...]] = []

    def is_node_supported(self, node: Any) -> bool:
        return node.name in self.functions

    def create_kernel(self) -> "TakingKernel":
        return TakingKernel(self)


class TakingKernel(jd.SimpleDelegateKernel):
    def __init__(self, delegate: Taking) -> None:
        self.delegate = delegate

    def init(self, context: Any, params: Any) -> None:
        pass

    def prepare(self, context: Any, node: Any) -> None:
        self.delegate.prepared.append(tuple(context.spec(i).shape for i in node.inputs))

    def eval(self, context: Any, node: Any) -> None:
        for n in node.nodes:
            inputs = [context.array(i) for i in n.operator.inputs]
            context.assign(n.operator.outputs[0], self.delegate.functions[n.name](*inputs))


# ---- what is taken, and what comes out


@pytest.mark.parametrize("auto", [False, True], ids=["reference", "xnnpack"])
def test_the_tutorial_delegate(tutorial: Any, stock: Stock, add_mul_sub: bytes, auto: bool) -> None:
    delegate = tutorial()
    interpreter = stock(add_mul_sub, [delegate], auto=auto)
    assert_close(run_once(interpreter, pair()), wanted(*pair()))
    report = delegate.report()
    assert [n.delegated for n in report.nodes] == [True, False, True]
    assert report.nodes[1].reason == "not supported by MyDelegate"
    assert report.summary().startswith("2 operations will run on MyDelegate")
    assert delegate.last_error is None


@pytest.mark.parametrize("auto", [False, True], ids=["reference", "xnnpack"])
def test_jax_delegate(stock: Stock, add_mul_sub: bytes, auto: bool) -> None:
    delegate = jd.JaxDelegate()
    interpreter = stock(add_mul_sub, [delegate], auto=auto)
    assert_close(run_once(interpreter, pair()), wanted(*pair()))
    assert delegate.report().n_partitions == 1
    assert delegate.report().left == ()
    names = [op["op_name"] for op in interpreter._get_ops_details()]
    assert names == ["ADD", "MUL", "SUB", "DELEGATE"]


def test_two_delegates_in_one_interpreter(tutorial: Any, stock: Stock, add_mul_sub: bytes) -> None:
    mine, xla = tutorial(), jd.JaxDelegate(min_gain=0)
    assert_close(run_once(stock(add_mul_sub, [mine, xla]), pair()), wanted(*pair()))
    assert [n.delegated for n in xla.report().nodes] == [False, True, False]
    assert xla.report().nodes[0].reason == "taken by MyDelegate"


def test_partition_options(tutorial: Any, stock: Stock, add_mul_sub: bytes) -> None:
    class Small(tutorial):  # type: ignore[misc]
        options = SimpleDelegateOptions(max_delegated_partitions=1)

    delegate = Small()
    assert_close(run_once(stock(add_mul_sub, [delegate]), pair()), wanted(*pair()))
    assert len(delegate.report().delegated) == 1


def test_operators_by_index(stock: Stock, add_mul_sub: bytes) -> None:
    delegate = jd.JaxDelegate(first_delegate_node_index=1, last_delegate_node_index=1)
    assert_close(run_once(stock(add_mul_sub, [delegate]), pair()), wanted(*pair()))
    assert [n.delegated for n in delegate.report().nodes] == [False, True, False]
    assert "outside of first_delegate_node_index 1" in str(delegate.report().nodes[0].reason)


def test_intermediates_of_one_partition_stay_with_the_kernel(stock: Stock) -> None:
    builder = ModelBuilder()
    x, a, b = builder.input((4,)), builder.tensor((4,)), builder.tensor((4,))
    builder.operator("ADD", [x, x], [a])
    builder.operator("SUB", [a, x], [b])
    builder.outputs(b)
    delegate = Taking(ADD=np.add, SUB=np.subtract)
    assert_close(run_once(stock(builder.build(), [delegate]), pair()[:1]), pair()[:1])
    assert delegate.report().n_partitions == 1


def test_preserve_all_tensors(stock: Stock, add_mul_sub: bytes) -> None:
    delegate = jd.JaxDelegate()
    interpreter = stock(add_mul_sub, [delegate], preserve=True)
    run_once(interpreter, pair())
    x, y = pair()
    assert delegate.report().n_partitions == 3
    got = [interpreter.get_tensor(i) for i in (2, 3, 4)]
    assert_close(got, [x + y, (x + y) * y, (x + y) * y - x])


def test_a_network(stock: Stock) -> None:
    content = mobilenet_v1(width=0.25, size=64)
    arrays = random_inputs(stock(content).get_input_details())
    delegate = jd.JaxDelegate()
    got, want = run_once(stock(content, [delegate]), arrays), run_once(stock(content), arrays)
    assert_close(got, want, tolerance=NETWORK)
    assert delegate.report().left == ()


def test_signature_runners(stock: Stock) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 3), name="x", shape_signature=(-1, 3))
    y = builder.tensor((1, 3), name="y")
    builder.operator("ADD", [x, x], [y], AddOptions())
    builder.outputs(y)
    builder.signature("twice", {"image": x}, {"larger": y})
    runner = stock(builder.build(), [jd.JaxDelegate()]).get_signature_runner("twice")
    for n in (1, 8, 3):
        x_n = np.ones((n, 3), np.float32)
        assert_close([runner(image=x_n)["larger"]], [2 * x_n])


# ---- shapes


@pytest.mark.parametrize("auto", [False, True], ids=["reference", "xnnpack"])
@pytest.mark.parametrize("last", [0, 2], ids=["partly", "wholly"])
def test_resize(stock: Stock, add_mul_sub: bytes, auto: bool, last: int) -> None:
    interpreter = stock(add_mul_sub, [jd.JaxDelegate(last_delegate_node_index=last)], auto=auto)
    for n in (1, 8, 3, 8):
        assert_close(run_once(interpreter, pair(n)), wanted(*pair(n)))


def test_a_kernel_is_prepared_once_for_each_shape(stock: Stock, add_mul_sub: bytes) -> None:
    delegate = Taking(ADD=np.add)
    interpreter = stock(add_mul_sub, [delegate])
    for n in (4, 4, 8):
        run_once(interpreter, pair(n))
        interpreter.allocate_tensors()
    assert delegate.prepared == [((4,), (4,)), ((8,), (8,))]


@pytest.mark.parametrize("kind", ["python", "jax"])
def test_shapes_that_do_not_fit_are_only_an_error(
    stock: Stock, add_mul_sub: bytes, kind: str
) -> None:
    functions = {"ADD": np.add, "MUL": np.multiply, "SUB": np.subtract}
    delegate = jd.JaxDelegate() if kind == "jax" else Taking(**functions)
    interpreter = stock(add_mul_sub, [delegate])
    for n in (4, 4):
        assert_close(run_once(interpreter, pair(n)), wanted(*pair(n)))
        with pytest.raises(RuntimeError, match="ADD"):
            run_once(interpreter, [pair(4)[0], pair(3)[1]])


def reshaping() -> bytes:
    """x + 1, flattened to [n, 4] by arithmetic on x's shape, whose first dimension is open."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 2), shape_signature=(-1, 2, 2))
    shape, n, rows = (builder.tensor(s, np.int32) for s in ((3,), (), (2,)))
    zero, one = (builder.constant(np.array([v], np.int32)) for v in (0, 1))
    y = builder.tensor((1, 4))
    builder.operator("SHAPE", [x], [shape], ShapeOptions(TensorType.INT32))
    slice_options = StridedSliceOptions(shrink_axis_mask=1)
    builder.operator("STRIDED_SLICE", [shape, zero, one, one], [n], slice_options)
    four = builder.constant(np.array(4, np.int32))
    builder.operator("PACK", [n, four], [rows], PackOptions(values_count=2))
    builder.operator("RESHAPE", [x, rows], [y])
    z = builder.tensor((1, 4))
    builder.operator("ADD", [y, builder.constant(np.ones(1, np.float32))], [z])
    builder.outputs(z)
    return builder.build()


@pytest.mark.parametrize("auto", [False, True], ids=["reference", "xnnpack"])
@pytest.mark.parametrize("first", [0, 4], ids=["wholly", "after a dynamic tensor"])
def test_shapes_that_depend_on_other_shapes(stock: Stock, auto: bool, first: int) -> None:
    delegate = jd.JaxDelegate(first_delegate_node_index=first)
    interpreter = stock(reshaping(), [delegate], auto=auto)
    for n in (1, 8, 3):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 2, 2)
        assert_close(run_once(interpreter, [x]), [x.reshape(n, 4) + 1])
    assert len(delegate.report().delegated) == 5 - first


def test_outputs_whose_shape_depends_on_data(stock: Stock) -> None:
    builder = ModelBuilder()
    x, where = builder.input((6,), np.bool_), builder.tensor((0, 1), np.int64)
    twice = builder.tensor((0, 1), np.int64)
    builder.operator("WHERE", [x], [where])
    builder.operator("ADD", [where, where], [twice])
    builder.outputs(twice, where)
    delegate = Taking(WHERE=np.argwhere)
    interpreter = stock(builder.build(), [delegate])
    for mask in (0b101101, 0b1, 0b111111):  # stock get_tensor refuses results without elements
        x_n = np.array([bool(mask >> i & 1) for i in range(6)])
        assert_close(run_once(interpreter, [x_n]), [2 * np.argwhere(x_n), np.argwhere(x_n)])


def test_declared_shapes_are_ignored(stock: Stock) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2, 3)), builder.tensor((1,))  # wrong on purpose
    builder.operator("ADD", [x, x], [y])
    builder.outputs(y)
    x_n = np.ones((2, 3), np.float32)
    assert_close(run_once(stock(builder.build(), [jd.JaxDelegate()]), [x_n]), [2 * x_n])


# ---- constants, variables, custom operators


def test_float16_weights(stock: Stock) -> None:
    rng = np.random.default_rng(0)
    w16 = rng.uniform(-1, 1, (5, 8)).astype(np.float16)
    builder = ModelBuilder()
    x, w, y = builder.input((2, 8)), builder.tensor((5, 8)), builder.tensor((2, 5))
    builder.operator("DEQUANTIZE", [builder.constant(w16)], [w])
    builder.operator("FULLY_CONNECTED", [x, w, -1], [y], FullyConnectedOptions())
    builder.outputs(y)
    delegate = jd.JaxDelegate()
    x_n = rng.uniform(-1, 1, (2, 8)).astype(np.float32)
    got = run_once(stock(builder.build(), [delegate]), [x_n])
    assert_close(got, [x_n @ w16.astype(np.float32).T], accumulated=8)
    assert delegate.report().left == ()


@pytest.mark.parametrize("reader", ["the graph", "the interpreter"])
def test_outputs_that_are_constants_are_written(stock: Stock, reader: str) -> None:
    builder = ModelBuilder()
    x, a, y = builder.input((3,)), builder.tensor((3,)), builder.tensor((3,))
    constant = builder.constant(np.array([1, 2, 3], np.float16))
    builder.operator("DEQUANTIZE", [constant], [a])
    builder.operator("MUL", [x, a], [y])
    builder.outputs(*((y, a) if reader == "the graph" else (y,)))
    delegate = jd.JaxDelegate(last_delegate_node_index=0)  # MUL, on the host, reads the constant
    interpreter = stock(builder.build(), [delegate])
    for scale in (1, 2):
        got = run_once(interpreter, [np.full(3, scale, np.float32)])
        assert_close(got[:1], [scale * np.array([1, 2, 3], np.float32)])
    assert len(delegate.report().delegated) == 1


def rnn() -> bytes:
    """A recurrent cell with a hidden state of 4."""
    rng = np.random.default_rng(1)
    weights = [rng.uniform(-1, 1, s).astype(np.float32) for s in ((4, 3), (4, 4), (4,))]
    builder = ModelBuilder()
    x = builder.input((2, 3))
    w, r, b = (builder.constant(a) for a in weights)
    state = builder.tensor((2, 4), is_variable=True)
    y = builder.tensor((2, 4))
    builder.operator("RNN", [x, w, r, b, state], [y], RNNOptions())
    builder.outputs(y)
    return builder.build()


def test_variables_are_stored_in_the_interpreter(stock: Stock) -> None:
    content, x = rnn(), np.ones((2, 3), np.float32)
    delegated, plain = stock(content, [jd.JaxDelegate()]), stock(content)
    for interpreter in (delegated, plain):
        interpreter.allocate_tensors()
    for step in range(5):
        if step == 3:
            delegated.reset_all_variables()
            plain.reset_all_variables()
        results = []
        for interpreter in (delegated, plain):
            interpreter.set_tensor(0, x)
            interpreter.invoke()
            results.append([interpreter.get_tensor(i) for i in (4, 5)])  # state, output
        assert_close(*results, accumulated=16)


def test_custom_operators_that_the_interpreter_does_not_know(stock: Stock) -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    builder.operator("Halve", [x], [y], CustomOptions(b"bytes"))
    builder.outputs(y)
    seen = []

    class Halving(Taking):
        def is_node_supported(self, node: Any) -> bool:
            seen.append((node.name, node.operator.custom, node.operator.custom_options))
            return super().is_node_supported(node)

    got = run_once(stock(builder.build(), [Halving(Halve=lambda x: x / 2)]), pair()[1:])
    assert_close(got, [np.full(4, 1.5, np.float32)])
    assert seen == [("Halve", True, b"bytes")]


class _Factor:
    def __init__(self, value: float) -> None:
        self.value = np.float32(value)


@dataclasses.dataclass(frozen=True)
class _ScaleOptions(CustomOptions):
    """Parameters of a type that no digest covers."""

    factor: Any = None

    @classmethod
    def from_bytes(cls, data: bytes) -> "_ScaleOptions":
        return cls(data, _Factor(data[0]))


@pytest.fixture
def scale() -> Iterator[None]:
    rule = OpRule(
        "Scale",
        _ScaleOptions,
        1,
        lambda _op: None,
        lambda op: lambda x: (x * op.options.factor.value,),
    )
    kernel = Kernel(lambda o, _i, _o, x: (x * o.factor.value,), same_shape)
    jd.register_operator("Scale", kernel, rule, options_type=_ScaleOptions)
    yield
    del KERNELS["Scale"], RULES["Scale"]


@pytest.mark.usefixtures("scale")
def test_custom_operators_whose_options_have_no_digest(stock: Stock) -> None:
    for factor in (2, 3):
        builder = ModelBuilder()
        x, y = builder.input((4,)), builder.tensor((4,))
        builder.operator("Scale", [x], [y], CustomOptions(bytes([factor])))
        builder.outputs(y)
        delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
        got = run_once(stock(builder.build(), [delegate]), pair()[:1])
        assert_close(got, [pair()[0] * factor])


# ---- what stays with the interpreter


def counting_loop() -> bytes:
    """While i < 5: i + 1, x + x."""
    builder = ModelBuilder()
    i, x = builder.input((), np.int32), builder.input((2,))
    outputs = builder.tensor((), np.int32), builder.tensor((2,))
    builder.operator("WHILE", [i, x], list(outputs), WhileOptions(1, 2))
    last = builder.tensor((2,))
    builder.operator("ADD", [outputs[1], outputs[1]], [last])
    builder.outputs(last)
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    i, _ = condition.input((), np.int32), condition.input((2,))
    less = condition.tensor((), np.bool_)
    condition.operator("LESS", [i, condition.constant(np.array(5, np.int32))], [less])
    condition.outputs(less)
    i, x = body.input((), np.int32), body.input((2,))
    next_i, next_x = body.tensor((), np.int32), body.tensor((2,))
    body.operator("ADD", [i, body.constant(np.array(1, np.int32))], [next_i])
    body.operator("ADD", [x, x], [next_x])
    body.outputs(next_i, next_x)
    return builder.build()


def test_a_small_body_stays_with_its_loop(stock: Stock) -> None:
    delegate = jd.JaxDelegate()
    arrays = [np.array(2, np.int32), np.array([1, -2], np.float32)]
    got = run_once(stock(counting_loop(), [delegate]), arrays)
    assert_close(got, [np.array([16, -32], np.float32)])
    reports = [delegate.report(i) for i in range(3)]
    assert not any(report.delegated for report in reports)
    assert all("gains too little" in n.reason for report in reports[1:] for n in report.nodes)


def test_bodies_of_loops_are_delegated_one_by_one(stock: Stock) -> None:
    delegate = jd.JaxDelegate(min_gain=0)
    arrays = [np.array(2, np.int32), np.array([1, -2], np.float32)]
    got = run_once(stock(counting_loop(), [delegate]), arrays)
    assert_close(got, [np.array([16, -32], np.float32)])
    loop, behind = delegate.report().nodes
    said = "stock interpreters do not expose the inputs of called subgraphs"
    assert (loop.delegated, loop.reason) == (
        False,
        f"{said}; jaxdelegate.Interpreter can delegate it",
    )
    assert behind.delegated
    assert [len(delegate.report(i).delegated) for i in (1, 2)] == [1, 2]


def test_random_state_and_handles_stay_with_the_interpreter(stock: Stock) -> None:
    builder = ModelBuilder()
    shape, noise = builder.input((2,), np.int32), builder.tensor((3, 3))
    builder.operator("RANDOM_UNIFORM", [shape], [noise])
    handle, value = builder.tensor((1,), np.dtype("V4")), builder.tensor((3, 3))
    builder.operator("VAR_HANDLE", [], [handle])
    builder.operator("ASSIGN_VARIABLE", [handle, noise], [])
    builder.operator("READ_VARIABLE", [handle], [value])
    builder.outputs(value)
    delegate = jd.JaxDelegate()
    stock(builder.build(), [delegate])
    reasons = [n.reason for n in delegate.report().nodes]
    variables = "the stock interpreter keeps variables, and shares only their values"
    random = "the stock interpreter keeps the state of its random generator"
    ours = "jaxdelegate.Interpreter can delegate it"
    assert reasons == [f"{random}; {ours}", *[f"{variables}; {ours}"] * 3]


def test_strings_are_read_but_not_written(stock: Stock) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,), np.dtype(object)), builder.tensor((2,), np.int32)
    z = builder.tensor((2,), np.dtype(object))
    builder.operator("Lengths", [x], [y], CustomOptions())
    builder.operator("Upper", [x], [z], CustomOptions())
    builder.outputs(y)
    delegate = Taking(Lengths=lambda x: np.array([len(s) for s in x], np.int32), Upper=np.copy)
    interpreter = stock(builder.build(), [delegate])
    reason = "the stock interpreter has no array for its outputs: strings or packed integers"
    assert [n.reason for n in delegate.report().nodes] == [None, reason]
    with pytest.raises(RuntimeError, match="unresolved custom op: Upper"):
        interpreter.allocate_tensors()


def test_strings_and_packed_integers_are_read(stock: Stock) -> None:
    builder = ModelBuilder()
    words, n = builder.input((2,), np.dtype(object)), builder.tensor((2,), np.int32)
    packed, y = builder.constant(np.array([-8, 7, 3], ml_dtypes.int4)), builder.tensor((3,))
    builder.operator("Lengths", [words], [n], CustomOptions())
    builder.operator("Widen", [packed], [y], CustomOptions())
    builder.outputs(n, y)
    lengths: Any = lambda x: np.array([len(s) for s in x], np.int32)  # noqa: E731
    delegate = Taking(Lengths=lengths, Widen=lambda x: x.astype(np.float32))
    got = run_once(stock(builder.build(), [delegate]), [np.array([b"four", b"sixsix"])])
    assert_close(got, [np.array([4, 6], np.int32), np.array([-8, 7, 3], np.float32)])


def test_operators_that_refuse_their_shapes_stay(stock: Stock) -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.input((3,))
    a, b = builder.tensor((4,)), builder.tensor((4,))
    builder.operator("ADD", [x, y], [a])  # fits once y has been resized
    builder.operator("MUL", [x, x], [b])
    builder.outputs(a, b)
    delegate = jd.JaxDelegate(min_gain=0)
    x_n = pair()[0]
    assert_close(run_once(stock(builder.build(), [delegate]), [x_n, x_n]), [x_n + x_n, x_n * x_n])
    left, taken = delegate.report().nodes
    assert "failed to prepare" in str(left.reason)
    assert taken.delegated
