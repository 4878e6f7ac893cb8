"""The GPU's kernel of products: what surrounds them, in Pallas's interpreter and lowered."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.target import Target
from jaxdelegate.op_lowering.common.packed_weights import Packed
from jaxdelegate.op_lowering.matmul import stored_width_triton as kernel
from jaxdelegate.op_lowering.matmul.stored_width_triton import Around, Filter, Stored, Tile
from jaxdelegate.op_lowering.rule import KernelSet
from jaxdelegate.options import SPLIT_PRODUCTS, DelegateOptions
from tests.support.absent_gpu import lowered_for_gpu
from tests.support.combinations import covering

FLOAT32, FLOAT16, BFLOAT16 = (np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16))
INT4, INT8 = np.dtype(ml_dtypes.int4), np.dtype(np.int8)


@dataclasses.dataclass(frozen=True)
class Weights:
    """Filters [N, K] of one kind: their arrays for the kernel, and their reals."""

    dtype: np.dtype
    block: int = 0

    @property
    def form(self) -> Stored:
        return Stored(2 if self.dtype == INT4 else 1, self.block)

    def make(self, columns: int, depth: int, *, has_bias: bool) -> tuple[Filter, np.ndarray]:
        random = np.random.default_rng((columns, depth))
        bias = random.normal(size=columns).astype(np.float32) if has_bias else None
        if self.dtype.kind == "f" or self.dtype == BFLOAT16:
            w = (random.normal(size=(columns, depth)) / 8).astype(self.dtype)
            return Filter(w, None, bias), w.astype(np.float64)
        most = 7 if self.dtype == INT4 else 127
        w = random.integers(-most - 1, most, (columns, depth), endpoint=True).astype(np.int8)
        groups = depth // self.block if self.block else 1
        scales = random.uniform(0.5, 1, (columns, groups)) / most
        scales = scales.astype(np.float16 if self.block else np.float32)
        stored = Packed(INT4, depth).pack(w) if self.dtype == INT4 else w
        return Filter(stored, scales, bias), w * scales.astype(float).repeat(depth // groups, 1)


KINDS = {
    "int8": Weights(INT8),
    "int4": Weights(INT4),
    "int8_blocks": Weights(INT8, 64),
    "int4_blocks": Weights(INT4, 32),
    "float16": Weights(FLOAT16),
    "bfloat16": Weights(BFLOAT16),
}


def swish(x: Any) -> Any:
    return x * (1 / (1 + jnp.exp(-x)))


@dataclasses.dataclass(frozen=True)
class Call:
    """What the kernel computes; `columns` of each filter."""

    columns: tuple[int, ...]
    norm: bool = False
    gate: bool = False
    residual: bool = False
    has_bias: bool = False

    def around(self, operand: np.dtype) -> Around:
        count = 1 if self.gate else len(self.columns)
        return Around(operand, (FLOAT32,) * count, 1e-5, swish if self.gate else None)


CALLS = {
    "qkv": Call((72, 40, 33), norm=True),
    "qkv_with_biases": Call((72, 40, 33), has_bias=True),
    "gated": Call((70, 70), norm=True, gate=True),
    "residual": Call((41,), residual=True, has_bias=True),
    "normalized": Call((41,), norm=True),
}
ROWS = (1, 3, 16, 64, 100)


def reals(
    call: Call, x: np.ndarray, weights: Sequence[np.ndarray], filters: Sequence[Filter], **more: Any
) -> list[np.ndarray]:
    """The results in float64."""
    rows = x.astype(np.float64)
    if call.norm:
        rows = rows / np.sqrt((rows * rows).mean(1, keepdims=True) + 1e-5) * more["scale"]
    totals = [
        rows @ w.T + (0 if f.bias is None else f.bias.astype(np.float64))
        for w, f in zip(weights, filters, strict=True)
    ]
    if call.gate:
        totals = [totals[0] / (1 + np.exp(-totals[0])) * totals[1]]
    return [t + more["residual"] for t in totals] if call.residual else totals


def given(call: Call, rows: int, depth: int, dtype: np.dtype) -> tuple[np.ndarray, dict[str, Any]]:
    random = np.random.default_rng((rows, depth))
    more = {}
    if call.norm:
        more["scale"] = random.uniform(0.5, 1.5, depth).astype(np.float32)
    if call.residual:
        more["residual"] = random.normal(size=(rows, call.columns[0])).astype(dtype)
    return random.normal(size=(rows, depth)).astype(dtype), more


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
# A program prepares filters of floats in the operand's dtype.
PAIRS = [
    (kind, operand)
    for kind, weights in KINDS.items()
    for operand in FLOATS
    if weights.dtype not in FLOATS or weights.dtype == operand
]
FEW = {(*pair, ROWS[i % 5], list(CALLS)[(i + i // 5) % 5]) for i, pair in enumerate(PAIRS)}
ALL = [(*pair, rows, call) for pair in PAIRS for rows in ROWS for call in CALLS]


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(
    ("kind", "operand", "rows", "name"),
    [pytest.param(*c, marks=() if c in FEW else pytest.mark.exhaustive) for c in ALL],
)
def test_equals_the_reals(kind: str, operand: np.dtype, rows: int, name: str) -> None:
    """float32 rows within float32's rounding, others within that of the operands."""
    weights, call = KINDS[kind], CALLS[name]
    depth = 320 if weights.block else 314
    made = [weights.make(n, depth, has_bias=call.has_bias) for n in call.columns]
    filters, values = zip(*made, strict=True)
    x, more = given(call, rows, depth, operand)
    run = functools.partial(
        kernel.products, forms=(weights.form,) * len(filters), around=call.around(operand)
    )
    got = jax.jit(run)(x, filters, **more)
    want = reals(call, x, values, filters, **more)
    # The normalized rows and scaled elements of blocks are rounded to the operand.
    is_rounded = operand != FLOAT32 and (call.norm or weights.block)
    error = float(ml_dtypes.finfo(operand).eps) if is_rounded else 2e-6
    for y, exact in zip(got, want, strict=True):
        np.testing.assert_allclose(np.float64(y), exact, rtol=0, atol=error * np.abs(exact).max())


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_results_in_short_dtypes_end_at_their_largest(rows: int, dtype: np.dtype) -> None:
    """Infinities become finite, as where XLA's products are stored. NaN stays."""
    x = np.full((rows, 64), 100, dtype)
    x[-1, 3] = np.nan
    filters = (Filter(np.full((16, 64), 127, np.int8), np.full((16, 1), 1e36, np.float32)),)
    around = Around(dtype, (dtype,))
    residual = np.zeros((rows, 16), dtype)
    (y,) = kernel.products(
        jnp.asarray(x), filters, residual=jnp.asarray(residual), forms=[Stored()], around=around
    )
    assert y.dtype == dtype
    assert np.isnan(np.float32(y[-1])).all()
    assert (np.float32(y[:-1]) == float(ml_dtypes.finfo(dtype).max)).all()


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("rows", [1, 2])
def test_large_rows_are_normalized_before_they_are_rounded(rows: int) -> None:
    """Their sums of products would leave float16's range, and the rows' squares, too."""
    x = np.random.default_rng(0).normal(size=(rows, 64)).astype(np.float32) * 1e5
    filters, values = Weights(INT8).make(40, 64, has_bias=False)
    call = Call((40,), norm=True)
    scale = np.full(64, 3, np.float32)
    (y,) = kernel.products(
        jnp.asarray(x), [filters], jnp.asarray(scale), forms=[Stored()], around=call.around(FLOAT16)
    )
    (want,) = reals(call, x, [values], [filters], scale=scale)
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize(
    ("rows", "columns", "row_bytes", "want"),
    [  # 132 processors, so that most of them have one tile
        (1, (1024,), (4096, 2048), Tile(1, 8)),
        (1, (2048, 1024, 1024), (4096, 1024), Tile(1, 32)),
        (3, (1024,), (4096, 2048), Tile(16, 16)),
        (16, (3072,), (2048, 1024), Tile(16, 32)),
        (17, (8192,), (2048, 1024), Tile(32, 64)),
        (64, (2048, 1024, 1024), (2048, 1024), Tile(64, 32)),
        # Each of many tiles reads all rows again.
        (64, (151936,), (2048, 1024), Tile(64, 128)),
        (191, (2048, 1024, 1024), (2048, 1024), Tile(64, 128)),
        (512, (3072,), (2048, 2048), Tile(64, 128)),
    ],
)
def test_tiles(rows: int, columns: tuple[int, ...], row_bytes: tuple[int, int], want: Tile) -> None:
    assert kernel.tile(rows, columns, row_bytes, 132, splits=False) == want


def test_fewer_processors_have_wider_tiles() -> None:
    assert kernel.tile(3, (1024,), (4096, 2048), 32, splits=False) == Tile(16, 32)
    assert kernel.tile(1, (1024,), (4096, 2048), 32, splits=False) == Tile(1, 32)


def test_tiles_that_several_programs_share_are_those_that_were_measured() -> None:
    assert {kernel.tile(n, (4096,), (1, 1), 132, splits=True) for n in (2, 16)} == {Tile(16, 32)}


def test_programs_share_the_depth_where_tiles_are_few() -> None:
    """A filter of 4,096 x 4,096 has 128 tiles; 12,288 rows have 384."""
    assert [kernel.splits(128, 32, 132), kernel.splits(384, 32, 132)] == [4, 1]
    assert [kernel.splits(32, 8, 132), kernel.splits(32, 24, 132)] == [1, 3]
    assert kernel.splits(128, 32, 16) == 1


def test_many_long_rows_are_normalized_by_xla() -> None:
    assert kernel.normalizes(64, 1024, 1)
    assert kernel.normalizes(1, 1024, 36)
    assert not kernel.normalizes(64, 2048, 1)
    assert not kernel.normalizes(16, 1024, 9)


def test_positions_have_32_bits() -> None:
    assert kernel.fits(262144, 2048)
    assert not kernel.fits(262144, 8192)


@pytest.mark.parametrize(("pair", "rows"), covering(PAIRS, [1, 16, 64, 191]))
def test_triton_takes_it(pair: tuple[str, np.dtype], rows: int) -> None:
    """Lowered for a GPU, which needs none, and without 64-bit integers."""
    weights, operand = KINDS[pair[0]], pair[1]
    for call in CALLS.values():
        filters = [weights.make(n, 320, has_bias=call.has_bias)[0] for n in call.columns]
        x, more = given(call, rows, 320, operand)
        run = functools.partial(
            kernel.products, forms=(weights.form,) * len(filters), around=call.around(operand)
        )
        text = lowered_for_gpu(run, x, filters, *(more.get(n) for n in ("scale", "residual")))
        assert text.count("__gpu$xla.gpu.triton") == 1
        assert "i64>" not in text


@pytest.mark.parametrize(
    ("platform", "device", "count"),
    [
        ("gpu", {"core_count": 66}, 66),
        ("gpu", {}, KernelSet.processors),
        ("cpu", {"core_count": 66}, KernelSet.processors),
    ],
)
def test_a_compiler_knows_the_processors(platform: str, device: dict[str, int], count: int) -> None:
    target = Target("cpu", 0)
    target.platform = platform
    target.__dict__["device"] = type("Device", (), device)()
    assert Compiler(DelegateOptions(), target).context.kernels.processors == count


@pytest.mark.parametrize(("platform", "value"), [("gpu", "1"), ("gpu", "0"), ("cpu", "1")])
def test_a_switch_splits_products_on_a_gpu(
    platform: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored programs with and without it differ in their keys."""
    target, found = Target("cpu", 0), []
    target.platform = platform
    for each in ("", value):
        monkeypatch.setenv(SPLIT_PRODUCTS, each)
        compiler = Compiler(DelegateOptions(), target)
        kernels = compiler.context.kernels
        found.append((kernels, compiler.cache_settings(), compiler.file_settings()))
    assert found[1][0].splits_products == ((platform, value) == ("gpu", "1"))
    for before, now in zip(*found, strict=True):
        assert (before != now) == found[1][0].splits_products
