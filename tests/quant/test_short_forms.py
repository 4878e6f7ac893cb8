"""Short forms have all results of the arithmetic that they replace, and replace most of it."""

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType, AddOptions, MulOptions, Options
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.quant.fixed_point import multiply_by_quantized_multiplier
from jaxdelegate.quant.jax_requantize import rescale_steps
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.short_forms import (
    STEPS,
    ShortSum,
    short_product,
    short_products,
    short_sum,
)
from jaxdelegate.testing import Arg, Case
from tests.support.quantized import scaled

EVERY = np.arange(-STEPS, STEPS + 1, dtype=np.int32)
RNG = np.random.default_rng(0)
# Powers of two and quotients of small integers have ties.
REALS = (
    *(2.0**n for n in range(-12, 6)),
    *(float(np.float32(a) / np.float32(b)) for a, b in RNG.integers(1, 60, (30, 2))),
    *np.exp2(RNG.uniform(-12, 5, 30)).tolist(),
)


@pytest.mark.parametrize("real", REALS)
def test_a_short_product_rounds_as_litert(real: float) -> None:
    pair = quantize_multiplier(real)
    form = short_product(*pair)
    assert form is not None
    assert np.abs(EVERY.astype(np.int64) * form.factor).max() < 2**31
    want = multiply_by_quantized_multiplier(EVERY, *pair)
    assert np.array_equal(form(EVERY), want)
    assert np.array_equal(jax.jit(form)(EVERY), want)


def test_there_is_no_short_product_of_large_factors() -> None:
    pairs = [quantize_multiplier(real) for real in (981.3463471855881, 274.6017062547051, 2.0**23)]
    assert {short_product(*pair) for pair in pairs} == {None}
    for pair in pairs:
        with jax.enable_x64(True):
            got = rescale_steps(jax.numpy.asarray(EVERY), *pair, np.dtype(np.int8))
        assert np.array_equal(got, multiply_by_quantized_multiplier(EVERY, *pair))


@pytest.mark.parametrize("real", REALS[::5])
def test_each_constant_has_a_short_product(real: float) -> None:
    pair = quantize_multiplier(real / 64)
    constants = np.array([0, 1, -1, 127, -128, 255, -255, 3, 3, -77], np.int32)
    form = short_products(*pair, constants)
    assert form is not None
    want = multiply_by_quantized_multiplier(EVERY[:, None] * constants, *pair)
    assert np.array_equal(form(EVERY[:, None]), want)
    turned = short_products(*pair, constants.reshape(10, 1))
    assert turned is not None
    assert np.array_equal(turned(EVERY), want.T)


def test_a_short_sum_is_one_that_is_right() -> None:
    tried = list[ShortSum]()

    def is_right(form: ShortSum) -> bool:
        tried.append(form)
        return len(tried) == 4

    assert short_sum((0.7, -0.3), is_right) is tried[-1]
    assert len({form.carry for form in tried}) == 4
    assert short_sum((0.7, -0.3), lambda _: False) is None
    assert short_sum((2.0**24, 1.0), lambda _: True) is None  # beyond int32
    reals = 0.7 * EVERY[:, None] - 0.3 * EVERY
    assert np.abs(tried[0](EVERY[:, None], EVERY) - reals).max() <= 0.5 + 1e-5


def _case(name: str, options: Options, b: Arg) -> Case:
    column = np.arange(-128, 128).astype(np.int8).reshape(-1, 1)
    return Case(
        name,
        "short",
        [Arg(column, quantization=scaled(0.021, 5)), b],
        options,
        outputs=["int8"],
        output_quantization=[scaled(0.033, -7)],
        version=2,
    )


ROW = np.arange(-128, 128).astype(np.int8).reshape(1, -1)
CASES = [
    _case(
        "ADD",
        AddOptions(ActivationFunctionType.NONE, pot_scale_int16=False),
        Arg(ROW, quantization=scaled(0.017, -20)),
    ),
    _case("MUL", MulOptions(), Arg(ROW, is_const=True, quantization=scaled(0.017, -20))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_use_short_forms(case: Case) -> None:
    rule = RULES[case.name]
    case.check(case.run_lowered(rule), case.run_reference())
    call, arrays = case.lowered_call(rule)
    with jax.enable_x64(True):
        text = jax.jit(call).trace(*arrays).lower(lowering_platforms=("cpu",)).as_text()
    assert "multiply" in text
    assert "i64>" not in text
