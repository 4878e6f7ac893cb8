"""FULLY_CONNECTED of floats whose filter stays as the file stores it, as GPUs and TPUs run it."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate.compile.precision_policy import policy_here
from jaxdelegate.op_lowering.matmul import stored_width, stored_width_triton
from jaxdelegate.op_lowering.matmul.stored_width_triton import Around, Filter
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, Lowered, LoweringContext
from jaxdelegate.options import DelegateOptions
from jaxdelegate.quant.affine import dequantize
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import Arg, Case
from tests.support.absent_gpu import lowered_for_gpu
from tests.support.combinations import covering

INT8, INT4, INT2 = (np.dtype(t) for t in (np.int8, ml_dtypes.int4, ml_dtypes.int2))
RULE: Any = RULES["FULLY_CONNECTED"]
PLAIN_GPU = LoweringContext("gpu")
GPU = dataclasses.replace(PLAIN_GPU, kernels=KernelSet(triton=True))
TPU = LoweringContext("tpu")
DEVICES = pytest.mark.parametrize("device", [GPU, PLAIN_GPU, TPU], ids=["triton", "gpu", "tpu"])


def case(
    rows: int,
    depth: int,
    columns: int,
    dtype: np.dtype = INT8,
    block: int = 0,
    act: Act = Act.NONE,
    *,
    has_bias: bool = True,
    scales: int = 0,
) -> Case:
    """`scales`: how many the filter has, 0: one for each row of it."""
    rng = np.random.default_rng((rows, depth, columns))
    low, high = integer_range(dtype)
    w = rng.integers(low, high, (columns, depth), endpoint=True).astype(np.int8).astype(dtype)
    if block:
        half = np.exp(rng.normal(size=(columns, depth // block))).astype(np.float16)
        blocks = Blockwise(-1, -1, block, (), half, None)
        quantization = Quantization(np.float32([]), np.int64([]), blockwise=blocks)
    else:
        scale = np.float32(np.geomspace(0.01, 1, scales or columns))
        quantization = Quantization(scale, np.zeros(len(scale), np.int64))
    inputs = [Arg(rng.normal(size=(rows, depth)).astype(np.float32))]
    inputs.append(Arg(w, is_const=True, quantization=quantization))
    if has_bias:
        inputs.append(Arg(np.float32(rng.normal(size=columns)), is_const=True))
    label = f"{dtype}-{rows}x{depth}x{columns}-{block}"
    return Case("FULLY_CONNECTED", label, inputs, FullyConnectedOptions(act), version=14)


# One row, a few and many; columns of part of a tile and of several.
EXAMPLES = [
    *(
        case(rows, depth, columns, dtype)
        for dtype in (INT8, INT4, INT2)
        for rows, depth, columns in ((1, 64, 40), (1, 300, 7), (5, 300, 33), (20, 128, 70))
    ),
    *(
        case(rows, depth, 40, dtype, block)
        for dtype, block in ((INT4, 32), (INT4, 64), (INT8, 32), (INT2, 128))
        for rows, depth in ((1, 512), (3, 512), (130, 1024))
    ),
    case(16, 2080, 9, INT8),
    case(2, 64, 33, INT8, act=Act.RELU, has_bias=False),
    case(2, 64, 33, INT4, scales=1),
    case(3, 31, 8, INT8),
    # Several programs of the kernel share a row.
    case(2, 5000, 33, INT8),
    case(4, 8192, 40, INT4, 32),
    case(3, 8192, 8, INT8, 256),
]


@pytest.fixture(autouse=True)
def _small_filters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_width, "MANY", 1)
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


def reals(example: Case) -> np.ndarray:
    """The result in float64."""
    x, w, *bias = (a for a in example.inputs if a is not None)
    assert w.quantization is not None
    y = x.value.astype(np.float64) @ dequantize(w.value, w.quantization).T.astype(np.float64)
    y = y + (bias[0].value if bias else 0)
    return np.maximum(y, 0) if example.options.fused_activation_function == Act.RELU else y


def lowered(example: Case, device: LoweringContext) -> Lowered:
    op = example.op(device)
    assert stored_width.supports(op.inputs[1])
    found = RULE.lower(op)
    assert isinstance(found, Lowered)
    return found


def run(found: Lowered, *arrays: np.ndarray) -> list[jax.Array]:
    """Compiled as a function of the activations: the rest are constants."""
    return list(jax.jit(lambda x: found(x, *arrays[1:]))(arrays[0]))


def run_all(found: Sequence[Lowered], arrays: Sequence[Sequence[Any]]) -> list[jax.Array]:
    """The first result of each, all from one program."""

    def program(xs: Sequence[jax.Array]) -> list[jax.Array]:
        pairs = zip(found, xs, arrays, strict=True)
        return [each(x, *given[1:])[0] for each, x, given in pairs]

    return list(jax.jit(program)([given[0] for given in arrays]))


@DEVICES
@pytest.mark.parametrize(
    "examples",
    [
        EXAMPLES[::4],
        *(pytest.param(EXAMPLES[i::4], marks=pytest.mark.exhaustive) for i in (1, 2, 3)),
    ],
    ids=range(4),
)
def test_equals_the_view_of_floats(examples: Sequence[Case], device: LoweringContext) -> None:
    """Units that multiply 16 bits lose nothing of a float32."""
    found = [lowered(example, device) for example in examples]
    results = run_all(found, [example.arrays() for example in examples])
    for example, got in zip(examples, results, strict=True):
        want = reals(example)
        assert got.dtype == np.float32
        size = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * size, err_msg=str(example))


@pytest.mark.parametrize(
    ("device", "dtype"), covering([GPU, TPU, PLAIN_GPU], ["float16", "bfloat16"])
)
def test_rounds_activations_and_blocks(device: LoweringContext, dtype: Any) -> None:
    """Integers are exact in half types, and sums are float32; scaled blocks are rounded first."""
    policy = policy_here(DelegateOptions(compute_dtype=dtype), device.platform)
    device = dataclasses.replace(device, precision=policy)
    examples = [EXAMPLES[i] for i in (0, 6, 13, 16, 18, -3, -2, -1)]
    rounded = [with_rounded_input(example, np.dtype(dtype)) for example in examples]
    found = [lowered(example, device) for example in rounded]
    results = run_all(found, [example.arrays() for example in examples])
    for example, got in zip(rounded, results, strict=True):
        want = reals(example)
        in_blocks = not example.label.endswith("-0")
        rounding = float(ml_dtypes.finfo(dtype).eps) if in_blocks else 1e-5
        error = rounding * np.abs(want).max()
        np.testing.assert_allclose(np.float64(got), want, rtol=0, atol=error, err_msg=str(example))


def with_rounded_input(example: Case, dtype: np.dtype) -> Case:
    x = example.inputs[0]
    assert x is not None
    half = dataclasses.replace(x, value=x.value.astype(dtype).astype(np.float32))
    return dataclasses.replace(example, inputs=[half, *example.inputs[1:]])


@DEVICES
def test_a_program_holds_no_more_than_the_file(device: LoweringContext) -> None:
    """Filters have the file's bits; a float16 scale for each block, or a float32 one for a row."""
    for example, bits in ((EXAMPLES[0], 8), (EXAMPLES[5], 4), (EXAMPLES[13], 4)):
        found = lowered(example, device)
        w = example.arrays()[1]
        stored = found.prepare[1](w)
        # XLA packs int4 on a TPU.
        size = stored.size // 2 if stored.dtype == INT4 else stored.nbytes
        assert 8 * size == bits * w.size
        ((_, scaling),) = found.derived
        assert scaling(w).nbytes == (2 * w.size // 32 if example is EXAMPLES[13] else 4 * len(w))


def test_other_numbers_of_rows_share_the_filter() -> None:
    """So that the signatures of a language model hold it once."""
    layouts = {lowered(case(n, 512, 40, INT4, 32), GPU).layout for n in (1, 3, 130)}
    assert len(layouts) == 1


def test_values_that_are_not_finite() -> None:
    example = case(2, 64, 5)
    x = example.arrays()[0].copy()
    x[0, 3], x[1, 4] = np.inf, np.nan
    for device in (GPU, PLAIN_GPU, TPU):
        (got,) = run(lowered(example, device), x, *example.arrays()[1:])
        assert not np.isfinite(got).any()


def test_large_and_small_values() -> None:
    """The parts of a float32 reach as far as it does."""
    example = case(2, 64, 5)
    for factor in (1e30, 1e-30):
        x = np.float32(example.arrays()[0] * factor)
        (got,) = run(lowered(example, GPU), x, *example.arrays()[1:2], np.zeros(5, np.float32))
        plain = dataclasses.replace(example, inputs=[Arg(x), example.inputs[1]])
        np.testing.assert_allclose(got / factor, reals(plain) / factor, rtol=0, atol=1e-3)


UNSUPPORTED = {
    "zero points": (INT8, Quantization(np.float32([0.1]), np.int64([3]))),
    "scales of columns": (INT8, Quantization(np.ones(64, np.float32), np.zeros(64, np.int64), 1)),
    "uint8": (np.dtype(np.uint8), Quantization(np.float32([0.1]), np.int64([0]))),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_leaves_others_to_the_view(name: str) -> None:
    dtype, quantization = UNSUPPORTED[name]
    w = Arg(np.ones((8, 64), dtype), is_const=True, quantization=quantization)
    inputs = [Arg(np.ones((1, 64), np.float32)), w]
    example = Case("FULLY_CONNECTED", name, inputs, FullyConnectedOptions())
    assert not stored_width.supports(example.op().inputs[1])


@DEVICES
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shape", [(1, 2), (4, 2), (1, 1)])
def test_rows_that_share_scales_of_blocks(
    shape: tuple[int, int], rows: int, device: LoweringContext
) -> None:
    example = case(rows, 64, 8, INT8, 32)
    x, w, *bias = example.inputs
    assert w is not None
    scale = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float16)
    blocks = Blockwise(-1, -1, 32, (), scale, None)
    none = np.zeros(0, np.float32), np.zeros(0, np.int64)
    w = dataclasses.replace(w, quantization=Quantization(*none, blockwise=blocks))
    shared = dataclasses.replace(example, inputs=[x, w, *bias])
    want, (got,) = reals(shared), run(lowered(shared, device), *shared.arrays())
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_blocks_that_the_kernel_does_not_take() -> None:
    assert not stored_width.supports(case(2, 48, 8, INT4, 48).op().inputs[1])  # halves of a block
    assert not stored_width.supports(case(2, 48, 8, INT8, 8).op().inputs[1])
    assert stored_width.supports(case(2, 96, 8, INT8, 48).op().inputs[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize(("runs", "block"), [(1, 0), (2, 0), (4, 0), (2, 32), (1, 32), (2, 256)])
def test_triton_takes_it(
    dtype: Any, runs: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lowered for a GPU, which needs none, and without 64-bit integers."""
    monkeypatch.undo()
    form = stored_width.Stored(runs, block)
    w = np.zeros((72, 8192 // runs), np.int8 if runs == 1 else np.uint8)
    scales = np.zeros((72, 8192 // block if block else 1), np.float16 if block else np.float32)
    around = Around(np.dtype(dtype), (np.dtype(np.float32),))

    def run(x: Any, w: Any, scales: Any) -> Any:
        return stored_width_triton.products(x, [Filter(w, scales)], forms=[form], around=around)

    text = lowered_for_gpu(run, np.zeros((16, 8192), dtype), w, scales)
    assert "__gpu$xla.gpu.triton" in text
    assert "i64>" not in text
