"""Dynamic range FULLY_CONNECTED by our CPU kernel: equal to the reference, bit for bit."""

import dataclasses
import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.kernels import library
from jaxdelegate.lowering.computation import Weight
from jaxdelegate.op_lowering.convolution.cpu_kernel import NATIVE
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, Lowered, LoweringContext
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import Arg, Case, ModelBuilder, Tolerance
from tests.support.case_groups import CaseGroup, in_groups
from tests.support.unpacking import watch_unpacking

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True), quant_mode="integer")
PLAIN = dataclasses.replace(CONTEXT, kernels=KernelSet())
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
INT4, INT2 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2)
EVERY_SET = pytest.mark.parametrize(
    "instruction_set", ["avx512vnni", "avx512f", "avxvnni", "avx2"], indirect=True
)
RULE: Any = RULES["FULLY_CONNECTED"]


def rows(count: int, depth: int) -> np.ndarray:
    """Rows of very different extents and means."""
    rng = np.random.default_rng((count, depth))
    extents = np.exp(rng.normal(size=(count, 1)) * 2)
    return np.float32((rng.normal(size=(count, depth)) + rng.normal(size=(count, 1))) * extents)


def case(
    label: str,
    x: tuple[int, int] | np.ndarray,
    columns: int,
    dtype: np.dtype = INT8,
    *,
    scales: int = 0,
    block: int = 0,
    has_bias: bool = True,
    act: Act = Act.NONE,
    asymmetric: bool = True,
) -> Case:
    """`x` is [rows, depth]; `scales`: how many the filter has, 0: one for each row of it."""
    values = x if isinstance(x, np.ndarray) else rows(*x)
    rng, depth = np.random.default_rng((columns, *values.shape)), values.shape[1]
    low, high = integer_range(INT8 if dtype == UINT8 else dtype)
    w = rng.integers(low, high, (columns, depth), endpoint=True).astype(np.int8)
    w = w.view(np.uint8) if dtype == UINT8 else w.astype(dtype)
    scale = np.float32(np.geomspace(0.001, 0.1, scales or columns))
    quantization = Quantization(scale, np.zeros(len(scale), np.int64))
    if block:
        half = (np.exp(rng.normal(size=(columns, depth // block))) * 0.02).astype(np.float16)
        quantization = in_blocks(half, block)
    inputs = [Arg(values), Arg(w, is_const=True, quantization=quantization)]
    if has_bias:
        inputs.append(Arg(np.float32(rng.normal(size=columns)), is_const=True))
    options = FullyConnectedOptions(act, asymmetric_quantize_inputs=asymmetric)
    exact: dict[str, Any] = {"tolerance": Tolerance(), "because": "it is rounded as the kernel"}
    return Case("FULLY_CONNECTED", f"{dtype}-{label}", inputs, options, version=14, **exact)


def in_blocks(scale: np.ndarray, size: int, points: np.ndarray | None = None) -> Quantization:
    blocks = Blockwise(-1, -1, size, (), scale, points)
    return Quantization(np.float32([]), np.int64([]), blockwise=blocks)


TIES = np.float32([n + 0.5 for n in range(-127, 127)] + [127, -127])
SPECIAL = {
    "zeros": np.zeros((2, 40), np.float32),
    "positive": np.abs(rows(3, 40)),
    "negative": -np.abs(rows(3, 40)),
    "ties": np.tile(TIES, (2, 1)),
    "tiny": rows(2, 40) * np.float32(1e-30),
    "huge": rows(2, 40) * np.float32(1e30),
}
# Few rows and many, around the largest tiles of each set (14, 6 and 4 rows); columns around panels.
PRODUCTS = [
    *(
        case(f"{n}x{depth}x{columns}", (n, depth), columns, dtype)
        for dtype in (INT8, INT4, INT2)
        for n, depth, columns in (
            *((1, 64, 16), (1, 4, 1), (1, 300, 35), (2, 128, 3), (3, 1000, 17), (4, 256, 50)),
            *((5, 64, 16), (6, 36, 33), (7, 20, 7), (14, 256, 64), (15, 100, 31), (29, 512, 48)),
            *((200, 64, 40), (650, 70, 40)),  # threads share the rows of the last one
        )
    ),
    case("odd-depth", (3, 37), 19),
    case("odd-depth", (9, 37), 19),
    case("odd-depth", (2, 37), 5, INT4),  # filled up to whole bytes
    case("odd-depth", (9, 38), 5, INT2),
    case("uint8", (2, 64), 20, UINT8, scales=1),
    case("uint8", (9, 64), 20, UINT8, scales=1),
    *(
        case(f"symmetric-{n}", (n, 72), 19, dtype, asymmetric=False)
        for dtype in (INT8, INT4)
        for n in (1, 20)
    ),
    *(case(f"one-scale-{n}", (n, 48), 18, scales=1, has_bias=False) for n in (1, 8)),
    *(case(act.name, (2, 64), 20, act=act) for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)),
    *(case(name, values, 20, dtype) for name, values in SPECIAL.items() for dtype in (INT8, INT4)),
    *(
        case(f"{block}-blocks-{n}x{depth}x{columns}", (n, depth), columns, dtype, block=block)
        for dtype, block in ((INT4, 32), (INT4, 64), (INT4, 128), (INT4, 256), (INT8, 16))
        for n, depth, columns in ((1, 256, 16), (4, 1280, 37), (16, 512, 34))
    ),
    *(case(f"32-blocks-{n}", (n, 96), 6, INT8, block=32) for n in (1, 3, 5, 9, 33)),
    *(case(f"64-blocks-{n}", (n, 192), 50, INT4, block=64) for n in (9, 33)),
    *(case(f"256-blocks-{n}", (n, 512), 9, INT8, block=256) for n in (2, 17)),
    case("blocks-relu", (2, 64), 6, INT4, block=32, act=Act.RELU6, has_bias=False),
    case("blocks-odd-columns", (1, 64), 1, INT4, block=32),
    case("int2-blocks", (3, 64), 6, INT2, block=16),  # stored as int8
]


def lowered(example: Case, context: LoweringContext = CONTEXT) -> Lowered:
    result = RULE.lower(example.op(dataclasses.replace(context, op_version=example.version)))
    assert isinstance(result, Lowered)
    return result


@functools.cache
def is_taken(example: Case, context: LoweringContext = CONTEXT) -> bool:
    layout = lowered(example, context).layout
    return isinstance(layout, tuple) and layout[0] == NATIVE


GROUPED = in_groups(PRODUCTS)


@EVERY_SET
@pytest.mark.parametrize("group", GROUPED, ids=str)
def test_kernel_equals_the_reference(group: CaseGroup, instruction_set: str) -> None:
    del instruction_set
    assert all(map(is_taken, group.cases))
    group.check(group.run_compiled_once(RULES, CONTEXT), Case.run_reference)


# In bits that the reference's tolerance does not see: special values are in the last two groups.
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "group",
    [*(pytest.param(g, marks=pytest.mark.exhaustive) for g in GROUPED[:-2]), *GROUPED[-2:]],
    ids=str,
)
def test_kernel_equals_xla(group: CaseGroup) -> None:
    both = (group.run_compiled_once(RULES, context) for context in (CONTEXT, PLAIN))
    for example, (got,), (want,) in zip(group.cases, *both, strict=True):
        np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32), str(example))


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("at", [0, -1])
def test_nan_spoils_its_row_and_no_other(count: int, at: int) -> None:
    x = rows(count, 70)
    x[0, at] = np.nan
    (got,) = case("nan", x, 20).run_lowered(RULE, CONTEXT)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1:]).all()


def changed(example: Case, position: int, **how: Any) -> Case:
    inputs = [dataclasses.replace(arg) for arg in example.inputs if arg is not None]
    inputs[position] = dataclasses.replace(inputs[position], **how)
    return dataclasses.replace(example, inputs=inputs)


@EVERY_SET
@pytest.mark.parametrize("dtype", [INT8, INT4, INT2], ids=str)
@pytest.mark.parametrize("block", [0, 32])
def test_the_largest_sums(block: int, dtype: np.dtype, instruction_set: str) -> None:
    """All products have one sign, and operands are 255 and the lowest integer."""
    del instruction_set
    x = np.float32([[0, *[1] * 95]] * 21)
    example = case("largest", x, 17, dtype, block=block)
    w = np.full((17, 96), integer_range(dtype)[0]).astype(dtype)
    example = changed(example, 1, value=w)
    example.check(example.run_lowered(RULE, CONTEXT), example.run_reference())


@pytest.mark.usefixtures("built")
def test_a_bias_of_the_run() -> None:
    late = changed(case("", (2, 8), 18), 2, is_const=False)
    assert is_taken(late)
    late.check(late.run_lowered(RULE, CONTEXT), late.run_reference())


BLOCKS = case("", (2, 64), 6, INT4, block=32)
POINTS = np.int32([[1, 0]] * 6)
LEFT = {
    "late-filter": changed(case("", (2, 8), 18), 1, is_const=False),
    "tanh": case("", (2, 8), 4, act=Act.TANH),
    "small-blocks": case("", (2, 64), 6, INT4, block=8),
    "odd-blocks": case("", (2, 96), 6, INT8, block=48),
    "zero-points": changed(
        BLOCKS, 1, quantization=in_blocks(np.full((6, 2), 0.5, np.float16), 32, POINTS)
    ),
    "float-scales": changed(
        BLOCKS, 1, quantization=in_blocks(np.full((6, 2), 0.1, np.float32), 32)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_does_not_take_xla_does(name: str) -> None:
    assert not is_taken(LEFT[name])


def test_it_is_the_first_algorithm() -> None:
    def names(example: Case, context: LoweringContext = CONTEXT) -> list[str]:
        return list(RULE.algorithms(example.op(context)))

    for example in (case("", (9, 8), 4), BLOCKS):
        assert names(example) == [NATIVE, "dot"]
        assert not is_taken(example, dataclasses.replace(CONTEXT, algorithm="dot"))
        assert names(example, PLAIN) == []
    assert names(LEFT["tanh"]) == []


def test_weights_stay_as_small_as_in_the_file() -> None:
    for dtype, size in ((INT8, 1.0), (INT4, 0.5), (INT2, 0.25)):
        example = case("", (1, 64), 32, dtype)
        stored = lowered(example).prepare[1](example.arrays()[1])
        assert stored.nbytes == size * 64 * 32
    example = case("", (1, 256), 32, INT4, block=32)
    (_, scales), _ = lowered(example).derived
    assert scales(example.arrays()[1]).nbytes == 2 * 32 * 256 // 32


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("host", [jd.Interpreter, StockInterpreter], ids=["jaxdelegate", "litert"])
@pytest.mark.parametrize("block", [0, 32])
def test_weights_are_never_unpacked_as_a_whole(
    block: int, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = case("", (1, 512), 2048, INT4, block=block)
    x, w, bias = (arg for arg in example.inputs if arg is not None)
    builder = ModelBuilder()
    weights = builder.constant(w.value, quantization=w.quantization)
    inputs = [builder.input(x.value.shape, np.float32), weights, builder.constant(bias.value)]
    y = builder.tensor((1, 2048))
    builder.operator("FULLY_CONNECTED", inputs, [y], example.options, version=13)
    builder.outputs(y)
    content = builder.build()
    counts = watch_unpacking(monkeypatch)
    delegate = jd.JaxDelegate(platform="cpu", quant_mode="integer")
    interpreter = host(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (detail,) = interpreter.get_input_details()
    interpreter.set_tensor(detail["index"], x.value)
    interpreter.invoke()
    assert [node.op for node in delegate.report().delegated] == ["FULLY_CONNECTED"]
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(got, example.run_reference()[0])
    assert 0 < max(counts) <= w.value.size // 4


def test_signatures_share_weights_whatever_their_rows() -> None:
    decode, prefill = (lowered(case("", (n, 64), 32, INT4)).layout for n in (1, 128))
    assert Weight(1, 0, 1, decode) == Weight(1, 0, 1, prefill)


@pytest.mark.usefixtures("built")
def test_a_call_that_does_not_fit_is_refused() -> None:
    call = jax.ffi.ffi_call(library.FULLY_CONNECTED, jax.ShapeDtypeStruct((2, 6), np.float32))
    x, w = np.ones((2, 64), np.float32), np.ones((6, 32), np.uint8)
    ones, sums = np.ones(6, np.float32), np.ones(6, np.int32)
    halves = np.ones((2, 2, 4), np.float16)
    attributes = {
        "modes": np.array((4, 0, 1), np.int64),
        "range": np.array((0, 1), np.float32),
        "shape": np.array((6, 64), np.int64),
    }

    def refused(said: str, *arrays: np.ndarray, **changes: Any) -> None:
        how = attributes | {name: np.array(value, np.int64) for name, value in changes.items()}
        with jax.enable_x64(True), pytest.raises(Exception, match=said):
            jax.block_until_ready(call(*arrays, **how))

    refused("x does not have whole rows", x[:, :63], w, ones, ones, sums)
    refused("y does not fit x", x[:1], w, ones, ones, sums)
    refused("weights do not fit the shape", x, w[:5], ones, ones, sums)
    refused("weights do not fit the shape", x, w, ones, ones, sums, modes=(8, 0, 1))
    refused("bias, scales or sums do not fit", x, w, ones[:5], ones, sums)
    refused("bias, scales or sums do not fit", x, w, ones, ones[:5], sums)
    refused("bias, scales or sums do not fit", x, w, ones, ones, sums, modes=(4, 32, 1))
    refused("bias, scales or sums do not fit", x, w, ones, halves, sums, modes=(4, 32, 1))
    for modes in ((3, 0, 1), (4, 24, 1), (4, 16, 1), (2, 32, 1), (4, -32, 1)):
        refused("does not support these modes", x, w, ones, ones, sums, modes=modes)
    refused("does not support these modes", x, w, ones, ones, sums, shape=(0, 64))
    refused("expected x, weights, bias, scales, sums", x, w, ones, ones)


@pytest.mark.usefixtures("built")
def test_a_batch_is_one_call_with_more_rows() -> None:
    """It does not read the weights again for each element."""
    example = case("batch", (2, 64), 20, INT4, block=32)
    lowered = RULE.lower(example.op(CONTEXT))
    x, *constants = example.arrays()
    many = np.stack([x, 2 * x, -x])
    call = jax.vmap(lambda x: lowered(x, *constants)[0])
    text = str(jax.make_jaxpr(call)(many))
    assert (text.count("ffi_call["), text.count("scan["), text.count("while[")) == (1, 0, 0)
    np.testing.assert_array_equal(jax.jit(call)(many), [lowered(x, *constants)[0] for x in many])
