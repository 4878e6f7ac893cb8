"""Attention composites: which are fused, and that the fused ones equal their decompositions."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from flatbuffers import flexbuffers

from jaxdelegate.compile.precision_policy import device_policy
from jaxdelegate.op_lowering.control_flow import composite
from jaxdelegate.op_lowering.options import StableHLOCompositeOptions
from jaxdelegate.op_lowering.rule import LoweringContext, Op, SubgraphAccess
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.testing.case import Call, run_together

B, T, S, N, H = 2, 5, 7, 4, 16
BF16 = np.dtype(ml_dtypes.bfloat16)


def decomposition(q: Any, k: Any, v: Any, mask: Any = None) -> tuple[jax.Array]:
    """Attention with the scale 0.25, written out in float32."""
    q, k, v = (a.astype(np.float32) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[2] // a.shape[2], axis=2) for a in (k, v))
    logits = jax.numpy.einsum("btnh,bsnh->bnts", q, k) * np.float32(0.25)
    if mask is not None:
        logits = logits + mask.astype(np.float32)
    return (jax.numpy.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits, -1), v).astype(BF16),)


def options(name: str = "odml.scaled_dot_product_attention", **attributes: float) -> Any:
    data = flexbuffers.Dumps(attributes or {"scale": 0.25})
    return StableHLOCompositeOptions(name, 1, bytes(data))


def specs(*shapes: Sequence[int], dtype: Any = BF16) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"t{i}", tuple(s), np.dtype(dtype)) for i, s in enumerate(shapes))


Q, KV, Y = (B, T, N, H), (B, S, N, H), (B, T, N, H)
GPU = LoweringContext(
    platform="gpu", subgraphs=SubgraphAccess(lambda *_: decomposition, lambda *_: None)
)


def attention(o: Any = None, inputs: Any = None, outputs: Any = None) -> Op[Any]:
    return Op(GPU, o or options(), inputs or specs(Q, KV, KV), outputs or specs(Y))


@pytest.mark.parametrize("heads", [N, 2, 1])
def test_fused_attention_is_its_decomposition(monkeypatch: pytest.MonkeyPatch, heads: int) -> None:
    asked = []
    by_jax = jax.nn.dot_product_attention

    def by_xla(*arrays: Any, implementation: str, **more: Any) -> jax.Array:
        asked.append(implementation)
        *_, bias = arrays
        assert bias is None or bias.shape[1:] == (N, T, S)  # jax's batching of cuDNN's reshapes it
        return by_jax(*arrays, implementation="xla", **more)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    kv = (B, S, heads, H)
    masks = ([], [(B, 1, T, S)], [(1, 1, 1, S)], [(B, N, 1, S)])
    calls: list[Call] = []
    for mask in masks:
        inputs = specs(Q, kv, kv, *mask)
        random = np.random.default_rng(0)
        arrays = [random.normal(size=spec.shape).astype(BF16) for spec in inputs]
        calls.append((composite.STABLEHLO_COMPOSITE.lower(attention(inputs=inputs)), arrays))
    results = run_together(calls)
    assert asked == ["cudnn"] * len(masks)
    for (got,), (_, arrays) in zip(results, calls, strict=True):
        (want,) = decomposition(*arrays)
        assert got.dtype == BF16
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(want, np.float32), atol=2e-2, rtol=2e-2
        )


def test_a_device_without_the_kernel_runs_the_decomposition() -> None:
    inputs = specs(Q, KV, KV)
    arrays = [
        np.random.default_rng(i).normal(size=s.shape).astype(BF16) for i, s in enumerate(inputs)
    ]
    run = composite.STABLEHLO_COMPOSITE.lower(attention(inputs=inputs))
    (got,) = jax.jit(run)(*arrays)  # this machine has no cuDNN
    np.testing.assert_array_equal(np.asarray(got), np.asarray(jax.jit(decomposition)(*arrays)[0]))


def test_the_scale_comes_from_the_attributes() -> None:
    assert composite.fused_scale(attention(options(scale=0.5))) == 0.5


@pytest.mark.parametrize(
    ("o", "inputs", "outputs"),
    [
        (options("odml.rms_norm"), specs(Q, KV, KV), specs(Y)),
        (options(scale=0.5, logit_cap=30.0), specs(Q, KV, KV), specs(Y)),
        (options(epsilon=1e-6), specs(Q, KV, KV), specs(Y)),
        (options(), specs(Q, KV, KV, dtype=np.float32), specs(Y, dtype=np.float32)),
        (options(), specs(Q, KV, KV)[:2], specs(Y)),
        (options(), specs(Q, KV, (B, S + 1, N, H)), specs(Y)),
        (options(), specs(Q, (B, S, 3, H), (B, S, 3, H)), specs(Y)),
        (options(), specs((B, T, N, 6), (B, S, N, 6), (B, S, N, 6)), specs((B, T, N, 6))),
        (options(), specs(Q, KV, KV, (B, 1, T, S + 1)), specs(Y)),
        (options(), (*specs(Q, KV, KV), TensorSpec("m", (B, 1, T, S), np.dtype(bool))), specs(Y)),
        (options(), specs(Q, KV, KV, (T, S)), specs(Y)),
    ],
    ids=["name", "cap", "no-scale", "float32", "inputs", "keys", "heads", "head-size", "mask",
         "boolean-mask", "mask-rank"],
)  # fmt: skip
def test_what_is_not_fused(o: Any, inputs: Any, outputs: Any) -> None:
    assert composite.fused_scale(attention(o, inputs, outputs)) is None


def test_damaged_attributes_are_not_fused() -> None:
    o = StableHLOCompositeOptions("odml.scaled_dot_product_attention", 1, b"\xff\xff")
    assert composite.fused_scale(attention(o)) is None


def test_nothing_is_fused_on_a_cpu() -> None:
    assert composite.fused_scale(attention().in_context(platform="cpu")) is None


def test_a_policy_of_short_factors_fuses_float32_attention() -> None:
    wide = [tuple(dataclasses.replace(s, dtype=np.dtype(np.float32)) for s in given)
            for given in (specs(Q, KV, KV), specs(Y))]  # fmt: skip
    op = attention(options(scale=0.5), *wide)
    assert composite.fused_scale(op.in_context(precision=device_policy("bfloat16"))) == 0.5
    assert composite.fused_scale(op) is None
