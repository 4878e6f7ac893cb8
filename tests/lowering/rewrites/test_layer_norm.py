"""Fusion of normalizations: the forms that are matched, and their precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import emulated_policy
from jaxdelegate.lowering.rewrites.registry import REWRITES
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    LayerNormOptions,
    ReducerOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once

ALL = ["fuse_layer_norm"]
KEEP, DROP = ReducerOptions(keep_dims=True), ReducerOptions(keep_dims=False)
LAST, PLACES = np.array([-1], np.int32), np.array([1, 2], np.int32)
EPSILON = float(np.float32(1e-3))
SHAPE = (2, 3, 5, 8)

Write = Callable[..., int]


def variance(g: Any, x: int, mean: int, axes: np.ndarray) -> int:
    square = g("SQUARED_DIFFERENCE", x, mean)
    return g("ADD", g("MEAN", square, axes, options=KEEP), EPSILON)


def as_keras(g: Any, x: int, scale: Any, offset: Any, axes: np.ndarray) -> int:
    mean = g("MEAN", x, axes, options=KEEP)
    d = g("SUB", x, mean)
    y = g("MUL", d, g("RSQRT", variance(g, x, mean, axes)))
    return g("ADD", offset, g("MUL", y, scale))


def as_batch_normalization(g: Any, x: int, scale: Any, offset: Any, axes: np.ndarray) -> int:
    mean = g("MEAN", x, axes, options=KEEP)
    factor = g("MUL", g("RSQRT", variance(g, x, mean, axes)), scale)
    return g("ADD", g("MUL", x, factor), g("SUB", offset, g("MUL", mean, factor)))


def as_mediapipe(g: Any, x: int, scale: Any, offset: Any, axes: np.ndarray) -> int:
    mean = g("MEAN", x, axes, options=KEEP)
    less = g("NEG", mean)
    factor = g("MUL", g("RSQRT", variance(g, x, mean, axes)), scale)
    return g("ADD", g("ADD", g("MUL", x, factor), g("MUL", less, factor)), offset)


def as_onnx(g: Any, x: int, scale: Any, offset: Any, axes: np.ndarray) -> int:
    d = g("SUB", x, g("MEAN", x, axes, options=KEEP))
    square = g("MEAN", g("POW", d, 2.0), axes, options=KEEP)
    y = g("DIV", d, g("SQRT", g("ADD", square, EPSILON)))
    return g("ADD", g("MUL", y, scale), offset)


def as_sums(g: Any, x: int, scale: Any, offset: Any, axes: np.ndarray) -> int:
    """Converted StableHLO: reductions drop their axes, and a division follows."""
    shape = np.array([1 if i in axes % 4 else n for i, n in enumerate(SHAPE)], np.int32)
    count = float(np.prod([SHAPE[i] for i in axes]))
    total = g("DIV", g("SUM", x, axes, options=DROP), count)
    d = g("SUB", x, g("RESHAPE", total, shape))
    square = g("MUL", 1 / count, g("SUM", g("MUL", d, d), axes, options=DROP))
    root = g("RSQRT", g("RESHAPE", g("ADD", EPSILON, square), shape))
    return g("ADD", g("MUL", g("MUL", root, scale), d), offset)


WRITES = [as_keras, as_batch_normalization, as_mediapipe, as_onnx, as_sums]


@pytest.mark.parametrize("axes", [LAST, PLACES], ids=["layer", "instance"])
@pytest.mark.parametrize("write", WRITES)
def test_it_is_found_however_it_is_written(
    write: Write, axes: np.ndarray, graph: Any, lowered: Any
) -> None:
    x = graph("ADD", graph.input(*SHAPE), graph.values(8))
    content = graph.content(write(graph, x, graph.values(8), graph.values(8), axes))
    partition, got = lowered(content, ALL)
    assert [s.operator.name for s in partition.operators] == ["ADD", "fused_layer_norm"]
    assert partition.operators[1].operator.options == LayerNormOptions(
        tuple(sorted(axes % 4)), EPSILON, is_centered=True
    )
    assert partition.operators[1].name == "ADD"  # profiles speak of the file's operator
    assert_close(got, lowered(content)[1], accumulated=15)


def test_a_variance_beyond_float32_is_the_largest_number(graph: Any, lowered: Any) -> None:
    x = graph("MUL", graph.input(*SHAPE), 1e25)
    content = graph.content(as_keras(graph, x, graph.values(8), graph.values(8), LAST))
    assert_close(lowered(content, ALL)[1], lowered(content)[1], accumulated=8)
    assert np.abs(lowered(content, ALL)[1][0]).max() > 1e3


@pytest.mark.parametrize("root", ["RSQRT", "SQRT", "POW"])
def test_root_mean_square(root: str, graph: Any, lowered: Any) -> None:
    x = graph("ADD", graph.input(3, 8), graph.values(8))
    square = graph("MEAN", graph("MUL", x, x), LAST, options=KEEP)
    root_of = [graph("ADD", square, EPSILON), *([-0.5] if root == "POW" else [])]
    r = graph(root, *root_of)
    y = graph("DIV" if root == "SQRT" else "MUL", x, r)
    content = graph.content(graph("MUL", graph.values(8), y))
    partition, got = lowered(content, ALL)
    assert [s.operator.name for s in partition.operators] == ["ADD", "fused_layer_norm"]
    assert partition.operators[1].operator.options == LayerNormOptions((1,), EPSILON, False)
    assert_close(got, lowered(content)[1], accumulated=8)


def test_scale_and_offset_may_be_computed(graph: Any, lowered: Any) -> None:
    x, scale, offset = graph.input(*SHAPE), graph.input(2, 1, 1, 8), graph.input(2, 1, 1, 8)
    late = graph("ABS", offset)  # in the file it is right before its reader
    content = graph.content(as_batch_normalization(graph, x, scale, late, PLACES))
    partition, got = lowered(content, ALL)
    assert [s.operator.name for s in partition.operators] == ["ABS", "fused_layer_norm"]
    assert_close(got, lowered(content)[1], accumulated=15)


def test_an_activation_of_the_result_is_applied(graph: Any, lowered: Any) -> None:
    x = graph.input(3, 8)
    mean = graph("MEAN", x, LAST, options=KEEP)
    y = graph("MUL", graph("SUB", x, mean), graph("RSQRT", variance(graph, x, mean, LAST)))
    relu = AddOptions(ActivationFunctionType.RELU)
    content = graph.content(graph("ADD", y, graph.values(8), options=relu))
    partition, got = lowered(content, ALL)
    assert [s.operator.name for s in partition.operators] == ["fused_layer_norm"]
    assert np.min(got[0]) == 0
    assert_close(got, lowered(content)[1], accumulated=8)


def normalized(g: Any, x: int) -> int:
    mean = g("MEAN", x, LAST, options=KEEP)
    return g("MUL", g("SUB", x, mean), g("RSQRT", variance(g, x, mean, LAST)))


def test_what_others_read_too_is_yielded(graph: Any, lowered: Any) -> None:
    """BERT's converter gives the normalized values to several products, before scale and offset."""
    y = normalized(graph, graph.input(3, 8))
    content = graph.content(graph("ADD", graph("MUL", y, graph.values(8)), 1.0), graph("ABS", y))
    partition, got = lowered(content, ALL)
    assert [s.operator.name for s in partition.operators] == [
        "fused_layer_norm",
        "MUL",
        "ADD",
        "ABS",
    ]
    assert_close(got, lowered(content)[1], accumulated=8)


def test_what_is_added_at_every_place_is_no_offset(graph: Any, lowered: Any) -> None:
    x, z = graph.input(3, 8), graph.input(3, 8)
    content = graph.content(graph("ADD", normalized(graph, x), z))
    names = [s.operator.name for s in lowered(content, ALL)[0].operators]
    assert names == ["fused_layer_norm", "ADD"]


def test_what_it_is_divided_by_is_no_scale(graph: Any, lowered: Any) -> None:
    divisor, x = graph.input(8), graph.input(3, 8)  # the divisor is tensor 0
    content = graph.content(graph("DIV", normalized(graph, x), divisor))
    names = [s.operator.name for s in lowered(content, ALL)[0].operators]
    assert names == ["fused_layer_norm", "DIV"]


def test_a_mean_that_is_added_again_stays(graph: Any, lowered: Any) -> None:
    x = graph.input(3, 8)
    mean = graph("MEAN", x, LAST, options=KEEP)
    r = graph("RSQRT", variance(graph, x, mean, LAST))
    content = graph.content(graph("ADD", graph("MUL", graph("SUB", x, mean), r), mean))
    assert len(lowered(content, ALL)[0].operators) == 8


def other_axes(g: Any, x: int) -> int:
    mean = g("MEAN", x, np.array([0], np.int32), options=KEEP)
    return g("MUL", g("SUB", x, mean), g("RSQRT", variance(g, x, mean, LAST)))


def other_mean(g: Any, x: int) -> int:
    mean = g("MEAN", g("ABS", x), LAST, options=KEEP)
    return g("MUL", g("SUB", x, mean), g("RSQRT", variance(g, x, mean, LAST)))


def other_sign(g: Any, x: int) -> int:
    mean = g("MEAN", x, LAST, options=KEEP)
    return g("MUL", g("ADD", x, mean), g("RSQRT", variance(g, x, mean, LAST)))


def other_count(g: Any, x: int) -> int:
    square = g("DIV", g("SUM", g("MUL", x, x), LAST, options=KEEP), 9.0)
    return g("MUL", x, g("RSQRT", g("ADD", square, EPSILON)))


def no_epsilon(g: Any, x: int) -> int:
    return g("MUL", x, g("RSQRT", g("MEAN", g("MUL", x, x), LAST, options=KEEP)))


def dropped_axis(g: Any, x: int) -> int:
    """On [8, 8], a mean without its axis is broadcast along the other one."""
    square = g("MEAN", g("MUL", x, x), LAST, options=DROP)
    return g("MUL", x, g("RSQRT", g("ADD", square, EPSILON)))


@pytest.mark.parametrize(
    "write",
    [other_axes, other_mean, other_sign, other_count, no_epsilon, dropped_axis],
)
def test_what_only_looks_like_it_stays(write: Write, graph: Any, lowered: Any) -> None:
    content = graph.content(write(graph, graph.input(8, 8)))
    before, after = lowered(content)[0], lowered(content, ALL)[0]
    assert [s.operator.name for s in after.operators] == [s.operator.name for s in before.operators]


def test_an_inner_result_that_leaves_stays(graph: Any, lowered: Any) -> None:
    x = graph.input(3, 8)
    mean = graph("MEAN", x, LAST, options=KEEP)
    r = graph("RSQRT", variance(graph, x, mean, LAST))
    content = graph.content(graph("MUL", graph("SUB", x, mean), r), mean)
    assert len(lowered(content, ALL)[0].operators) == 7


@pytest.mark.parametrize("write", WRITES)
def test_in_float16_less_is_rounded(write: Write, graph: Any, lowered: Any) -> None:
    """One rounding, of the result, in place of one after each operator."""
    y = write(graph, graph.input(*SHAPE), graph.values(8), graph.values(8), LAST)
    content = graph.content(graph("ABS", y))
    context = LoweringContext(precision=emulated_policy("float16"))
    (want,), (apart,), (fused,) = (
        lowered(content, names, c)[1]
        for names, c in (([], LoweringContext()), ([], context), (ALL, context))
    )
    assert np.abs(fused - want).max() < np.abs(apart - want).max()


def test_a_pattern_that_is_cut_in_two_stays_right(graph: Any) -> None:
    content = graph.content(as_keras(graph, graph.input(*SHAPE), graph.values(8), 0.5, LAST))
    x = graph.random.normal(size=SHAPE).astype(np.float32)
    want = run_once(jd.Interpreter(model_content=content), [x])
    for last in range(8):
        delegate = jd.JaxDelegate(last_delegate_node_index=last)
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        assert_close(run_once(interpreter, [x]), want, accumulated=8)
        assert "fused" not in str(delegate.report())


def test_it_can_be_switched_off(graph: Any, lowered: Any) -> None:
    content = graph.content(normalized(graph, graph.input(3, 8)))
    others = [name for name in REWRITES if name != "fuse_layer_norm"]
    assert len(lowered(content, others)[0].operators) == 7
    assert len(lowered(content, REWRITES)[0].operators) == 1
