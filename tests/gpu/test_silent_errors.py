"""On a GPU: graphs that other GPU delegates run completely, without an error, but wrongly.

Each is the smallest form of a report to LiteRT or TensorFlow, compared with the numpy reference.
They keep the reports' operands: broadcasts of every axis, tensors below rank 4, values that are
outputs and are also read by later operators.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Options,
    Padding,
    Pool2DOptions,
    ReducerOptions,
    SoftmaxOptions,
)
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs
from tests.gpu.on_device import HALF, NEEDS_DEVICE, reference, run
from tests.support.networks import small_classifier

pytestmark = NEEDS_DEVICE
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float16"])
HEADS, LENGTH, DEPTH = 3, 10, 8
_MASKED = -1e4


class Graph:
    """A graph whose tensors' shapes follow from numpy's operators."""

    def __init__(self) -> None:
        self.builder = ModelBuilder()

    def input(self, *shape: int) -> int:
        return self.builder.input(shape)

    def constant(self, values: object) -> int:
        return self.builder.constant(np.asarray(values))

    def then(
        self, name: str, inputs: Sequence[int], shape: Sequence[int], options: Options | None = None
    ) -> int:
        y = self.builder.tensor(shape)
        self.builder.operator(name, inputs, [y], options)
        return y

    def model(self, *outputs: int) -> bytes:
        self.builder.outputs(*outputs)
        return self.builder.build()


def check(model: bytes, dtype: str) -> None:
    """All operators run on the device, and the results are right."""
    feeds = random_inputs(jd.Interpreter(model_content=model).get_input_details())
    got, _ = run(model, feeds, compute_dtype=dtype, require_full_delegation=True)
    want = reference(model, feeds)
    if dtype == "float32":
        assert_close(got, want, tolerance=NETWORK)
    else:
        assert_close(got, want, tolerance=HALF, because="half precision, scaled by the largest")


def causal(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.triu(np.full((LENGTH, LENGTH), _MASKED), 1), shape)


def padding(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.where(np.arange(LENGTH) < 7, 0, _MASKED), shape)


MASKS = {
    "1_1_s_s": causal(1, 1, LENGTH, LENGTH),  # LiteRT#8593
    "1_h_s_s": causal(1, HEADS, LENGTH, LENGTH),
    "1_1_1_s": padding(1, 1, 1, LENGTH),
    "1_h_1_s": padding(1, HEADS, 1, LENGTH),
    "s_s": causal(LENGTH, LENGTH),
    "s": padding(LENGTH),
}


@DTYPES
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("name", MASKS)
def test_masked_attention(name: str, is_constant: bool, dtype: str) -> None:
    """LiteRT#8593: a mask added to a product by broadcasting."""
    g, mask = Graph(), MASKS[name].astype(np.float32)
    q, k, v = (g.input(1, HEADS, LENGTH, DEPTH) for _ in range(3))
    added = g.constant(mask)
    if not is_constant:  # times an input of about one
        added = g.then("MUL", [added, g.input(1)], mask.shape)
    check(g.model(attention(g, q, k, v, added, (1, HEADS))), dtype)


def attention(g: Graph, q: int, k: int, v: int, mask: int, batch: tuple[int, ...]) -> int:
    scores, result = (*batch, LENGTH, LENGTH), (*batch, LENGTH, DEPTH)
    y = g.then("BATCH_MATMUL", [q, k], scores, BatchMatMulOptions(adj_y=True))
    y = g.then("MUL", [y, g.constant(np.float32(DEPTH**-0.5))], scores)
    y = g.then("ADD", [y, mask], scores)
    y = g.then("SOFTMAX", [y], scores, SoftmaxOptions(beta=1.0))
    return g.then("BATCH_MATMUL", [y, v], result, BatchMatMulOptions())


@DTYPES
@pytest.mark.parametrize("name", ["s_s", "s"])
def test_attention_of_rank_3(name: str, dtype: str) -> None:
    """LiteRT#8619: the heads are the batch."""
    g = Graph()
    q, k, v = (g.input(HEADS, LENGTH, DEPTH) for _ in range(3))
    mask = g.constant(MASKS[name].astype(np.float32))
    check(g.model(attention(g, q, k, v, mask, (HEADS,))), dtype)


@DTYPES
def test_scores_of_rank_3_and_a_mask_of_rank_4(dtype: str) -> None:
    """LiteRT#8975: [heads, s, s] + [1, 1, s, s] is [1, heads, s, s]."""
    g = Graph()
    q, k = (g.input(HEADS, LENGTH, DEPTH) for _ in range(2))
    scores = (HEADS, LENGTH, LENGTH)
    y = g.then("BATCH_MATMUL", [q, k], scores, BatchMatMulOptions(adj_y=True))
    mask = g.constant(causal(1, 1, LENGTH, LENGTH).astype(np.float32))
    y = g.then("ADD", [y, mask], (1, *scores))
    check(g.model(g.then("SOFTMAX", [y], (1, *scores), SoftmaxOptions(beta=1.0))), dtype)


@DTYPES
@pytest.mark.parametrize("adj_x", [False, True])
@pytest.mark.parametrize("adj_y", [False, True])
@pytest.mark.parametrize("is_constant", [False, True])
def test_transposed_operands(adj_x: bool, adj_y: bool, is_constant: bool, dtype: str) -> None:
    """LiteRT#8913, #6518: BATCH_MATMUL's options, rows and columns that are no multiple of 4."""
    g, rows, inner, columns = Graph(), 3, 10, 17
    x = g.input(2, *((inner, rows) if adj_x else (rows, inner)))
    shape = (2, *((columns, inner) if adj_y else (inner, columns)))
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y = g.constant(values) if is_constant else g.input(*shape)
    options = BatchMatMulOptions(adj_x=adj_x, adj_y=adj_y)
    check(g.model(g.then("BATCH_MATMUL", [x, y], (2, rows, columns), options)), dtype)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 49, 1), (1, 1, 49), (7, 49), (1, 7, 7, 1)], ids=str)
def test_adding_a_small_scalar(shape: tuple[int, ...], dtype: str) -> None:
    """tensorflow#67216: ADD(x, 1e-5) before RSQRT, below rank 4."""
    g = Graph()
    squares = g.then("SQUARE", [x := g.input(*shape)], shape)
    y = g.then("ADD", [squares, g.constant(np.float32(1e-5))], shape)
    y = g.then("MUL", [x, g.then("RSQRT", [y], shape)], shape)
    check(g.model(y, squares), dtype)


BROADCASTS = [
    ((1, 10, 3), (1, 10, 1)),
    ((1, 10, 1), (1, 10, 3)),
    ((1, 10, 1), (3,)),
    ((1, 1, 3), (5, 1)),
    ((2, 1, 4, 1), (3, 1, 5)),
]


@DTYPES
@pytest.mark.parametrize("name", ["ADD", "MUL", "SUB"])
@pytest.mark.parametrize(("a", "b"), BROADCASTS, ids=str)
def test_broadcasts(name: str, a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    """LiteRT#141: the first operand is the smaller one, or of a lower rank."""
    g = Graph()
    check(g.model(g.then(name, [g.input(*a), g.input(*b)], np.broadcast_shapes(a, b))), dtype)


@DTYPES
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_padding_any_axis_of_rank_3(axis: int, dtype: str) -> None:
    """LiteRT#9272."""
    g, shape, pads = Graph(), [2, 5, 6], np.zeros((3, 2), np.int32)
    x = g.input(*shape)
    pads[axis] = 1, 2
    shape[axis] += 3
    check(g.model(g.then("PAD", [x, g.constant(pads)], shape)), dtype)


# ---- outputs that later operators read


@DTYPES
def test_a_sum_that_is_an_output_and_is_reduced(dtype: str) -> None:
    """LiteRT#8599: the output contained one of the operands."""
    g, shape = Graph(), (1, 4, 4, 8)
    added = g.then("ADD", [g.input(*shape), g.input(*shape)], shape)
    axes = g.constant(np.array([1, 2, 3], np.int32))
    total = g.then("MEAN", [added, axes], (1,), ReducerOptions())
    check(g.model(total, added), dtype)


@DTYPES
def test_pooling_leaves_its_input(dtype: str) -> None:
    """tensorflow#38732: the source was overwritten; here input and source are outputs, too."""
    g, shape = Graph(), (1, 8, 8, 4)
    source = g.then("RELU", [g.input(*shape)], shape)
    options = Pool2DOptions(Padding.VALID, 2, 2, 2, 2)
    pooled = g.then("MAX_POOL_2D", [source], (1, 4, 4, 4), options)
    check(g.model(pooled, source, g.then("NEG", [source], shape)), dtype)


def every_tensor() -> bytes:
    """A classifier with every result as an output."""
    return _with_outputs(lambda operators: [i for op in operators for i in op.outputs])


def _with_outputs(chosen: Callable[[Sequence[object]], list[int]]) -> bytes:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    table = schema.ModelT.InitFromObj(schema.Model.GetRootAs(small_classifier()))
    table.subgraphs[0].outputs = chosen(read_model(small_classifier()).subgraphs[0].operators)
    table.signatureDefs = []
    builder = flatbuffers.Builder()
    builder.Finish(table.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@DTYPES
def test_intermediate_outputs_are_right_and_change_no_other(dtype: str) -> None:
    """tensorflow#79355, #53781, #57211: they were zero, or changed later results."""
    model = every_tensor()
    check(model, dtype)
    feeds = random_inputs(jd.Interpreter(model_content=model).get_input_details())
    (alone,), _ = run(small_classifier(), feeds, compute_dtype=dtype)
    everything, _ = run(model, feeds, compute_dtype=dtype)
    because = "the rounding of half precision depends on what is fused"
    assert_close([everything[-1]], [alone], tolerance=HALF, because=because)
