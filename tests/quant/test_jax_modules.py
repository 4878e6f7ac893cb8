"""Results for traced arrays equal numpy's bit for bit, on corners and samples of the domain."""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.quant import (
    affine,
    eigen,
    fixed_math,
    fixed_point,
    jax_affine,
    jax_fixed_point,
    jax_requantize,
    lookup,
    requantize,
)
from jaxdelegate.quant.multiplier import quantize_multipliers
from jaxdelegate.quant.params import Blockwise
from jaxdelegate.testing.case import run_together
from tests.support.quantized import scaled

LOW, HIGH = -(2**31), 2**31 - 1
COUNTERPARTS = {affine: jax_affine, fixed_point: jax_fixed_point, requantize: jax_requantize}
# Modules whose functions serve both: the argument that makes them take traced arrays.
SHARED: dict[ModuleType, dict[str, ModuleType]] = {
    eigen: {"arithmetic": jax_affine},
    fixed_math: {"fixed": jax_fixed_point},
    lookup: {"xp": jnp},
}


def _integers(n: int, dtype: type = np.int32, seed: int = 0) -> np.ndarray:
    """Corners, then integers of every magnitude."""
    rng, info = np.random.default_rng(seed), np.iinfo(dtype)
    bits = info.bits
    corners = [info.min, info.min + 1, info.max, info.max - 1, -2, -1, 0, 1, 2]
    wide = rng.integers(info.min, info.max, n, dtype=np.int64, endpoint=True)
    return np.concatenate([corners, wide >> rng.integers(0, bits, n)]).astype(dtype)


X32, Y32 = _integers(5000), _integers(5000, seed=1)[::-1].copy()
X16, Y16 = _integers(5000, np.int16), _integers(5000, np.int16, seed=1)[::-1].copy()
INT8 = np.arange(-128, 128).astype(np.int8)
INT16 = np.arange(-(2**15), 2**15).astype(np.int16)
POSITIVE = X32[X32 > 0]
X64 = np.concatenate([[-(2**47), 2**47 - 1], X32.astype(np.int64) << 16, X32])
REALS = 2.0 ** np.linspace(-31, 30, X32.size) * np.linspace(1, 1.99, X32.size)
MULTIPLIERS, SHIFTS = quantize_multipliers(REALS)
EXPONENTS = np.arange(X32.size, dtype=np.int32) % 32
FLOATS = np.random.default_rng(2).normal(0, 3, (40, 33)).astype(np.float32)
FLOATS[3] = 0
FLOATS[4] = 1.5
FLOATS[5] = -np.abs(FLOATS[5])
EXTREMES = np.float32([0, -0.0, 7.9, 8, -8, 16.7, -87, -104.1, 1e30, -1e30, np.inf, -np.inf])
TABLE8 = lookup.lookup_table(lookup.gelu, 0.05, 3, 0.04, -5, np.dtype(np.int8))
TABLE16 = lookup.lookup_table(lookup.exp, 1e-4, 0, 7e-4, 0, np.dtype(np.int16))
STEEP = np.where(np.arange(513) % 2, 30000, -30000).astype(np.int16)
SCALES = np.random.default_rng(3).uniform(0.01, 2, (4, 3)).astype(np.float16)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call with numpy and with jax: arrays are traced, the rest is static."""

    function: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    rest: tuple[Any, ...] = ()
    label: str = ""

    def __str__(self) -> str:
        return f"{self.function.__name__}{self.label and '-'}{self.label}"


f, m = fixed_point, fixed_math
ONE, HALF = scaled(1.0, 3), scaled(0.5, -7)
CASES = [
    Case(f.multiply_by_quantized_multiplier, (X32, MULTIPLIERS, SHIFTS), (), "traced"),
    Case(f.multiply_by_quantized_multiplier, (X32,), (MULTIPLIERS, SHIFTS), "static"),
    *(Case(f.multiply_by_quantized_multiplier, (X32,), (HIGH, s), f"{s}") for s in (-31, 0, 31)),
    Case(f.multiply_by_quantized_multiplier, (X32,), (-(2**30), -3), "negative"),
    Case(f.multiply_by_quantized_multiplier_64, (X64,), (2**30 + 12345, -9)),
    Case(f.multiply_by_quantized_multiplier_64, (X64,), (HIGH, 7), "largest"),
    Case(
        f.multiply_by_quantized_multiplier_64,
        (X32.astype(np.int64), MULTIPLIERS, np.minimum(SHIFTS, 7)),
        (),
        "traced",
    ),
    *(
        Case(function, arrays, (), str(arrays[0].dtype))
        for arrays in ((X32, Y32), (X16, Y16))
        for function in (
            f.saturating_rounding_doubling_high_mul,
            f.saturating_doubling_high_mul,
            f.saturating_add,
            f.saturating_sub,
            f.wrapping_add,
            f.wrapping_sub,
            f.rounding_half_sum,
        )
    ),
    Case(f.rounding_divide_by_pot, (X32, EXPONENTS)),
    Case(f.rounding_divide_by_pot, (X16, EXPONENTS), (), "int16"),
    Case(f.saturating_left_shift, (X32, EXPONENTS + 9)),
    Case(f.saturating_left_shift, (X16,), (3,), "int16"),
    Case(f.saturating_multiply_by_pot, (X32, EXPONENTS - 15), (), "traced"),
    *(Case(f.saturating_multiply_by_pot, (X16,), (e,), f"{e}") for e in (-5, 0, 5)),
    Case(f.rescale, (X32,), (5, 12), "down"),
    Case(f.rescale, (X32,), (12, 5), "up"),
    *(Case(f.count_leading_zeros, (x,), (), str(x.dtype)) for x in (X32, X16, X64)),
    *(Case(f.count_leading_sign_bits, (x,), (), str(x.dtype)) for x in (X32, X16, X64)),
    *(
        Case(
            function,
            (x[x <= 0] if function is m.exp_on_negative_values else x,),
            (bits,),
            f"{bits}-{x.dtype}",
        )
        for x, many in ((X32, (0, 3, 5, 12)), (X16, (0, 3, 6)))
        for bits in many
        for function in (m.exp_on_negative_values, m.logistic, m.tanh)
    ),
    Case(m.one_over_one_plus_x, (POSITIVE,)),
    Case(m.one_minus_x_over_one_plus_x, (POSITIVE,)),
    Case(m.log_at_least_one, (POSITIVE,), (12, 5)),
    Case(m.reciprocal, (POSITIVE,), (12,)),
    Case(m.inverse_sqrt, (X32[X32 >= 0],)),
    Case(lookup.lut_lookup, (INT8,), (TABLE8,), "int8"),
    Case(lookup.lut_lookup, (INT8.view(np.uint8),), (TABLE8.view(np.uint8),), "uint8"),
    Case(lookup.lut_lookup, (INT16,), (TABLE16,), "int16"),
    Case(lookup.lut_lookup, (INT16,), (STEEP,), "steep"),
    *(
        Case(function, (INT16,), (multiplier, shift), f"{multiplier}-{shift}")
        for multiplier, shift in ((0, 0), (0, 1), (20132, 14), (400000, 0))
        for function in (lookup.logistic_int16, lookup.tanh_int16)
    ),
    *(
        Case(
            requantize.requantize,
            (q,),
            (scaled(s, z), HALF, np.dtype(to)),
            f"{q.dtype}-{np.dtype(to)}-{s}",
        )
        for q, z in ((INT8, 5), (INT8.view(np.uint8), 127), (INT16, 0), (X32, -9))
        for s in (0.137, 0.75, 3.3)
        for to in (np.int8, np.uint8, np.int16)
    ),
    *(
        Case(
            requantize.requantize_accumulator,
            (X32[:5004].reshape(2, -1, 3).astype(dtype),),
            (
                np.int32([2**30, HIGH, 2**30 + 7]),
                np.int32([-9, 0, 2]),
                3,
                (-100, 127),
                np.dtype(np.int8),
            ),
            np.dtype(dtype).name,
        )
        for dtype in (np.int32, np.int64)
    ),
    *(
        Case(
            requantize.requantize_accumulator_by_real,
            (X32[:5004].reshape(-1, 3),),
            (scale, 3, (-100, 127), np.dtype(np.int8)),
            label,
        )
        for scale, label in ((0.037, "one"), (np.array([0.5, 1e-7, 0.0123]), "channels"))
    ),
    Case(requantize.add_bias, (X32[:5004].reshape(-1, 3), np.int32([HIGH, 0, LOW]))),
    Case(requantize.clamp, (X32,), (-3, 100, np.dtype(np.int16))),
    *(Case(function, (4 * FLOATS,)) for function in (eigen.tanh, eigen.logistic)),
    *(Case(function, (EXTREMES,), (), "extremes") for function in (eigen.tanh, eigen.logistic)),
    Case(affine.round_half_away, (np.concatenate([EXTREMES, np.round(FLOATS[0]) / 2]),)),
    Case(affine.symmetric_quantize, (FLOATS,)),
    Case(affine.asymmetric_quantize, (FLOATS,)),
    Case(affine.asymmetric_quantize, (np.abs(FLOATS).reshape(4, 10, 33),), (), "positive"),
    Case(affine.dequantize, (X32,), (scaled(0.0123, 7),), "int32"),
    Case(
        affine.dequantize,
        (X32[:5004].reshape(2, 3, -1),),
        (scaled([0.1, 0.2, 0.3], [1, 2, 3], 1),),
        "int32 channels",
    ),
    Case(affine.quantize, (FLOATS,), (scaled(0.0, 3), np.dtype(np.int8)), "zero scale"),
    Case(
        affine.dequantize_blocks,
        (INT8.reshape(4, 64)[:, :6], SCALES),
        (None, Blockwise(1, -1, 2)),
        "traced scales",
    ),
    Case(
        affine.dequantize_blocks,
        (INT8.reshape(4, 16, 4)[..., :3], SCALES, np.arange(12).reshape(4, 3)),
        (Blockwise(1, -1, 0, (0, 2)),),
        "zero points",
    ),
    Case(affine.spread, (np.arange(6, dtype=np.float32).reshape(2, 3),), ((4, 6),), "blocks"),
]


@pytest.mark.parametrize("name", sorted({case.function.__name__ for case in CASES}))
def test_jax_agrees_with_numpy(name: str) -> None:
    cases = [case for case in CASES if case.function.__name__ == name]
    calls = [(counterpart(case), list(case.arrays)) for case in cases]
    for case, got in zip(cases, run_together(calls), strict=True):
        want = jax.tree.leaves(case.function(*case.arrays, *case.rest))
        assert [y.dtype for y in got] == [y.dtype for y in want], str(case)
        assert [y.shape for y in got] == [y.shape for y in want], str(case)
        assert [y.tobytes() for y in got] == [y.tobytes() for y in map(np.asarray, want)], str(case)


def counterpart(case: Case) -> Callable[..., Any]:
    """The function for traced arrays; its results as a tuple."""
    module = sys.modules[case.function.__module__]
    function = getattr(COUNTERPARTS.get(module, module), case.function.__name__)
    options = SHARED.get(module, {})
    return lambda *arrays: tuple(jax.tree.leaves(function(*arrays, *case.rest, **options)))


def test_every_function_of_both_is_tried() -> None:
    tried = {(case.function.__module__, case.function.__name__) for case in CASES}
    elsewhere = {"quantize", "dequantize", "fake_quantize"}  # test_affine.py
    helpers = {"high_mul_in_halves", "multiply_in_halves", "unsigned_high_mul"}  # test_halves.py
    helpers |= {"times_real_in_halves", "add_and_clamp"}
    helpers |= {
        "as_float32",
        "wide",
        "wrap",
        "dtype_of",
        "saturate",
        "product",
        "quotient",
        "rounded",
    }
    helpers |= {"quantize_by"}  # test_quantization_aware.py
    helpers |= {"rescale_steps"}  # test_short_forms.py
    for module, traced in COUNTERPARTS.items():
        public = _public_functions(traced) - helpers - elsewhere
        assert public <= set(vars(module))
        assert {n for n in public if (module.__name__, n) not in tried} == set()
    for module, options in SHARED.items():
        shared = {
            name
            for name in _public_functions(module)
            if options.keys() & inspect.signature(vars(module)[name]).parameters
        }
        assert {n for n in shared if (module.__name__, n) not in tried} == set()


def _public_functions(module: ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
    }


def test_64_bit_types_are_needed() -> None:
    with jax.enable_x64(False), pytest.raises(RuntimeError, match="64-bit types"):
        jax_fixed_point.multiply_by_quantized_multiplier(np.int32([1]), 2**30, 0)
