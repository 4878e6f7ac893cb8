"""The precision policy, without any graph: dtypes of factors, sums and constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.compile.precision_policy import cpu_policy, device_policy
from jaxdelegate.op_lowering import precision
from jaxdelegate.op_lowering.common.downcast import downcast, upcast
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Conv2DOptions,
    FullyConnectedOptions,
    Padding,
    record_of,
)
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT16, FLOAT32, PrecisionPolicy
from jaxdelegate.op_lowering.records.operator import Result
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec

BF16_CPU = cpu_policy("bfloat16", frozenset(["avx512_bf16"]))

# Operators whose results stay in float32 under every policy.
OVERFLOW_PRONE = (
    "SUM", "MEAN", "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION",
    "L2_POOL_2D", "EXP", "POW", "SQUARE", "SQUARED_DIFFERENCE", "CUMSUM", "REDUCE_PROD",
    "SEGMENT_SUM", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "STABLEHLO_REDUCE",
    "STABLEHLO_EXPONENTIAL", "STABLEHLO_POWER", "STABLEHLO_COMPOSITE", "DIV", "RSQRT", "RANGE",
    "CAST", "WHILE", "IF", "CALL",
)  # fmt: skip


@pytest.mark.parametrize("name", OVERFLOW_PRONE)
def test_overflow_prone_operators_stay_in_float32(name: str) -> None:
    assert name in RULES
    assert record_of(name).precision.result is Result.FLOAT32


def test_policies_are_hashable_values() -> None:
    assert hash(device_policy("float16")) == hash(device_policy("float16"))
    assert device_policy("float16") != device_policy("bfloat16")


def test_finite_values_saturate_and_others_pass() -> None:
    x = np.array([1e9, -7e4, 65519, 1.5, np.inf, -np.inf, np.nan], np.float32)
    want = np.array([65504, -65504, 65504, 1.5, np.inf, -np.inf, np.nan], np.float16)
    np.testing.assert_array_equal(downcast(x, FLOAT16), want)
    np.testing.assert_array_equal(downcast(jnp.asarray(x), FLOAT16), want)
    np.testing.assert_array_equal(downcast(jnp.asarray(x), FLOAT16, exactly=True), want)


def test_infinities_of_products_saturate_too() -> None:
    x = jnp.asarray([1e9, -np.inf, 1.5, np.nan], jnp.float32)
    want = np.array([65504, -65504, 1.5, np.nan], np.float16)
    np.testing.assert_array_equal(downcast(x, FLOAT16, infinities=False), want)


def test_downcast_reads_a_product_once() -> None:
    """XLA:GPU ends a product in a chain of operations, not where its sums are read twice."""
    jaxpr = jax.make_jaxpr(lambda x: downcast(x, FLOAT16, infinities=False))(np.ones(2, np.float32))
    (x,) = jaxpr.jaxpr.invars
    assert sum(x in equation.invars for equation in jaxpr.jaxpr.eqns) == 1


def test_the_lowest_float32_is_finite_in_bfloat16() -> None:
    lowest = jnp.asarray([np.finfo(np.float32).min])
    assert np.isfinite(np.asarray(downcast(lowest, BFLOAT16)).astype(np.float32))


def test_an_overflowed_reduced_result_is_upcast_to_a_finite_one() -> None:
    y = jnp.asarray([np.inf, -np.inf, 2, np.nan], jnp.float16)
    np.testing.assert_array_equal(upcast(y, FLOAT32), np.float32([65504, -65504, 2, np.nan]))


def test_exact_rounding_survives_xla() -> None:
    x = np.float32([1 + 2**-12, 1 + 2**-9])

    def there_and_back(x: jax.Array) -> jax.Array:
        return downcast(x, FLOAT16, exactly=True).astype(jnp.float32)

    np.testing.assert_array_equal(jax.jit(there_and_back)(x), [1, 1 + 2**-9])


@pytest.mark.parametrize(
    ("const", "reason"),
    [
        ([70000, 1], "beyond float16's 65504"),
        ([1e-6, 2e-6], "below float16's normal range"),
        ([1e-12], "below float16's normal range"),
        ([0.1, 1e-9], None),
        ([0, 0], None),
        ([np.inf, 1], None),
        ([], None),
        ([1e-30, 1e-38], "below float16's normal range"),
    ],
)
def test_constants_that_float16_does_not_hold(const: list[float], reason: str | None) -> None:
    found = precision.why_not_float16(np.float32(const))
    assert found is None if reason is None else reason in str(found)


def test_only_large_constants_are_reduced_on_the_device() -> None:
    policy = device_policy("float16")
    large = np.ones(16 * 1024, np.float32)
    assert policy.constant(large) == FLOAT16
    assert policy.constant(large[1:]) == FLOAT32
    assert policy.constant(1e5 * large) == FLOAT32
    assert policy.constant(large.astype(np.int32)) == np.int32
    assert PrecisionPolicy().constant(large) == FLOAT32


def specs(*shapes: tuple[int, ...], const: np.ndarray | None = None) -> tuple[TensorSpec, ...]:
    made = [TensorSpec(f"t{i}", shape, FLOAT32) for i, shape in enumerate(shapes)]
    if const is not None:
        made[1] = TensorSpec("w", const.shape, FLOAT32, const=const)
    return tuple(made)


def lowered(
    name: str,
    options: object,
    inputs: tuple[TensorSpec, ...],
    y: tuple[int, ...],
    **context: object,
) -> Function:
    rule, where = RULES[name], LoweringContext(**context)  # type: ignore[arg-type]
    output = TensorSpec("y", y, FLOAT32)
    assert rule.reason(Op(where, options, inputs, (output,))) is None  # type: ignore[arg-type]
    return rule.lower(Op(where, options, inputs, (output,)))


def product(run: Function, inputs: tuple[TensorSpec, ...]) -> tuple[list[str], str, str]:
    """Factor dtypes, result dtype and precision of the one product in the traced function."""
    arrays = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in inputs]
    equations = jax.make_jaxpr(run)(*arrays).eqns
    (found,) = [e for e in equations if e.primitive.name in _PRODUCTS]
    kept = found.params["precision"]
    highest = "highest" if kept == (jax.lax.Precision.HIGHEST,) * 2 else str(kept)
    return [str(v.aval.dtype) for v in found.invars], str(found.outvars[0].aval.dtype), highest


_PRODUCTS = ("dot_general", "conv_general_dilated")
_CONV = (
    "CONV_2D",
    Conv2DOptions(Padding.SAME, 1, 1),
    ((1, 8, 8, 16), (64, 3, 3, 16)),
    (1, 8, 8, 64),
)
_DENSE = ("FULLY_CONNECTED", FullyConnectedOptions(), ((64, 96), (64, 96)), (64, 64))
_ROW = ("FULLY_CONNECTED", FullyConnectedOptions(), ((1, 96), (64, 96)), (1, 64))
_BATCHES = ("BATCH_MATMUL", BatchMatMulOptions(), ((2, 64, 8), (2, 8, 64)), (2, 64, 64))


@pytest.mark.parametrize(
    ("platform", "policy", "case", "factor", "result", "is_highest"),
    [
        ("gpu", PrecisionPolicy(), _CONV, "float32", "float32", True),
        ("gpu", PrecisionPolicy(), _DENSE, "float32", "float32", True),
        ("gpu", device_policy("float16"), _CONV, "float16", "float16", False),
        ("gpu", device_policy("float16"), _DENSE, "float16", "float32", False),
        ("gpu", device_policy("float16"), _BATCHES, "float16", "float32", False),
        ("gpu", device_policy("bfloat16"), _CONV, "bfloat16", "bfloat16", False),
        ("gpu", device_policy("float16", "gpu", False), _DENSE, "float16", "float16", False),
        ("tpu", device_policy("bfloat16", "tpu"), _CONV, "bfloat16", "float32", False),
        ("cpu", PrecisionPolicy(), _DENSE, "float32", "float32", True),
        ("cpu", BF16_CPU, _CONV, "float32", "float32", True),
        ("cpu", BF16_CPU, _DENSE, "bfloat16", "float32", False),
        ("cpu", BF16_CPU, _BATCHES, "bfloat16", "float32", False),
        ("cpu", BF16_CPU, _ROW, "float32", "float32", True),
    ],
)
def test_factors_and_sums_of_products(
    platform: str,
    policy: PrecisionPolicy,
    case: tuple[str, object, tuple[tuple[int, ...], ...], tuple[int, ...]],
    factor: str,
    result: str,
    is_highest: bool,
) -> None:
    name, options, shapes, y = case
    inputs = specs(*shapes)
    run = lowered(name, options, inputs, y, platform=platform, precision=policy)
    factors, total, kept = product(run, inputs)
    assert (factors, total, kept == "highest") == ([factor, factor], result, is_highest)


def test_tensorfloat32_is_a_precision_of_float32_products() -> None:
    inputs = specs(*_DENSE[2])
    policy = device_policy("tensorfloat32")
    run = lowered(*_DENSE[:2], inputs, _DENSE[3], platform="gpu", precision=policy)
    factors, total, kept = product(run, inputs)
    assert (factors, total) == (["float32", "float32"], "float32")
    assert "HIGH" in kept
    assert kept != "highest"


def test_weights_are_prepared_in_the_factors_dtype() -> None:
    w = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    inputs = specs((64, 96), (64, 96), const=w)
    run = lowered(*_DENSE[:2], inputs, (64, 64), platform="gpu", precision=device_policy("float16"))
    assert isinstance(run, Lowered)
    np.testing.assert_array_equal(run.prepare[1](w), w.astype(np.float16))


def test_weights_beyond_float16_keep_their_product_in_float32() -> None:
    w = np.full((64, 96), 1e5, np.float32)
    inputs = specs((64, 96), (64, 96), const=w)
    run = lowered(*_DENSE[:2], inputs, (64, 64), platform="gpu", precision=device_policy("float16"))
    assert product(run, inputs)[0] == ["float32", "float32"]


def test_a_product_takes_reduced_inputs() -> None:
    x = np.random.default_rng(1).normal(size=(64, 96)).astype(np.float16)
    w = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    inputs = specs((64, 96), (64, 96))
    run = lowered(*_DENSE[:2], inputs, (64, 64), platform="gpu", precision=device_policy("float16"))
    assert isinstance(run, Lowered)
    assert run.takes_reduced
    (y,) = run(jnp.asarray(x), jnp.asarray(w))
    want = x.astype(np.float64) @ w.astype(np.float16).astype(np.float64).T
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-4)
