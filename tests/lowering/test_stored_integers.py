"""Operators whose kernels compute on stored integers: scales that LiteRT ignores are ignored.

The reference, both quantized modes and LiteRT get the same integers, with equal, different and
missing scales. Whatever the float view cannot tell from the reals, it leaves on the host.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering import legality
from jaxdelegate.op_lowering.options import (
    OPERATORS,
    ArgMaxOptions,
    ConcatenationOptions,
    CumsumOptions,
    DepthToSpaceOptions,
    GatherOptions,
    IfOptions,
    NoOptions,
    OneHotOptions,
    Options,
    PackOptions,
    Padding,
    Pool2DOptions,
    ReducerOptions,
    ReshapeOptions,
    ReverseSequenceOptions,
    SpaceToDepthOptions,
    SplitOptions,
    SplitVOptions,
    SqueezeOptions,
    TensorType,
    UniqueOptions,
    UnpackOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes import propagation
from jaxdelegate.passes.propagation import gather
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.combinations import covering
from tests.support.quantized import scaled

Tensor = Any  # a shape, an array (a constant), or (shape, dtype) of what has no scale


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator on tensors of a dtype that the test chooses.

    `like_result`: positions of the inputs that have the result's scale.
    """

    name: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] = ((2, 4),)
    options: Options | None = None
    like_result: Sequence[int] = ()

    def __str__(self) -> str:
        return self.name


def indices(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


ROWS, TWICE = (2, 4), [(2, 4), (2, 4)]
POOL = Pool2DOptions(Padding.VALID, 2, 2, 2, 2)
CHOSEN = [((2, 4), np.bool_), (2, 4), (2, 4)]
MOVING = [
    Operator("RESHAPE", [ROWS, indices(4, 2)], [(4, 2)], ReshapeOptions((4, 2))),
    Operator("TRANSPOSE", [ROWS, indices(1, 0)], [(4, 2)]),
    Operator("GATHER", [ROWS, indices(1, 0)], options=GatherOptions(0)),
    Operator("GATHER_ND", [ROWS, indices([1], [0])]),
    Operator("EMBEDDING_LOOKUP", [indices(1, 0), ROWS]),
    Operator("SLICE", [ROWS, indices(0, 1), indices(2, 2)], [(2, 2)]),
    Operator("STRIDED_SLICE", [ROWS, indices(0, 0), indices(2, 4), indices(1, 2)], [(2, 2)]),
    Operator("PAD", [ROWS, indices([1, 0], [0, 1])], [(3, 5)]),
    Operator("PADV2", [ROWS, indices([1, 0], [0, 1]), (1,)], [(3, 5)], like_result=[2]),
    Operator("TILE", [ROWS, indices(1, 2)], [(2, 8)]),
    Operator("REVERSE_V2", [ROWS, indices(0)]),
    Operator("REVERSE_SEQUENCE", [ROWS, indices(2, 3)], options=ReverseSequenceOptions(1, 0)),
    Operator("PACK", TWICE, [(2, 2, 4)], PackOptions(2, 0)),
    Operator("UNPACK", [ROWS], [(4,), (4,)], UnpackOptions(2, 0)),
    Operator("SPLIT", [indices(0).reshape(()), ROWS], [(1, 4), (1, 4)], SplitOptions(2)),
    Operator("SPLIT_V", [ROWS, indices(1, 1), indices(0)], [(1, 4), (1, 4)], SplitVOptions(2)),
    Operator("CONCATENATION", TWICE, [(4, 4)], ConcatenationOptions(0)),
    Operator("SELECT", CHOSEN, like_result=[2]),
    Operator("SELECT_V2", CHOSEN, like_result=[2]),
    Operator("MAXIMUM", TWICE),
    Operator("MINIMUM", TWICE, like_result=[1]),
    Operator("TOPK_V2", [ROWS, indices(2).reshape(())], [(2, 2), ((2, 2), np.int32)]),
    Operator("EXPAND_DIMS", [ROWS, indices(0)], [(1, 2, 4)]),
    Operator("SQUEEZE", [(1, 2, 4)], options=SqueezeOptions((0,))),
    Operator("BROADCAST_TO", [(1, 4), indices(2, 4)]),
    Operator("DYNAMIC_UPDATE_SLICE", [ROWS, (1, 2), indices(0, 1)], like_result=[1]),
    Operator("REDUCE_MAX", [ROWS, indices(1)], [(2,)], ReducerOptions(False)),
    Operator("REDUCE_MIN", [ROWS, indices(1)], [(2,)], ReducerOptions(False)),
    Operator("MAX_POOL_2D", [(1, 4, 4, 1)], [(1, 2, 2, 1)], POOL),
    Operator("AVERAGE_POOL_2D", [(1, 4, 4, 1)], [(1, 2, 2, 1)], POOL),
    Operator("RESIZE_NEAREST_NEIGHBOR", [(1, 2, 2, 1), indices(4, 4)], [(1, 4, 4, 1)]),
    Operator("RESIZE_BILINEAR", [(1, 2, 2, 1), indices(4, 4)], [(1, 4, 4, 1)]),
    Operator("DEPTH_TO_SPACE", [(1, 2, 2, 4)], [(1, 4, 4, 1)], DepthToSpaceOptions(2)),
    Operator("SPACE_TO_DEPTH", [(1, 4, 4, 1)], [(1, 2, 2, 4)], SpaceToDepthOptions(2)),
    Operator("FILL", [indices(2, 4), ()]),
    Operator("UNIQUE", [(8,)], [(8,), ((8,), np.int32)], UniqueOptions(TensorType.INT32)),
    Operator("ONE_HOT", [indices(0, 1), indices(4).reshape(()), (), ()], options=OneHotOptions(-1)),
    Operator("MATRIX_SET_DIAG", [(4, 4), (4,)], [(4, 4)]),
    Operator("SPARSE_TO_DENSE", [indices(0, 2), indices(4), (2,), ()], [(4,)]),
    Operator("ARG_MAX", [ROWS, indices(1)], [((2,), np.int32)], ArgMaxOptions(TensorType.INT32)),
    Operator("STABLEHLO_MAXIMUM", TWICE),
    Operator("STABLEHLO_MINIMUM", TWICE, like_result=[1]),
]
COMPUTING = [
    Operator("CAST", [ROWS], [((2, 4), np.float32)]),
    Operator("CAST", [ROWS], [((2, 4), np.int32)]),
    Operator("CAST", [((2, 4), np.float32)]),
    Operator("CAST", [ROWS]),
    Operator("BITCAST", [ROWS]),
    Operator("NEG", [ROWS]),
    Operator("FLOOR_DIV", TWICE),
    Operator("FLOOR_MOD", TWICE),
    Operator("BITWISE_XOR", TWICE),
    Operator("RIGHT_SHIFT", TWICE),
    Operator("SCATTER_ND", [indices([2], [0]), ROWS, indices(3, 4)], [(3, 4)]),
    Operator("MATRIX_DIAG", [(4,)], [(4, 4)]),
    Operator("STABLEHLO_ADD", TWICE),
    Operator("STABLEHLO_MULTIPLY", TWICE),
]
OF_SOME = [  # of int32, and orders of int16
    Operator("LESS", TWICE, [((2, 4), np.bool_)], like_result=[1]),
    Operator("GREATER_EQUAL", TWICE, [((2, 4), np.bool_)], like_result=[1]),
    Operator("EQUAL", TWICE, [((2, 4), np.bool_)], like_result=[1]),
    Operator("ADD", TWICE),
    Operator("MUL", TWICE),
    Operator("ABS", [ROWS]),
    Operator("SIGN", [ROWS]),
    Operator("ADD_N", TWICE, options=NoOptions()),
    Operator("CUMSUM", [ROWS, indices(1).reshape(())], options=CumsumOptions()),
    Operator("SUM", [ROWS, indices(1)], [(2,)], ReducerOptions(False)),
    Operator("MEAN", [ROWS, indices(1)], [(2,)], ReducerOptions(False)),
    Operator("UNSORTED_SEGMENT_SUM", [ROWS, indices(0, 1), indices(2).reshape(())]),
]

WIDE = (np.int32, np.int64)
NARROW = (np.int8, np.uint8, np.int16)


def quantized(dtype: Any, scale: float) -> Quantization:
    return scaled(scale, 0 if dtype == np.int16 else 3)


def scales_of(dtype: Any) -> dict[str, tuple[Quantization | None, Quantization | None]]:
    """Quantizations of input and output."""
    x, y = quantized(dtype, 0.5), quantized(dtype, 0.25)
    return {"equal": (x, x), "different": (x, y), "in only": (x, None), "out only": (None, y)}


@dataclasses.dataclass(frozen=True)
class Built:
    content: bytes
    arrays: list[np.ndarray]


def built(
    operators: Sequence[Operator], dtype: Any, scales: Sequence[Quantization | None]
) -> Built:
    """A model of these operators, side by side."""
    builder, arrays, results = ModelBuilder(), [], []
    for operator in operators:
        rng, inputs, outputs = np.random.default_rng(5), [], []
        for position, tensor in enumerate(operator.inputs):
            if isinstance(tensor, np.ndarray):
                inputs.append(builder.constant(tensor))
                continue
            shape, own, scale = _parts(tensor, dtype, scales[position in operator.like_result])
            inputs.append(builder.input(shape, own, quantization=scale))
            low, high = (0, 2) if own == np.bool_ else (-9 if np.dtype(own).kind in "if" else 1, 12)
            values = rng.uniform if np.dtype(own).kind == "f" else rng.integers
            arrays.append(np.asarray(values(low, high, shape)).astype(own))
        for tensor in operator.outputs:
            shape, own, scale = _parts(tensor, dtype, scales[1])
            outputs.append(builder.tensor(shape, own, quantization=scale))
        builder.operator(operator.name, inputs, outputs, operator.options)
        results += outputs
    builder.outputs(*results)
    return Built(builder.build(), arrays)


def _parts(tensor: Any, dtype: Any, scale: Quantization | None) -> Any:
    has_own = len(tensor) == 2 and isinstance(tensor[0], tuple)
    return (*tensor, None) if has_own else (tensor, dtype, scale)


def litert(model: Built) -> list[np.ndarray] | None:
    """LiteRT's outputs; None if it rejects the model."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_REF
    try:
        interpreter = Interpreter(model_content=model.content, experimental_op_resolver_type=kind)
        return run_once(interpreter, model.arrays)
    except (RuntimeError, ValueError):
        return None


def reference(model: Built) -> list[np.ndarray]:
    return run_once(jd.Interpreter(model_content=model.content), model.arrays)


def why_not(model: Built) -> str | None:
    """Why the float view does not support the operator."""
    subgraph = jd.load(model.content).graph.subgraphs[0]
    (operator,), specs = subgraph.operators, propagation.subgraph_specs(subgraph, None, [])
    inputs, outputs = (gather(specs, i) for i in (operator.inputs, operator.outputs))
    return legality.why_not(LoweringContext(), operator, inputs, outputs)


def rows(operators: Sequence[Operator], dtypes: Sequence[Any]) -> list[Any]:
    return [
        pytest.param(operator, dtype, id=f"{operator}-{np.dtype(dtype)}-{number}")
        for number, operator in enumerate(operators)
        for dtype in dtypes
    ]


INT16 = rows(OF_SOME[:2], [np.int16])
ALL = rows([*MOVING, *COMPUTING], (*NARROW, *WIDE)) + rows(OF_SOME, WIDE) + INT16


@pytest.mark.litert
@pytest.mark.parametrize(("operator", "dtype"), ALL)
def test_the_reference_ignores_the_scales_that_litert_ignores(
    operator: Operator, dtype: Any
) -> None:
    for label, scales in scales_of(dtype).items():
        model = built([operator], dtype, scales)
        want = litert(model)
        if want is not None and not needs_scales(operator, dtype, scales):
            for got, wanted in zip(reference(model), want, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=label)


def needs_scales(operator: Operator, dtype: Any, scales: Sequence[Any]) -> bool:
    """Whether LiteRT computes with a missing scale, which is 0 there."""
    reads = operator.name in ("PAD", "MAX_POOL_2D", "AVERAGE_POOL_2D")
    rescales = np.dtype(dtype) in OPERATORS[operator.name].scales.rescaled
    return None in scales and (reads or rescales)


@pytest.mark.litert
@pytest.mark.parametrize(
    ("dtype", "label"), covering(NARROW, ["equal", "different", "in only", "out only"])
)
def test_the_float_view_agrees_with_litert_or_leaves_the_operator(dtype: Any, label: str) -> None:
    scales = scales_of(dtype)[label]
    moving, orders = MOVING if label != "equal" else (), OF_SOME[:2] if dtype == np.int16 else ()
    taken = [
        operator
        for operator in [*moving, *COMPUTING, *orders]
        if litert(model := built([operator], dtype, scales)) is not None
        and why_not(model) is None
        and not needs_scales(operator, dtype, scales)
    ]
    assert len(taken) > 5
    model = built(taken, dtype, scales)
    want = litert(model)
    assert want is not None
    delegates = [jd.JaxDelegate(require_full_delegation=True)]
    interpreter = jd.Interpreter(model_content=model.content, experimental_delegates=delegates)
    for got, wanted in zip(run_once(interpreter, model.arrays), want, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6 if got.dtype.kind == "f" else 0)


@pytest.mark.parametrize(("operator", "dtype"), rows(MOVING, NARROW))
def test_the_float_view_moves_integers_of_one_scale(operator: Operator, dtype: Any) -> None:
    reason = why_not(built([operator], dtype, scales_of(dtype)["equal"]))
    assert (reason is None) == (operator.name != "UNIQUE")


@pytest.mark.parametrize(("operator", "dtype"), rows(COMPUTING[4:], [np.int8, np.int16]))
def test_the_float_view_computes_on_integers(operator: Operator, dtype: Any) -> None:
    assert why_not(built([operator], dtype, scales_of(dtype)["equal"])) is None


@pytest.mark.parametrize("dtype", WIDE)
def test_the_float_view_leaves_integers_that_floats_do_not_hold(dtype: Any) -> None:
    model = built(MOVING[:1], dtype, scales_of(dtype)["equal"])
    assert "whose steps float32 cannot represent" in (why_not(model) or "")


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0, -1.0, 1e-45, 3e38])
def test_the_float_view_leaves_tensors_of_impossible_scales(scale: float) -> None:
    model = built(MOVING[:1], np.int8, [scaled(scale, 0)] * 2)
    assert f"the scale of 't0' is {np.float32(scale)}" in (why_not(model) or "")


def test_integers_have_no_derivative() -> None:
    (shape,), scale = [(2, 4)], scaled(0.5, 3)
    builder = ModelBuilder()
    x, y = builder.input(shape, np.int8, quantization=scale), builder.tensor(shape)
    builder.operator("CAST", [x], [y])
    builder.outputs(y)
    apply, params = jd.load(builder.build()).function(io="float")
    with pytest.raises(jd.GradientError, match="CAST computes on the integers of"):
        jax.grad(lambda v: apply(params, v)[0].sum())(np.ones(shape, np.float32))


@pytest.mark.litert
@pytest.mark.parametrize(
    ("scales", "is_left"),
    [
        ((0.5, 0.5, 0.5, 0.5), False),
        ((0.5, 0.25, 0.25, 0.5), True),
        ((0.5, 0.5, 0.25, 0.25), False),
        ((0.5, 0.5, 0.5, 0.25), True),
    ],
)
def test_a_branch_takes_and_returns_integers(scales: tuple[float, ...], is_left: bool) -> None:
    """The scales are those of the value before the branch, within it, of its result, and after."""
    before, within, result, after = (scaled(s, round(2 / s)) for s in scales)
    main = ModelBuilder()
    condition = main.input((1,), np.bool_)
    x = main.input((3,), np.int8, quantization=before)
    y = main.tensor((3,), np.int8, quantization=after)
    for name in ("then", "else"):
        branch = main.subgraph(name)
        a = branch.input((3,), np.int8, quantization=within)
        b = branch.tensor((3,), np.int8, quantization=result)
        branch.operator("RELU", [a], [b])
        branch.outputs(b)
    main.operator("IF", [condition, x], [y], IfOptions(1, 2))
    main.outputs(y)
    model = Built(main.build(), [np.array([True]), np.int8([4, -9, 7])])
    delegate = jd.JaxDelegate(quant_mode="float_view")
    interpreter = jd.Interpreter(model_content=model.content, experimental_delegates=[delegate])
    np.testing.assert_array_equal(run_once(interpreter, model.arrays), litert(model))
    assert (delegate.report().nodes[0].reason is not None) == is_left
