"""How the float view and XLA may differ: explanations like those of known_differences.py."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.op_lowering.options import ActivationFunctionType, SoftmaxOptions
from tests.support.difference_parts import (
    Stock,
    agrees,
    any_float,
    called_body,
    changed_by,
    in_floats,
    is_extreme,
    is_far_from_one,
    is_large,
    masked,
    operator_of,
    outputs_of,
    reals_of,
    rows_with,
    scale_of,
    with_floats,
    with_real_weights,
)
from tests.support.differential import (
    Arrays,
    Disagreement,
    intermediate,
    is_rounding,
    mismatch,
    moved_by_rounding,
    reference,
    results_of,
)
from tests.support.graph_records import GraphTensor
from tests.support.stock_worker import RefusedError

COMPARISONS = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}
_TABLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "EXP": np.exp,
    "LOG": np.log,
    "RSQRT": lambda v: 1 / np.sqrt(v),
    "TANH": np.tanh,
    "LOGISTIC": lambda v: 1 / (1 + np.exp(-v)),
    "SOFTMAX": lambda v: np.exp(v) / np.exp(v).sum(-1, keepdims=True),
}
_SUMS = {"SUM", "MEAN", "CUMSUM", "SEGMENT_SUM", "FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D"}
_SUMS |= {"DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D", "CONV_3D_TRANSPOSE"}
_SUMS |= {"AVERAGE_POOL_2D", "STABLEHLO_REDUCE", "STABLEHLO_DOT_GENERAL", "STABLEHLO_CONVOLUTION"}
_MOST = np.finfo(np.float32).max
_NONE = ActivationFunctionType.NONE

# ---- a float view computes the definition, integer kernels round intermediate results


def positions_are_rounded(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Integer kernels round positions between pixels to 1/1024; the float view does not."""
    node, (x, *_) = operator_of(found)
    y = outputs_of(found)[0]
    if node.name != "RESIZE_BILINEAR" or y.quantization is None or x.value is None:
        return None
    image = x.value.astype(np.float64)
    for axis in (1, 2):
        n, m = image.shape[axis], y.shape[axis]
        at = np.arange(m, dtype=np.float64)
        if getattr(node.options, "half_pixel_centers", False):
            at = (at + 0.5) * n / m - 0.5
        elif getattr(node.options, "align_corners", False) and m > 1:
            at *= (n - 1) / (m - 1)
        else:
            at *= n / m
        image = np.apply_along_axis(
            lambda v, at=at: np.interp(at, np.arange(len(v)), v), axis, image
        )
    return [np.rint(image).astype(y.dtype)]


def tables_are_interpolated(found: Disagreement, _stock: Stock) -> Arrays | None:
    """int16 kernels interpolate tables of functions; the float view computes the functions.

    Operands without a logarithm or root are not compared.
    """
    node, (x, *_) = operator_of(found)
    y, reals = outputs_of(found)[0], reals_of(x)
    function = _TABLES.get(node.name)
    if function is None or reals is None or y.quantization is None or x.dtype != np.int16:
        return None
    if isinstance(node.options, SoftmaxOptions):
        reals = node.options.beta * (reals - reals.max(-1, keepdims=True))
    outside = (reals <= 0) & (node.name in {"LOG", "RSQRT"})
    return [masked(_stored(function(np.where(outside, 1, reals)), y), np.asarray(outside))]


def product_is_clipped(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Integer kernels round a product after each factor, in 32 bits, which may overflow.

    The float view clips the product of the reals once.
    """
    node, (x, *more) = operator_of(found)
    y, reals = outputs_of(found)[0], reals_of(x)
    if node.name != "REDUCE_PROD" or reals is None or more[0].value is None:
        return None
    over = tuple(np.atleast_1d(more[0].value).tolist())
    return [_stored(np.prod(reals, over).reshape(y.shape), y)]


def is_compared_in_steps(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Integer kernels round to 1/256 of a step before comparing; the float view does not round.

    Reals that float32 cannot distinguish are not compared.
    """
    node, operands = operator_of(found)
    reals = [reals_of(t) for t in operands]
    if node.name not in COMPARISONS or len(reals) != 2:
        return None
    a, b = reals
    if a is None or b is None:
        return None
    same = np.abs(a - b) <= np.finfo(np.float32).eps * np.maximum(np.abs(a), np.abs(b))
    return [masked(COMPARISONS[node.name](a, b), same)]


def stored_terms_cancel(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Terms of a float view's sum cancel, and its result is stored in steps finer than rounding."""
    part, (node, *_) = found.part, found.part.nodes
    y, floats = outputs_of(found)[0], in_floats(part)
    if node.name not in _SUMS or y.quantization is None or floats is None or not found.got:
        return None
    reals = reference(floats.model(), floats.feeds)
    moved = moved_by_rounding(floats, reference, reals)
    low, high = (
        [_stored(r + sign * m, y) for r, m in zip(reals, moved, strict=True)] for sign in (-1, 1)
    )
    return [np.clip(g, a, b) for g, a, b in zip(found.got, low, high, strict=True)]


def activations_stay_floats(found: Disagreement, stock: Stock) -> bool:
    """LiteRT rounds float activations to int8 before products; the float view does not.

    The expected result is that of the weights' reals, from the reference's float kernels. Those
    also go through a sequence once, unlike LiteRT's dynamic range kernel of
    BIDIRECTIONAL_SEQUENCE_RNN, which does so for each step in time-major order.
    """
    weights = with_real_weights(found.part)
    if found.engine != "float_view" or weights is None:
        return False
    want = reference(weights.model(), weights.feeds)
    if len(found.part.nodes) == 1:
        ours = dataclasses.replace(found, want=want)
        want = quantized_without_end(ours, stock) or want
    return agrees(found, want)


def _stored(reals: np.ndarray, y: GraphTensor) -> np.ndarray:
    """Quantize reals for a tensor."""
    assert y.quantization is not None
    ends = np.iinfo(y.dtype)
    steps = np.rint(reals / scale_of(y)) + float(y.quantization.zero_point[0])
    return np.clip(steps, ends.min, ends.max).astype(y.dtype)


# ---- XLA computes in another order, or treats tiny values as zeros


def square_root_of_a_square(found: Disagreement, _stock: Stock) -> Arrays | None:
    """XLA simplifies sqrt(x * x) to |x|, for a window of one value whose square overflows."""
    node, (x, *_) = operator_of(found)
    o = node.options
    one = getattr(o, "filter_width", 0) == getattr(o, "filter_height", 0) == 1
    if node.name != "L2_POOL_2D" or not one or x.value is None:
        return None
    kept = np.abs(x.value[:, :: getattr(o, "stride_h", 1), :: getattr(o, "stride_w", 1)])
    kept = np.minimum(kept, _MOST)  # as the activation does
    gone = (kept > 1e18) | (kept < 1e-18)
    return [np.where(gone & ((w >= _MOST) | (w == 0)), kept, w) for w in found.want]


def quantized_without_end(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Dynamic range of infinite, huge or NaN activations: C++ casts what int8 cannot hold.

    The results of the same row are undefined, since a row has one scale.
    """
    node, (x, *more) = operator_of(found)
    dynamic = any(t.quantization is not None for t in more) and x.dtype == np.float32
    if not dynamic or node.name == "DEQUANTIZE" or x.value is None:
        return None
    extreme = is_extreme(x.value)
    return [masked(w, rows_with(node, extreme, w.shape)) for w in found.want]


def sum_overflows(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Sums of terms near the largest float: their order decides whether one is infinite or NaN.

    XLA also treats subnormal terms as zeros, whose product with an infinity is NaN.
    """
    node, part = found.part.nodes[0], found.part
    if node.accumulated == 1 or found.got is None or not any_float(part, is_large):
        return None
    masks = changed_by(part, is_large)
    activation = getattr(node.options, "fused_activation_function", _NONE)
    if node.name in _SUMS and activation == _NONE:  # nothing makes it finite again
        results = zip(masks, found.got, found.want, strict=True)
        masks = [m & ~(np.isfinite(g) & np.isfinite(w)) for m, g, w in results]
    if found.engine != "reference" and any_float(part, _is_subnormal):  # zeros to XLA
        tiny = changed_by(part, _is_subnormal)
        masks = [m | t for m, t in zip(masks, tiny, strict=True)]
    return [masked(w, m) for w, m in zip(found.want, masks, strict=True)]


def product_leaves_the_floats(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Products of huge and tiny factors: their order decides whether one is 0 or infinite.

    One of the two results is then 0, infinite or NaN.
    """
    node, part = found.part.nodes[0], found.part
    of_bodies = [name for body in node.bodies for name in body.operators]
    if (node.name != "REDUCE_PROD" and of_bodies != ["STABLEHLO_MULTIPLY"]) or found.got is None:
        return None
    masks = changed_by(part, is_far_from_one)
    results = zip(masks, found.got, found.want, strict=True)
    ends = [m & (_is_an_end(g) | _is_an_end(w)) for m, g, w in results]
    return [masked(w, m) for w, m in zip(found.want, ends, strict=True)]


def subnormals_are_zeros(found: Disagreement, _stock: Stock) -> bool:
    """XLA on a CPU treats subnormal floats as zeros; with zeros the reference agrees."""
    if found.engine == "reference" or found.got is None:
        return False
    flushed = with_floats(found.part, _flushed)

    def flushing(content: bytes, inputs: Sequence[np.ndarray]) -> Arrays:
        return [_flushed(y) for y in reference(content, inputs)]

    try:
        want = reference(flushed.model(), flushed.feeds)
        each = results_of(flushed, intermediate(flushed, flushing))
    except RefusedError:  # it divides by zero now
        return False
    return any(mismatch(flushed, found.got, y, found.rule) is None for y in (want, each))


def body_magnifies_rounding(found: Disagreement, _stock: Stock) -> bool:
    """A called subgraph magnifies roundings: nudges inside it move its results as far."""
    body = called_body(found.part)
    if body is None or found.got is None or found.engine == "reference":
        return False
    return is_rounding(body, found.got, reference, found.want, found.rule)


def _flushed(v: np.ndarray) -> np.ndarray:
    if v.dtype != np.float32:
        return v
    return np.where(_is_subnormal(v), np.copysign(np.float32(0), v), v)


def subnormals_are_divided(found: Disagreement, _stock: Stock) -> Arrays | None:
    """XLA on a CPU divides by zero where a divisor is subnormal, which the reference refuses.

    It also treats subnormal quotients as zero, whose floor may be -1.
    """
    node, operands = operator_of(found)
    if node.name not in {"FLOOR_DIV", "FLOOR_MOD"} or len(operands) != 2:
        return None
    a, b = (t.value for t in operands)
    if a is None or b is None or a.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        quotient = a / b
    mask = _is_subnormal(b) | _is_subnormal(quotient) | ((quotient == 0) & (a != 0))
    return [masked(w, mask) for w in found.want]


def subnormals_are_zeros_at_times(found: Disagreement, _stock: Stock) -> bool:
    """XLA treats only some subnormal operands of an operator as zeros.

    Results that depend on subnormal operands are not compared.
    """
    part = found.part
    if found.engine == "reference" or found.got is None or not any_float(part, _is_subnormal):
        return False
    masks = changed_by(part, _is_subnormal)
    return agrees(found, [masked(w, m) for w, m in zip(found.want, masks, strict=True)])


def order_has_no_place_for_nan(found: Disagreement, _stock: Stock) -> Arrays | None:
    """A sort of values with a NaN, which no comparison places: any order is right."""
    node, operands = operator_of(found)
    x, dimension = operands[0].value, getattr(node.options, "dimension", -1)
    if node.name != "STABLEHLO_SORT" or found.got is None or len(operands) != 1 or x is None:
        return None
    if x.dtype.kind != "f":
        return None
    has_nan = np.isnan(x).any(dimension, keepdims=True)
    wants = zip(found.got, found.want, strict=True)
    return [np.where(has_nan & _is_permuted(y, x, dimension), y, w) for y, w in wants]


def _is_permuted(y: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    a, b = np.sort(y, axis), np.sort(x, axis)
    return np.asarray(((a == b) | (np.isnan(a) & np.isnan(b))).all(axis, keepdims=True))


def _is_an_end(v: np.ndarray) -> np.ndarray:
    return np.asarray(~np.isfinite(v) | (v == 0))


def _is_subnormal(v: np.ndarray) -> np.ndarray:
    smallest = np.finfo(np.float32).smallest_normal
    return np.asarray((v != 0) & (np.abs(v) < smallest) & (v.dtype == np.float32))
