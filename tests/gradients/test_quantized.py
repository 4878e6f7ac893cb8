"""Derivatives of quantized operators in the float view; integers have none.

A quantized operator between QUANTIZE and DEQUANTIZE has the derivative of the same operator on
dequantized values, except for results outside the range of their grid, whose slope is zero.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import GradientError
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.op_lowering.options import FakeQuantOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import integer_range
from jaxdelegate.testing import Case, ModelBuilder
from jaxdelegate.testing.case import COMPILER_OPTIONS
from tests.support.case_tables import cases_in, is_quantized
from tests.support.derivatives import weights
from tests.support.quantized import scaled

# Values between the gates leave their grids, and cases that a model of floats does not take.
NOT_COMPARED = {
    "LSTM-lowest-zero-points",
    "LSTM-highest-zero-points",
    *(
        f"{name}-volume-{dtype}"
        for name in ("AvgPool3D", "MaxPool3D")
        for dtype in ("int8", "int16")
    ),
}
OPERATOR_TESTS = Path(__file__).parents[1] / "op_lowering"
Arrays = dict[str, Any]
# Their integer arithmetic rounds inside, too: what is derived is near the floats' only.
ROUNDING_INSIDE = {"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "SVDF"}


def between_floats(case: Case) -> bytes:
    """A model of floats around the operator."""
    inputs, outputs = case.specs()
    builder = ModelBuilder(str(case))
    outer = {
        i: builder.input(s.shape, _float(s), f"x{i}") for i, s in enumerate(inputs) if _is_live(s)
    }
    operands = [spec and _operand(builder, spec, outer.get(i)) for i, spec in enumerate(inputs)]
    results = [_tensor(builder, spec) for spec in outputs]
    between = [_tensor(builder, spec) for spec in case.intermediate_specs()]
    options = None if case.options is None else case.op_options
    builder.operator(
        case.name, operands, results, options, version=case.version, intermediates=between
    )
    builder.outputs(*(_as_floats(builder, s, y) for s, y in zip(outputs, results, strict=True)))
    return builder.build()


def _is_live(spec: TensorSpec | None) -> bool:
    return spec is not None and spec.const is None and not spec.is_variable


def _float(spec: TensorSpec) -> np.dtype:
    return np.dtype(np.float32) if spec.is_quantized else spec.dtype


def _tensor(builder: ModelBuilder, spec: TensorSpec) -> int:
    return builder.tensor(
        spec.shape,
        spec.dtype,
        spec.name,
        quantization=spec.quantization,
        is_variable=spec.is_variable,
    )


def _operand(builder: ModelBuilder, spec: TensorSpec, outer: int | None) -> int:
    if spec.const is not None:
        return builder.constant(spec.const, spec.name, quantization=spec.quantization)
    if outer is None or not spec.is_quantized:
        return _tensor(builder, spec) if outer is None else outer
    inner = _tensor(builder, spec)
    builder.operator("QUANTIZE", [outer], [inner])
    return inner


def _as_floats(builder: ModelBuilder, spec: TensorSpec, y: int) -> int:
    if not spec.is_quantized:
        return y
    result = builder.tensor(spec.shape)
    builder.operator("DEQUANTIZE", [y], [result])
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """A quantized case: the slopes of its float inputs and weights by position, both ways."""

    case: Case
    values: Arrays
    slopes: Callable[[Arrays], tuple[Arrays, Arrays]]  # of the model, of the operator on floats

    @classmethod
    def of(cls, case: Case) -> "Compared | None":
        """None if the float view does not support the operator, or it has no derivatives."""
        inputs, outputs = case.specs()
        if fake_quantization.why_not(case.name, case.op_options, inputs, outputs) is not None:
            return None
        if fake_quantization.is_on_integers(case.name, inputs, outputs):
            return None
        given = [s and as_floats(s, a) for s, a in zip(inputs, case.arrays(), strict=True)]
        values = {key(i): a for i, a in enumerate(given) if is_derived(inputs[i], a)}
        if not values or not any(map(is_inexact, outputs)):
            return None
        model, floats, grids = (
            of_model(case),
            of_operator(case, given),
            [ends(s) for s in outputs if is_inexact(s)],
        )

        def slopes(values: Arrays) -> tuple[Arrays, Arrays]:
            y, pull = jax.vjp(model, values)
            asked = weights(y)
            z, pull_floats = jax.vjp(floats, values)
            kept = [within(*each) for each in zip(asked, z, grids, strict=True)]
            return pull(asked)[0], pull_floats(kept)[0]

        return cls(case, values, slopes)

    def faults(self, found: tuple[Arrays, Arrays]) -> Iterator[str]:
        """The slopes that differ from the floats' by more than rounding."""
        for i in found[1]:
            got, want = (np.asarray(each[i], np.float64) for each in found)
            known = np.isfinite(want)  # roots and logarithms of what has none
            got, want = got[known], want[known]
            size, error = np.linalg.norm(want), np.linalg.norm(got - want)
            near = error <= 1e-3 * size
            if self.case.name in ROUNDING_INSIDE:
                near = np.vdot(got, want) >= 0.8 * size * np.linalg.norm(got)
            if not (near and known.any()):
                yield f"{self.case}: by input {i}, off by {error:.3g} of {size:.3g}"


def key(position: int) -> str:
    return f"{position:02}"


def is_inexact(spec: TensorSpec) -> bool:
    return spec.is_quantized or spec.dtype == np.float32


def is_derived(spec: TensorSpec | None, array: Any) -> bool:
    return spec is not None and is_inexact(spec) and not spec.is_variable and array.size > 0


def as_floats(spec: TensorSpec, array: Any) -> np.ndarray:
    q = spec.quantization
    return np.asarray(array) if q is None or not spec.is_quantized else affine.dequantize(array, q)


def ends(spec: TensorSpec) -> np.ndarray | None:
    """The ends of a grid, as floats."""
    if not is_inexact(spec) or not spec.is_quantized:
        return None
    return as_floats(spec, np.array(integer_range(spec.dtype), spec.dtype))


def within(asked: Any, y: jax.Array, ends: np.ndarray | None) -> jax.Array:
    """Weights, set to zero where a result is outside its grid's range."""
    if ends is None:
        return jnp.asarray(asked)
    return jnp.where((y >= ends[0]) & (y <= ends[1]), asked, 0 * asked)


def of_model(case: Case) -> Callable[[Arrays], list[Any]]:
    """The model around the operator, whose weights are parameters."""
    inputs, outputs = case.specs()
    apply, params = jd.load(between_floats(case)).function()
    names = {key(i): s.name for i, s in enumerate(inputs) if s is not None and s.const is not None}

    def model(values: Arrays) -> list[Any]:
        chosen = {names[i]: x for i, x in values.items() if names.get(i) in params}
        given = zip(inputs, case.arrays(), strict=True)
        live = [values.get(key(i), a) for i, (s, a) in enumerate(given) if _is_live(s)]
        return inexact(apply({**params, **chosen}, *live), outputs)

    return model


def inexact(results: Iterable[Any], outputs: Sequence[TensorSpec]) -> list[Any]:
    return [y for y, spec in zip(results, outputs, strict=False) if is_inexact(spec)]


def of_operator(case: Case, given: Sequence[Any]) -> Callable[[Arrays], list[Any]]:
    """The operator on floats, without grids."""
    inputs, outputs = case.specs()
    lowered = RULES[case.name].lower(
        Op(
            LoweringContext(op_version=case.version),
            fake_quantization.options_of(case.op_options, inputs),
            fake_quantization.viewed_all(inputs),
            fake_quantization.viewed_all(outputs),
        ),
    )
    compute = jax.jit(lambda values: lowered(*(values.get(key(i), a) for i, a in enumerate(given))))

    def call(values: Arrays) -> list[Any]:
        with jax.enable_x64(True):
            return inexact(compute(values), outputs)

    return call


def kinds(case: Case) -> tuple[Any, ...]:
    """The kind of a case: operator, dtypes, and whether scales are per channel."""
    specs = [spec for each in case.specs() for spec in each if spec is not None]
    scales = [spec.quantization for spec in specs]
    per_channel = any(q is not None and q.is_per_channel for q in scales)
    return case.name, *(spec.dtype for spec in specs if spec.is_quantized), per_channel


def separated(case: Case) -> Case:
    """The case, off the point where the slope is zero, and what is found there is rounding."""
    x, other = case.inputs[:2] if case.name == "SQUARED_DIFFERENCE" else (None, None)
    if x is None or other is None or not np.array_equal(x.value, other.value):
        return case
    top = np.iinfo(x.value.dtype).max
    steps = 1 + np.arange(x.value.size).reshape(x.value.shape) % 100
    moved = np.where(x.value > top - 100, x.value - steps, x.value + steps)
    return case.with_inputs({1: dataclasses.replace(other, value=moved.astype(other.value.dtype))})


def one_of_each(names: Iterable[str]) -> list[Case]:
    """The first case of each kind."""
    found: dict[tuple[Any, ...], Case] = {}
    for case in itertools.chain(*(cases_in(OPERATOR_TESTS).get(name, ()) for name in names)):
        if str(case) in NOT_COMPARED:
            continue
        if is_quantized(case) and is_inexact(case.specs()[1][0]):
            found.setdefault(kinds(case), separated(case))
    return list(found.values())


def wrong(cases: Iterable[Case]) -> list[str]:
    every = [c for c in map(Compared.of, cases) if c is not None]
    values = [c.values for c in every]

    def program(values: Sequence[Arrays]) -> list[Any]:
        return [c.slopes(x) for c, x in zip(every, values, strict=True)]

    results = jax.jit(program).lower(values).compile(COMPILER_OPTIONS)(values)
    pairs = zip(every, results, strict=True)
    return list(itertools.chain(*(compared.faults(found) for compared, found in pairs)))


FEW = [
    "ADD",
    "MUL",
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED",
    "LOGISTIC",
    "SOFTMAX",
    "CONCATENATION",
    "PAD",
    "AVERAGE_POOL_2D",
    "MAX_POOL_2D",
    "RESIZE_BILINEAR",
]


@pytest.mark.slow
def test_quantized_operators_are_derived_as_on_floats() -> None:
    faults = wrong(case for name in FEW for case in one_of_each([name])[:1])
    assert not faults, "\n".join(faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted({*RULES} - {"QUANTIZE", "DEQUANTIZE", "NumericVerify"}))
def test_all_quantized_operators(name: str) -> None:
    faults = wrong(one_of_each([name]))
    assert not faults, "\n".join(faults)


# ---- operators that round, alone


def rounding(name: str, options: Any = None, between: Sequence[Any] = ()) -> bytes:
    """Floats that go through grids."""
    builder = ModelBuilder()
    x = builder.input((5,))
    for dtype, quantization in between:
        y = builder.tensor((5,), dtype, quantization=quantization)
        builder.operator("QUANTIZE", [x], [y])
        x = y
    y = builder.tensor((5,))
    builder.operator(name, [x], [y], options)
    builder.outputs(y)
    return builder.build()


INT8, INT16, UINT8 = (np.dtype(t) for t in (np.int8, np.int16, np.uint8))
ROUNDING = {
    "int8": rounding("DEQUANTIZE", between=[(INT8, scaled(0.03, 3))]),
    "requantized": rounding(
        "DEQUANTIZE",
        between=[(INT8, scaled(0.04)), (INT8, scaled(0.03, 3)), (UINT8, scaled(0.05, 128))],
    ),
    "wider": rounding("DEQUANTIZE", between=[(INT8, scaled(0.03)), (INT16, scaled(0.001))]),
    "FAKE_QUANT": rounding("FAKE_QUANT", FakeQuantOptions(-3.5, 3.5, 8)),
    "narrow": rounding("FAKE_QUANT", FakeQuantOptions(-3.5, 3.5, 4, narrow_range=True)),
}


@pytest.mark.parametrize("model", ROUNDING.values(), ids=ROUNDING.keys())
def test_rounding_has_the_slope_of_what_it_rounds(model: bytes) -> None:
    apply, params = jd.load(model).function()
    x = np.float32([-9, -1.234, 0.001, 2.345, 9])
    y, pull = jax.vjp(lambda x: apply(params, x)[0], x)
    assert np.any(np.asarray(y)[1:4] != x[1:4])
    np.testing.assert_array_equal(pull(np.full(5, 2, np.float32))[0], [0, 2, 2, 2, 0])


# ---- integers


def dense(*, quantized: bool) -> bytes:
    """int8 weights: with int8 activations around, or with floats (dynamic range)."""
    builder = ModelBuilder()
    x = builder.input((1, 4))
    if quantized:
        inner = builder.tensor((1, 4), np.int8, "inner", quantization=scaled(0.05))
        builder.operator("QUANTIZE", [x], [inner])
        x = inner
    w = builder.constant(np.int8([[1, 2, 3, 4], [5, -6, 7, -8]]), "w", quantization=scaled(0.1))
    more: Any = {"quantization": scaled(0.1)} if quantized else {}
    bias = [] if quantized else [builder.constant(np.float32([1, 2]), "b")]
    y = builder.tensor((1, 2), np.int8 if quantized else np.float32, "y", **more)
    builder.operator("FULLY_CONNECTED", [x, w, *bias], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


X = np.float32([[0.5, -1, 2, 0.25]])


def slopes(content: bytes, by: str = "x", **options: Any) -> Any:
    apply, params = jd.load(content, **options).function()

    def loss(given: Any) -> jax.Array:
        (y,) = apply({**params, by: given}, X) if by != "x" else apply(params, given)
        return y.astype(np.float32).sum()

    return jax.jit(jax.grad(loss))(X if by == "x" else params[by])


@pytest.mark.parametrize(
    ("is_quantized", "said"), [(True, "QUANTIZE makes 'inner' int8"), (False, "dynamic range")]
)
def test_integer_arithmetic_has_no_derivative(is_quantized: bool, said: str) -> None:
    with pytest.raises(GradientError, match=f"{said}.*quant_mode='float_view'"):
        slopes(dense(quantized=is_quantized), quant_mode="integer")
    assert issubclass(GradientError, TypeError)


def test_an_integer_output_has_no_derivative() -> None:
    with pytest.raises(GradientError, match=r"output 'y' is int8.*io=\"float\""):
        slopes(dense(quantized=True))


def test_what_integers_do_not_hide_is_derived() -> None:
    np.testing.assert_array_equal(slopes(dense(quantized=False), "b", quant_mode="integer"), [1, 1])


def test_integers_without_derivatives_are_batched_and_compiled() -> None:
    apply, params = jd.load(dense(quantized=True), quant_mode="integer").function()
    several = np.stack([X, 2 * X])
    (y,) = jax.jit(jax.vmap(lambda x: apply(params, x)))(several)
    np.testing.assert_array_equal(y[1], apply(params, 2 * X)[0])
