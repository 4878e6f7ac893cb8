"""Rewrites under a precision policy: operators that stay in float32, and comparisons."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import emulated_policy
from jaxdelegate.lowering.rewrites.registry import REWRITES
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Conv2DOptions,
    Padding,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once

FLOAT16_ALGORITHMS = emulated_policy("float16")
VALID = Conv2DOptions(Padding.VALID, 1, 1)


def padded(g: Any) -> bytes:
    """PAD and CONV_2D, which become one, and an ADD after them."""
    pads = np.array([(0, 0), (1, 1), (1, 1), (0, 0)], np.int32)
    x = g("PAD", g.input(1, 5, 6, 3), pads)
    y = g("CONV_2D", x, g.values(4, 3, 3, 3) / 3, g.values(4), options=VALID)
    return g.content(g("ADD", y, y))


@pytest.mark.parametrize(("kept", "is_exact"), [((0,), True), ((1,), True), ((2,), False)])
def test_any_part_keeps_a_joined_operator_in_float32(
    kept: tuple[int, ...], is_exact: bool, graph: Any, lowered: Any
) -> None:
    content = padded(graph)
    policy = dataclasses.replace(FLOAT16_ALGORITHMS, float32_operators=kept)
    partition, got = lowered(content, ["pad_convolution"], LoweringContext(precision=policy))
    joined, _ = partition.operators
    assert [part.name for part in joined.parts] == ["PAD", "CONV_2D"]
    (y,) = joined.outputs
    assert partition.reduced.get(y) == (None if is_exact else FLOAT16)
    want = lowered(content)[1]
    if is_exact:
        assert_close(got, want, accumulated=27)
    else:
        assert np.abs(got[0] - want[0]).max() > 1e-4


@pytest.mark.usefixtures("built")
def test_a_rule_is_asked_in_the_precision_of_all_parts(graph: Any, lowered: Any) -> None:
    """Our kernel supports attention only in float32."""
    content = attention(graph)
    reduced = PrecisionPolicy(operand=BFLOAT16)

    def names(*kept: int) -> list[str]:
        policy = dataclasses.replace(reduced, float32_operators=kept)
        context = LoweringContext(kernels=KernelSet(cpu=True), precision=policy)
        return [step.operator.name for step in lowered(content, REWRITES, context)[0].operators]

    assert len(names()) == 3
    for part in range(3):
        assert names(part) == ["fused_attention"]


# ---- checks compare a program in float32 with one in reduced precision, operator by operator


def attention(g: Any) -> bytes:
    q, k, v = (g.input(1, 4, n, 64) for n in (64, 128, 128))
    logits = g("BATCH_MATMUL", q, k, options=BatchMatMulOptions(adj_y=True))
    shares = g("SOFTMAX", logits, options=SoftmaxOptions(beta=1.0))
    return g.content(g("BATCH_MATMUL", shares, v, options=BatchMatMulOptions()))


def ended(g: Any) -> bytes:
    x = g.input(1, 5, 6, 20)
    y = g("CONV_2D", x, g.values(20, 1, 1, 20), g.values(20), options=VALID)
    return g.content(g("HARD_SWISH", y))


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("write", "count"), [(attention, 3), (ended, 2)])
def test_what_kernels_join_in_float32_alone_is_checked_apart(
    write: Any, count: int, graph: Any
) -> None:
    report = jd.check_precision(write(graph), None, "float16")
    assert [row.index for row in report.operators] == list(range(count))
    assert report.is_safe


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("write", [attention, ended])
def test_compute_dtype_auto_with_kernels(write: Any, graph: Any) -> None:
    content = write(graph)
    delegate = jd.JaxDelegate(platform="cpu", compute_dtype="auto")
    policy = PrecisionPolicy(operand=BFLOAT16, reduces_convolutions=False)
    delegate.compiler.context = dataclasses.replace(delegate.compiler.context, precision=policy)
    random = np.random.default_rng(0)
    plain = jd.Interpreter(model_content=content)
    shapes = [details["shape"] for details in plain.get_input_details()]
    arrays = [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    reduced = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    for got, want in zip(run_once(reduced, arrays), run_once(plain, arrays), strict=True):
        assert np.abs(got - want).max() < 1e-2 * np.abs(want).max()
