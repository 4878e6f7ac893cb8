import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.op_lowering.matmul import dynamic_range
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.quant.affine import dequantize
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import Arg, Case, Tolerance
from tests.support.case_groups import CaseGroup

INT4, INT2, INT8 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2), np.dtype(np.int8)
HALF = np.dtype(np.float16)
EXACT = Tolerance()
AS_ROUNDED = "every step is rounded as the kernel rounds it"
FORGETS = "the kernel forgets the fused activation and zero points, and takes int4 only"
Shape = tuple[int, ...]


def blockwise(
    scale: Any, size: int, points: Any = None, dimensions: tuple[int, ...] = ()
) -> Quantization:
    blocks = Blockwise(-1, -1, size, dimensions, np.asarray(scale), points)
    return Quantization(np.float32([]), np.int64([]), blockwise=blocks)


def scales(shape: Shape, dtype: np.dtype = HALF) -> np.ndarray:
    values = np.exp(np.random.default_rng(shape).normal(size=shape)) * 0.02
    return values.astype(dtype)


def rows(shape: Shape) -> np.ndarray:
    rng = np.random.default_rng(shape)
    extents = np.exp(rng.normal(size=(*shape[:-1], 1)) * 2)
    return ((rng.normal(size=shape) + rng.normal(size=extents.shape)) * extents).astype(np.float32)


def weights(dtype: np.dtype, shape: Shape) -> np.ndarray:
    low, high = integer_range(dtype)
    return np.random.default_rng(shape).integers(low, high, shape, endpoint=True).astype(dtype)


def dense(
    label: str,
    x: Shape,
    w: Shape,
    size: int,
    dtype: np.dtype = INT4,
    *,
    quantization: Quantization | None = None,
    act: Act = Act.NONE,
    has_bias: bool = True,
    late: bool = False,
    **details: Any,
) -> Case:
    """`w` is [N, K], in blocks of `size` along K; late: weights come at run time."""
    q = quantization or blockwise(scales((w[0], w[1] // size)), size)
    inputs = [Arg(rows(x)), Arg(weights(dtype, w), not late, quantization=q)]
    inputs += [Arg(rows((w[0],)), is_const=True)] if has_bias else []
    options = FullyConnectedOptions(act, keep_num_dims=len(x) > 2)
    exact: dict[str, Any] = {"tolerance": EXACT, "because": AS_ROUNDED}
    how = exact | {"version": 14, "litert": None if dtype == INT4 else FORGETS} | details
    return Case("FULLY_CONNECTED", f"{dtype}-{label}", inputs, options, **how)


POINTS = np.random.default_rng(5).integers(-4, 4, (6, 2)).astype(np.int32)
CASES = [
    dense("one-block", (3, 32), (8, 32), 32),
    dense("two-blocks", (3, 64), (6, 64), 32),
    dense("one-row", (1, 256), (10, 256), 32),
    dense("many-blocks", (5, 512), (12, 512), 32),
    dense("small-blocks", (4, 64), (7, 64), 8),
    dense("no-bias", (3, 64), (6, 64), 32, has_bias=False),
    dense("keep", (2, 3, 64), (6, 64), 32),
    dense("flat-scales", (3, 64), (6, 64), 32, quantization=blockwise(scales((12,)), 32)),
    *(dense(act.name, (3, 64), (6, 64), 32, act=act, litert=FORGETS) for act in (Act.RELU6,)),
    dense(
        "zero-points",
        (3, 64),
        (6, 64),
        32,
        quantization=blockwise(scales((6, 2)), 32, POINTS),
        litert=FORGETS,
    ),
    dense(
        "axes",
        (3, 64),
        (6, 64),
        0,
        quantization=blockwise(scales((12,), np.dtype(np.float32)), 32, None, (0, 1)),
        litert="no kernel reads scales along several axes",
    ),
    dense("late", (3, 64), (6, 64), 32, late=True, litert="packed weights are constants"),
    dense("int8", (3, 64), (6, 64), 16, INT8),
    dense("int2", (3, 64), (6, 64), 16, INT2),
    dense("resident", (2, 512), (160, 512), 64),
    dense("resident", (2, 512), (160, 512), 64, INT2),
]


@pytest.mark.parametrize("most", [0, 1 << 26])
def test_gpu_lowering_matches_the_reference(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks at once, or one after another where they would take too much memory."""
    monkeypatch.setattr(dynamic_range, "_MOST_SUMS", most)
    labels = ("many-blocks", "int2", "zero-points", "late", "axes")
    group = CaseGroup([case for case in CASES if case.label.endswith(labels)])
    assert len(group.cases) == len(labels)
    group.check_lowerings(RULES, LoweringContext("gpu", quant_mode="integer"))


def test_sums_beyond_float32_stay_exact() -> None:
    """2048 products of up to 2**14; all of one sign, they add up to more than 2**24."""
    case = dense("deep", (2, 2048), (3, 2048), 2048, INT8)
    x, w, b = case.inputs
    assert x is not None
    assert w is not None
    large = (
        dataclasses.replace(x, value=np.abs(x.value)),
        dataclasses.replace(
            w, value=np.full_like(w.value, 127) - (np.arange(2048) % 3 == 0).astype(np.int8)
        ),
    )
    case = dataclasses.replace(case, inputs=[*large, b])
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


def run_litert(case: Case) -> list[np.ndarray]:
    return case.run_litert(optimized=True)


def test_is_close_to_the_product_of_reals() -> None:
    for case in CASES:
        x, w, *bias = case.inputs
        assert x is not None
        assert w is not None
        assert w.quantization is not None
        flat = x.value.reshape(-1, w.value.shape[1])
        want = flat @ dequantize(w.value, w.quantization).T
        want = want + (bias[0].value if bias else 0)  # type: ignore[union-attr]
        if case.op_options.fused_activation_function is Act.RELU6:  # type: ignore[attr-defined]
            want = np.clip(want, 0, 6)
        got = case.run_reference()[0].reshape(want.shape)
        steps = (flat.max(1) - flat.min(1)) / 255
        reals = np.abs(dequantize(w.value, w.quantization)).sum(1)
        assert (np.abs(got - want) <= steps[:, None] * reals + 1e-4 * np.abs(want).max()).all()


def gather(label: str, table: np.ndarray, q: Quantization, y: Any = np.float32, **how: Any) -> Case:
    ids = np.array([2, 0, 2, len(table) - 1], np.int32)
    inputs = [Arg(ids), Arg(table, is_const=True, quantization=q)]
    exact: dict[str, Any] = {"tolerance": EXACT, "because": AS_ROUNDED}
    return Case("EMBEDDING_LOOKUP", label, inputs, outputs=[y], **({"version": 4} | exact | how))


LOOKUPS = [
    *(
        gather(
            f"{dtype}-{np.dtype(y)}",
            weights(dtype, (5, 64)),
            blockwise(scales((5, 2)), 32),
            y,
            **how,
        )
        for dtype, how in ((INT4, {}), (INT2, {}), (INT8, {"litert": FORGETS}))
        for y in (np.float32, np.float16)
    ),
    gather("points", weights(INT4, (6, 64)), blockwise(scales((6, 2)), 32, POINTS), litert=FORGETS),
    gather("resident", weights(INT4, (300, 256)), blockwise(scales((300, 8)), 32)),
    gather("resident-int2", weights(INT2, (300, 256)), blockwise(scales((300, 4)), 64)),
    gather(
        "blocks-of-rows",
        weights(INT4, (6, 64)),
        blockwise(scales((3, 2)), 32),
        litert="the kernel knows blocks along rows only",
    ),
]


@pytest.mark.parametrize("case", LOOKUPS, ids=str)
def test_lookups_match_the_reference(case: Case) -> None:
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


@pytest.mark.parametrize("case", LOOKUPS, ids=str)
def test_lookups_dequantize(case: Case) -> None:
    ids, table = case.inputs
    assert ids is not None
    assert table is not None
    assert table.quantization is not None
    want = dequantize(table.value, table.quantization)[ids.value]
    case.check(case.run_reference(), [want.astype(case.outputs[0])])  # type: ignore[index]


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in LOOKUPS if c.litert is None], ids=str)
def test_lookups_equal_litert(case: Case) -> None:
    case.check(case.run_reference(), case.run_litert())


def test_dequantize_takes_blocks() -> None:
    table = Arg(weights(INT4, (6, 64)), quantization=blockwise(scales((6, 2)), 32, POINTS))
    case = Case("DEQUANTIZE", "blocks", [table], outputs=[np.float32])
    spread = [np.repeat(v, 32, 1) for v in (scales((6, 2)).astype(np.float32), POINTS)]
    want = [spread[0] * (table.value.astype(np.float32) - spread[1].astype(np.float32))]
    case.check(case.run_reference(), want)
    case.check(case.run_lowered(RULES["DEQUANTIZE"]), want)


def ran(interpreter: Any, case: Case) -> np.ndarray:
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), case.feeds(), strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.mark.parametrize(
    ("host", "mode"),
    [
        ("ours", "reference"),
        *((host, mode) for host in ("ours", "stock") for mode in ("float_view", "integer")),
    ],
)
@pytest.mark.parametrize("case", [CASES[3], CASES[9], LOOKUPS[0], LOOKUPS[-3]], ids=str)
def test_runs_from_a_file(case: Case, mode: Any, host: str) -> None:
    make = jd.Interpreter if host == "ours" else StockInterpreter
    delegate = jd.JaxDelegate(quant_mode=mode) if mode != "reference" else None
    kind = {"experimental_op_resolver_type": OpResolverType.BUILTIN_REF} if host == "stock" else {}
    interpreter = make(
        model_content=case.model(),
        experimental_delegates=[] if delegate is None else [delegate],
        **kind,  # type: ignore[arg-type]
    )
    got = ran(interpreter, case)
    assert delegate is None or len(delegate.report().delegated) == 1
    if mode == "float_view" and case.name == "FULLY_CONNECTED":
        x, w, b = case.inputs
        assert x is not None
        assert w is not None
        assert b is not None
        assert w.quantization is not None
        want = x.value @ dequantize(w.value, w.quantization).T + b.value
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    else:
        np.testing.assert_array_equal(got, case.run_reference()[0])


@pytest.mark.litert
def test_details_show_the_scales_of_blocks() -> None:
    content = CASES[1].model()
    ours = jd.Interpreter(model_content=content).get_tensor_details()
    theirs = StockInterpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    ).get_tensor_details()
    np.testing.assert_equal(ours, theirs[: len(ours)])
    assert {d["quantization_parameters"]["block_size"] for d in ours} == {0, 32}


REFUSED = [
    (blockwise(scales((6, 2)), 32, np.ones((6, 4))), "4 zero points and 2 scales"),
    (blockwise(scales((6, 3)), 32), "18 scales do not fit"),
    (blockwise(-scales((6, 2)), 32), "is negative"),
    (blockwise(scales((6, 2)) * np.inf, 32), "not finite"),
    (Quantization(np.float32([]), np.int64([]), blockwise=Blockwise(0, -1, 32)), "not known"),
]


@pytest.mark.parametrize(("quantization", "said"), REFUSED)
def test_refuses(quantization: Quantization, said: str) -> None:
    inputs, outputs = dense("two-blocks", (3, 64), (6, 64), 32).specs()
    x, w, b = inputs
    w = dataclasses.replace(w, quantization=quantization)
    rule, context = RULES["FULLY_CONNECTED"], LoweringContext(quant_mode="integer")
    assert said in (rule.reason(Op(context, FullyConnectedOptions(), (x, w, b), outputs)) or "")
    assert rule.reason(Op(context, FullyConnectedOptions(), inputs, outputs)) is None
