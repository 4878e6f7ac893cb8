"""Fusion of attention: the forms that are matched, and equal results."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.compile.precision_policy import device_policy
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AttentionOptions,
    BatchMatMulOptions,
    MulOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, Op
from jaxdelegate.testing import Arg, Case, assert_close

ALL = ["fuse_attention"]
GPU = LoweringContext(platform="gpu")
HALF = LoweringContext(platform="gpu", precision=device_policy("float16"))
B, N, T, S, H = 2, 3, 17, 19, 16
ADJOINT, PLAIN, ONE = BatchMatMulOptions(adj_y=True), BatchMatMulOptions(), SoftmaxOptions(beta=1.0)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requested implementations; XLA's runs instead, since there is no GPU."""
    names = []
    attention = jax.nn.dot_product_attention

    def by_xla(*arrays: Any, implementation: str, **more: Any) -> jax.Array:
        names.append(implementation)
        return attention(*arrays, implementation="xla", **more)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    return names


def heads_first(g: Any, x: int) -> int:
    return g("TRANSPOSE", x, np.array([0, 2, 1, 3], np.int32))


def as_bert(g: Any) -> int:
    q, k, v = (heads_first(g, g.input(B, n, N, H)) for n in (T, S, S))
    mask = g("MUL", g("SUB", 1.0, g.input(B, 1, 1, S)), -10.0)
    logits = g("MUL", g("BATCH_MATMUL", q, k, options=ADJOINT), 0.25)
    shares = g("SOFTMAX", g("ADD", logits, mask), options=ONE)
    return heads_first(g, g("BATCH_MATMUL", shares, v, options=PLAIN))


def without_a_mask(g: Any) -> int:
    q, k, v = (g.input(B, N, n, H) for n in (T, S, S))
    logits = g("DIV", g("BATCH_MATMUL", q, k, options=ADJOINT), 4.0)
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=PLAIN)


def keys_transposed(g: Any) -> int:
    q = g("MUL", g.input(B, N, T, H), 0.25)
    k = g("TRANSPOSE", g.input(B, S, N, H), np.array([0, 2, 3, 1], np.int32))
    v = g("TRANSPOSE", g.input(B, S, N, H), np.array([0, 2, 3, 1], np.int32))
    logits = g("ADD", g.values(T, S), g("BATCH_MATMUL", q, k, options=PLAIN))
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=ADJOINT)


def heads_in_the_batch(g: Any) -> int:
    """Attention with PyTorch's bmm: three dimensions for the products, four for the mask."""
    q, k, v = (g.input(B * N, n, H) for n in (T, S, S))
    logits = g("BATCH_MATMUL", q, k, options=ADJOINT)
    apart = g("RESHAPE", logits, np.array([B, N, T, S], np.int32))
    masked = g("ADD", g("MUL", apart, 0.25), g.input(B, 1, T, S))
    shares = g("SOFTMAX", masked, options=ONE)
    together = g("RESHAPE", shares, np.array([B * N, T, S], np.int32))
    return g("BATCH_MATMUL", together, v, options=PLAIN)


def scaled_before_heads_are_apart(g: Any) -> int:
    q, k, v = (g.input(B * N, n, H) for n in (T, S, S))
    logits = g("MUL", g("BATCH_MATMUL", q, k, options=ADJOINT), 0.25)
    masked = g("ADD", logits, g.input(1, T, S))
    apart = g("RESHAPE", masked, np.array([B, N, T, S], np.int32))
    shares = g("SOFTMAX", apart, options=ONE)
    together = g("RESHAPE", shares, np.array([B * N, T, S], np.int32))
    return g("BATCH_MATMUL", together, v, options=PLAIN)


def one_head(g: Any) -> int:
    q, k, v = (g.input(B, n, H) for n in (T, S, S))
    logits = g("MUL", 0.25, g("BATCH_MATMUL", q, k, options=ADJOINT))
    shares = g("SOFTMAX", g("ADD", logits, g.input(1, T, S)), options=ONE)
    return g("BATCH_MATMUL", shares, v, options=PLAIN)


Write = Callable[[Any], int]
WRITES = [
    as_bert,
    without_a_mask,
    keys_transposed,
    heads_in_the_batch,
    scaled_before_heads_are_apart,
    one_head,
]
ATTENTION = {"BATCH_MATMUL", "SOFTMAX", "DIV", "ADD", "RESHAPE"}


@pytest.mark.parametrize("context", [GPU, HALF], ids=["float32", "float16"])
@pytest.mark.parametrize("write", WRITES)
def test_it_is_found_however_it_is_written(
    write: Write, context: LoweringContext, graph: Any, lowered: Any, asked: list[str]
) -> None:
    content = graph.content(write(graph))
    partition, (got,) = lowered(content, ALL, context)
    names = [s.operator.name for s in partition.operators]
    assert names.count("fused_attention") == 1
    assert not ATTENTION.intersection(names)
    assert "BATCH_MATMUL" in [s.name for s in partition.operators]  # profiles speak of the file's
    assert asked == (["cudnn"] if context is HALF else [])
    (attention,) = (s for s in partition.operators if s.operator.name == "fused_attention")
    # Nothing is upcast on its way to cuDNN.
    assert attention.lowered.takes_reduced == (context is HALF)
    (want,) = lowered(content)[1]
    if context is GPU:
        assert_close([got], [want], accumulated=H)
    else:
        np.testing.assert_allclose(got, want, atol=5e-3)


def test_the_scale_and_the_mask_are_the_files(graph: Any, lowered: Any) -> None:
    partition, _ = lowered(graph.content(as_bert(graph)), ALL, GPU)
    step = next(s for s in partition.operators if s.operator.name == "fused_attention")
    assert step.operator.options == AttentionOptions((B, N, T, S), 0.25)
    assert partition.specs[step.operator.inputs[3]].shape == (B, 1, 1, S)


def test_without_the_kernel_it_is_written_out(
    monkeypatch: pytest.MonkeyPatch, graph: Any, lowered: Any
) -> None:
    def missing(*_: Any, **__: Any) -> jax.Array:
        raise RuntimeError("cuDNN is not there")

    monkeypatch.setattr(jax.nn, "dot_product_attention", missing)
    content = graph.content(as_bert(graph))
    got = lowered(content, ALL, HALF)[1]
    np.testing.assert_allclose(got[0], lowered(content)[1][0], atol=5e-3)


def a_query_and_a_cache(g: Any) -> int:
    q, k, v = (g.input(B, N, n, H) for n in (1, S, S))
    logits = g("MUL", 0.25, g("BATCH_MATMUL", q, k, options=ADJOINT))
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=PLAIN)


def test_for_few_queries_keys_and_values_are_not_laid_out(graph: Any, lowered: Any) -> None:
    content = graph.content(a_query_and_a_cache(graph))
    partition, (got,) = lowered(content, ALL, HALF)
    assert "SOFTMAX" in [s.operator.name for s in partition.operators]
    (want,) = lowered(content)[1]
    np.testing.assert_allclose(got, want, atol=5e-3)


@pytest.mark.parametrize(("queries", "rounds"), [(1, False), (16, True)])
def test_few_rows_are_multiplied_by_a_matrix_as_it_is(queries: int, rounds: bool) -> None:
    """A GPU would write a copy in half precision to memory first."""
    q, k = Arg(np.zeros((3, queries, H), np.float32)), Arg(np.zeros((3, S, H), np.float32))
    case = Case("BATCH_MATMUL", "", [q, k], ADJOINT)
    inputs, outputs = case.specs()
    run = RULES["BATCH_MATMUL"].lower(Op(HALF, ADJOINT, inputs, outputs))
    jaxpr = str(jax.make_jaxpr(run)(q.value, k.value))
    assert (f"f16[3,{S},{H}]" in jaxpr) == rounds


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_elsewhere_it_stays(platform: str, graph: Any, lowered: Any) -> None:
    content = graph.content(as_bert(graph))
    partition, got = lowered(content, ALL, LoweringContext(platform=platform))
    assert "SOFTMAX" in [s.operator.name for s in partition.operators]
    assert_close(got, lowered(content)[1])


def other_beta(g: Any) -> int:
    q, k, v = (g.input(B, N, n, H) for n in (T, S, S))
    logits = g("BATCH_MATMUL", q, k, options=ADJOINT)
    shares = g("SOFTMAX", logits, options=SoftmaxOptions(beta=2.0))
    return g("BATCH_MATMUL", shares, v, options=PLAIN)


def scaled_mask(g: Any) -> int:
    q, k, v = (g.input(B, N, n, H) for n in (T, S, S))
    logits = g("ADD", g("BATCH_MATMUL", q, k, options=ADJOINT), g.input(B, 1, T, S))
    shares = g("SOFTMAX", g("MUL", logits, 0.25), options=ONE)
    return g("BATCH_MATMUL", shares, v, options=PLAIN)


def gated(g: Any) -> int:
    q, k, v = (g.input(B, N, n, H) for n in (T, S, S))
    logits = g("MUL", g("BATCH_MATMUL", q, k, options=ADJOINT), g.input(B, N, T, S))
    shares = g("SOFTMAX", logits, options=ONE)
    return g("BATCH_MATMUL", shares, v, options=PLAIN)


def shared_keys(g: Any) -> int:
    """One product for all heads: the batch of the keys is broadcast."""
    q, k, v = g.input(B, N, T, H), g.input(B, 1, S, H), g.input(B, N, S, H)
    logits = g("BATCH_MATMUL", q, k, options=ADJOINT)
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=PLAIN)


def wide_values(g: Any) -> int:
    q, k, v = g.input(B, N, T, H), g.input(B, N, S, H), g.input(B, N, S, 2 * H)
    logits = g("BATCH_MATMUL", q, k, options=ADJOINT)
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=PLAIN)


def narrow_heads(g: Any) -> int:
    q, k, v = (g.input(B, N, n, 6) for n in (T, S, S))
    logits = g("BATCH_MATMUL", q, k, options=ADJOINT)
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=PLAIN)


def activated(g: Any) -> int:
    q, k, v = (g.input(B, N, n, H) for n in (T, S, S))
    o = MulOptions(ActivationFunctionType.RELU)
    logits = g("MUL", g("BATCH_MATMUL", q, k, options=ADJOINT), 0.25, options=o)
    return g("BATCH_MATMUL", g("SOFTMAX", logits, options=ONE), v, options=PLAIN)


@pytest.mark.parametrize(
    "write",
    [other_beta, scaled_mask, gated, shared_keys, wide_values, narrow_heads, activated],
)
def test_what_only_looks_like_it_stays(write: Write, graph: Any, lowered: Any) -> None:
    content = graph.content(write(graph))
    before, after = lowered(content)[0], lowered(content, ALL, GPU)[0]
    assert [s.operator.name for s in after.operators] == [s.operator.name for s in before.operators]


def test_shares_that_are_read_elsewhere_stay(graph: Any, lowered: Any) -> None:
    q, k, v = (graph.input(B, N, n, H) for n in (T, S, S))
    shares = graph("SOFTMAX", graph("BATCH_MATMUL", q, k, options=ADJOINT), options=ONE)
    y = graph("BATCH_MATMUL", shares, v, options=PLAIN)
    for outputs in ((y, shares), (y, graph("ABS", shares))):
        content = graph.content(*outputs)
        assert "SOFTMAX" in [s.operator.name for s in lowered(content, ALL, GPU)[0].operators]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("queries", [5, 20])
def test_our_own_kernel_takes_few_and_many_queries(queries: int, graph: Any, lowered: Any) -> None:
    q, k, v = (heads_first(graph, graph.input(B, n, N, H)) for n in (queries, S, S))
    logits = graph("MUL", graph("BATCH_MATMUL", q, k, options=ADJOINT), 0.25)
    shares = graph("SOFTMAX", graph("ADD", logits, graph.input(B, 1, 1, S)), options=ONE)
    content = graph.content(graph("BATCH_MATMUL", shares, v, options=PLAIN))
    partition, got = lowered(content, ALL, LoweringContext(kernels=KernelSet(cpu=True)))
    names = [s.operator.name for s in partition.operators]
    assert "fused_attention" in names
    assert_close(got, lowered(content)[1], accumulated=H)
