"""Why engines may disagree on an operator: differences that are understood, one function each.

A function gets the smallest part of a graph that disagrees, with its operands' values and both
results. If the operator and the operands match its cause, it returns what the tested engine must
have computed instead: the results of LiteRT's other kernels, of numpy, or the same results with
those elements masked that the cause leaves undefined. `explanation` compares all other elements, so
a wrong result is never explained by its operator alone. docs/reliability.md names each function.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.options import (
    LocalResponseNormalizationOptions,
    ReduceWindowFunction,
)
from tests.support.difference_parts import (
    Stock,
    agrees,
    any_float,
    by_plain_kernels,
    is_extreme,
    masked,
    operator_of,
    outputs_of,
    reals_of,
    rows_with,
    scale_of,
    unmerged,
    with_floats,
)
from tests.support.differential import (
    Arrays,
    Disagreement,
    is_exact_for_rounded_operands,
    reference,
)
from tests.support.float_differences import (
    COMPARISONS,
    activations_stay_floats,
    body_magnifies_rounding,
    is_compared_in_steps,
    order_has_no_place_for_nan,
    positions_are_rounded,
    product_is_clipped,
    product_leaves_the_floats,
    quantized_without_end,
    square_root_of_a_square,
    stored_terms_cancel,
    subnormals_are_divided,
    subnormals_are_zeros,
    subnormals_are_zeros_at_times,
    sum_overflows,
    tables_are_interpolated,
)
from tests.support.stock_worker import CrashedError, RefusedError

_LITERT = "reference"  # the numpy reference is compared with LiteRT


_Explains = Callable[[Disagreement, Stock], Arrays | None]  # masked arrays among them


# ---- LiteRT's reference kernel is wrong, another source is right


def sum_reads_bytes(found: Disagreement, stock: Stock) -> Arrays | None:
    """LiteRT's reference kernel of SUM reads int8 and int16 as uint8; its plain one is right."""
    node, (x, *_) = operator_of(found)
    is_one = node.name == "SUM" and x.quantization is not None and x.dtype != np.uint8
    return by_plain_kernels(found.part, stock) if is_one else None


def nothing_is_summed(found: Disagreement, _stock: Stock) -> Arrays | None:
    """LiteRT's SUM of no quantized elements may leave its output unwritten.

    The integer mode stores 0, the float view the zero point.
    """
    node, (x, *_) = operator_of(found)
    y = outputs_of(found)[0]
    if node.name != "SUM" or y.quantization is None or x.value is None or x.value.size:
        return None
    zero = y.quantization.zero_point[0] if found.engine == "float_view" else 0
    return [np.full(y.shape, zero, y.dtype)]


def last_neighbor_is_missing(found: Disagreement, stock: Stock) -> Arrays | None:
    """LiteRT's reference kernel omits a neighborhood's last channel; its plain one does not.

    The plain kernel's running sums lose terms after a large square; there the definition decides.
    """
    node, (x, *_) = operator_of(found)
    o = node.options
    if not isinstance(o, LocalResponseNormalizationOptions) or x.value is None:
        return None
    sides = [(0, 0)] * (x.value.ndim - 1) + [(o.radius, o.radius)]
    squares = np.pad(np.square(x.value), sides)
    near = np.lib.stride_tricks.sliding_window_view(squares, 2 * o.radius + 1, -1).sum(-1)
    alpha, power = np.float32(o.alpha), np.float32(-o.beta)
    defined = x.value * (np.float32(o.bias) + alpha * near) ** power
    with np.errstate(invalid="ignore"):
        tame = (np.abs(x.value) < 10).all(-1, keepdims=True)
    return [np.where(tame, y, defined) for y in by_plain_kernels(found.part, stock)]


def read_as_floats(found: Disagreement, _stock: Stock) -> Arrays | None:
    """LiteRT's MATRIX_DIAG reads booleans as float32, beyond their end."""
    node, (x, *_) = operator_of(found)
    if node.name != "MATRIX_DIAG" or x.dtype != np.bool_ or x.value is None:
        return None
    return [x.value[..., None] & np.eye(x.value.shape[-1], dtype=bool)]


def scale_above_one(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Comparisons of quantized values whose scale is above 1: C++ leaves the shift undefined.

    The reals decide, up to the 1/256 to which kernels round them.
    """
    node, operands = operator_of(found)
    reals = [reals_of(t) for t in operands]
    if node.name not in COMPARISONS or len(reals) != 2:
        return None
    a, b = reals
    if a is None or b is None or max(scale_of(t) for t in operands) < 1:
        return None
    return [masked(COMPARISONS[node.name](a, b), np.abs(a - b) <= 2 / 256)]


def not_a_number_in_a_map(found: Disagreement, _stock: Stock) -> Arrays | None:
    """UNIQUE of values with a NaN, which LiteRT's ordered map treats as equal to any other.

    All NaN are one value.
    """
    node, (x, *_) = operator_of(found)
    if node.name != "UNIQUE" or x.value is None or not np.any(np.isnan(x.value)):
        return None
    places: dict[float | None, int] = {}
    keys = [None if np.isnan(v) else float(v) for v in x.value]
    index = [places.setdefault(k, len(places)) for k in keys]
    values = [np.nan if k is None else k for k in places]
    return [np.array(values, x.dtype), np.array(index, outputs_of(found)[1].dtype)]


def not_a_number_by_order(found: Disagreement, stock: Stock) -> Arrays | None:
    """The least or the largest of values with a NaN: C++ keeps it or not, by their order.

    StableHLO keeps it, and so do the reference and XLA.
    """
    node, part = found.part.nodes[0], found.part
    function = getattr(node.options, "reduce_function", None)
    if node.name in {"STABLEHLO_REDUCE_WINDOW", "STABLEHLO_REDUCE", "STABLEHLO_SCATTER"}:
        names = node.bodies[0].operators
    elif node.name == "REDUCE_WINDOW" and function is not None:
        names = [f"STABLEHLO_{ReduceWindowFunction(function).name}"]
    else:
        names = [node.name]
    end = {"STABLEHLO_MAXIMUM": np.inf, "STABLEHLO_MINIMUM": -np.inf}.get(names[0])
    if len(names) != 1 or end is None or not any_float(part, np.isnan):
        return None
    # Where a NaN is, the end that wins over everything else; elsewhere, the one that loses.
    marked = with_floats(part, lambda v: np.where(np.isnan(v), end, -end))
    has_one = [y == end for y in stock.run(marked.model(), marked.feeds)]
    return [np.where(h, np.nan, w) for h, w in zip(has_one, found.want, strict=True)]


def index_among_not_a_number(found: Disagreement, _stock: Stock) -> Arrays | None:
    """The index of the least or largest of values with a NaN, whose order in C++ is arbitrary."""
    node, (x, *axis) = operator_of(found)
    if node.name not in {"ARG_MIN", "ARG_MAX"} or x.value is None or x.dtype.kind != "f":
        return None
    over = 0 if axis[0].value is None else int(axis[0].value.item())
    mask = np.isnan(x.value).any(over)
    return [masked(w, mask.reshape(w.shape)) for w in found.want]


def states_are_overrun(found: Disagreement, stock: Stock) -> Arrays | None:
    """With merged outputs, batch major, LiteRT's kernels read beyond their states."""
    node, (x, *_) = operator_of(found)
    merged = getattr(node.options, "merge_outputs", False)
    if not merged or getattr(node.options, "time_major", True) or x.shape[0] == 1:
        return None
    apart = unmerged(found.part)
    halves = stock.run(apart.model(), apart.feeds)
    pairs = zip(halves[::2], halves[1::2], strict=True)
    want = [np.concatenate(pair, -1) for pair in pairs]
    extreme = quantized_without_end(dataclasses.replace(found, want=want), stock)
    return want if extreme is None else extreme


# ---- C++ or the order of operations leaves some elements undefined


def power_of_integers_overflows(found: Disagreement, _stock: Stock) -> Arrays | None:
    """POW of integers beyond int32, whose cast from a double is undefined in C++."""
    node, (a, *more) = operator_of(found)
    if node.name != "POW" or a.dtype != np.int32 or a.value is None or more[0].value is None:
        return None
    with np.errstate(over="ignore", divide="ignore"):
        power = np.abs(a.value.astype(np.float64) ** more[0].value)
    return [masked(w, power >= 2.0**31) for w in found.want]


def quotient_is_tiny(found: Disagreement, _stock: Stock) -> Arrays | None:
    """Quotients below half a step, which are the zero point: C++ may shift by more than 31 bits."""
    node, operands = operator_of(found)
    q = outputs_of(found)[0].quantization
    if node.name != "DIV" or q is None:
        return None
    a, b = (reals_of(t) for t in operands)
    if a is None or b is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        tiny = np.abs(a / b) < 0.499 * q.scale[0]
    return [np.where(tiny, w.dtype.type(q.zero_point[0]), w) for w in found.want]


def least_integer_by_minus_one(found: Disagreement, _stock: Stock) -> Arrays | None:
    """The least integer divided by -1 overflows, which is undefined in C++."""
    node, (a, *more) = operator_of(found)
    if node.name not in {"DIV", "FLOOR_DIV"} or a.dtype.kind != "i" or a.value is None:
        return None
    overflows = (a.value == np.iinfo(a.dtype).min) & (np.asarray(more[0].value) == -1)
    return [masked(w, overflows) for w in found.want]


def out_of_the_integers(found: Disagreement, _stock: Stock) -> Arrays | None:
    """A float that the integer cannot hold, whose cast is undefined in C++."""
    node, (x, *_) = operator_of(found)
    y = outputs_of(found)[0]
    floats = node.name in {"QUANTIZE", "CAST"} and x.dtype.kind == "f" and y.dtype.kind in "iu"
    if not floats or x.value is None:
        return None
    info = np.iinfo(np.int32 if y.quantization is not None else y.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = x.value.astype(np.float64) / (1.0 if y.quantization is None else scale_of(y))
        outside = ~((steps >= info.min) & (steps <= info.max))
    return [masked(w, outside) for w in found.want]


def transform_of_the_infinite(found: Disagreement, _stock: Stock) -> bool:
    """A Fourier transform of infinite or huge values: its order decides which results are NaN.

    The transform of such an image, and what elementwise operators compute from it, are not
    compared.
    """
    node, (x, *_) = operator_of(found)
    if node.name != "RFFT2D" or x.value is None:
        return False
    image = np.asarray(is_extreme(x.value).any((-2, -1), keepdims=True))
    if any(w.shape[:-2] != image.shape[:-2] for w in found.want):
        return False
    return agrees(found, [masked(w, image) for w in found.want])


def not_a_number_is_clipped(found: Disagreement, _stock: Stock) -> Arrays | None:
    """LSTM cells that are NaN: C++ clips them to the limit; the reference and XLA keep them."""
    node, (x, *_) = operator_of(found)
    limits = (getattr(node.options, name, 0.0) for name in ("cell_clip", "proj_clip"))
    if not any(limits) or found.got is None or x.value is None:
        return None
    extreme = is_extreme(x.value)
    results = zip(found.got, found.want, strict=True)
    return [masked(w, rows_with(node, extreme, w.shape) & np.isnan(g)) for g, w in results]


# ---- of any operators


def terms_cancel(found: Disagreement, _stock: Stock) -> bool:
    """A float sum of large terms of both signs, whose difference depends on their order."""
    part, (node, *more) = found.part, found.part.nodes
    other = found.want if found.engine == _LITERT else found.got  # than the numpy reference
    if more or node.accumulated == 1 or found.got is None or not other:
        return False
    if any(part.tensors[t].dtype.kind != "f" for t in node.outputs):
        return False
    return is_exact_for_rounded_operands(part, other, reference)


_XLA: tuple[_Explains, ...] = (
    square_root_of_a_square,
    quantized_without_end,
    sum_overflows,
    product_leaves_the_floats,
    subnormals_are_divided,
    order_has_no_place_for_nan,
)
BY_ENGINE: dict[str, tuple[_Explains, ...]] = {
    _LITERT: (
        nothing_is_summed,
        sum_reads_bytes,
        last_neighbor_is_missing,
        quotient_is_tiny,
        states_are_overrun,
        quantized_without_end,
        not_a_number_by_order,
        index_among_not_a_number,
        not_a_number_in_a_map,
        power_of_integers_overflows,
        read_as_floats,
        scale_above_one,
        out_of_the_integers,
        least_integer_by_minus_one,
        not_a_number_is_clipped,
        sum_overflows,
    ),
    "integer": _XLA,
    "float_view": (
        positions_are_rounded,
        tables_are_interpolated,
        product_is_clipped,
        is_compared_in_steps,
        stored_terms_cancel,
        nothing_is_summed,
        *_XLA,
    ),
    "without native kernels": _XLA,
}
_Is = Callable[[Disagreement, Stock], bool]
# For any operator: tried first, and tried last.
OF_ANY: tuple[_Is, ...] = (
    subnormals_are_zeros,
    transform_of_the_infinite,
    activations_stay_floats,
    terms_cancel,
    body_magnifies_rounding,
)
OF_THE_REST: tuple[_Is, ...] = (subnormals_are_zeros_at_times,)


def explanation(found: Disagreement, stock: Stock) -> str | None:
    """The name of the explanation of a disagreement; None if it is open."""
    for explains_any in OF_ANY:
        if explains_any(found, stock):
            return explains_any.__name__
    if len(found.part.nodes) == 1 and found.part.nodes[0].inputs and found.got is not None:
        for explains in BY_ENGINE.get(found.engine, ()):
            try:
                right = explains(found, stock)
            except (RefusedError, CrashedError):
                continue
            if right is not None and agrees(found, right):
                return explains.__name__
    for explains_any in OF_THE_REST:
        if explains_any(found, stock):
            return explains_any.__name__
    return None
