"""Why engines may disagree on an operator: differences that are understood, one function each.

A function sees the smallest part of a graph that disagrees, with its operands' values. It says yes
only where the operator and the operands are those of a known cause; docs/reliability.md has a line
for each by its name.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.options import ReduceWindowFunction
from jaxdelegate.testing.differential import (
    Disagreement,
    is_exact_for_rounded_operands,
    reference,
    why_apart,
)
from jaxdelegate.testing.graph_records import Graph, GraphTensor, Node

_LITERT = "reference"  # the numpy reference is judged by LiteRT
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_EXTREMA = ("STABLEHLO_REDUCE_WINDOW", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
_LARGE = 1e37  # from here on, a scale of 127 steps or a sum overflows


def sum_reads_bytes(node: Node, part: Graph) -> bool:
    """LiteRT's reference kernel of SUM reads int8 and int16 as uint8; its plain one does not."""
    x = part.tensors[node.inputs[0] or 0]
    return node.name == "SUM" and x.quantization is not None and x.dtype != np.uint8


def last_neighbor_is_missing(node: Node, _part: Graph) -> bool:
    """LiteRT's reference kernel leaves the last channel of a neighborhood out."""
    return node.name == "LOCAL_RESPONSE_NORMALIZATION"


def nothing_is_written(node: Node, part: Graph) -> bool:
    """LiteRT's NOT_EQUAL has no int16 and leaves its output as the memory was."""
    x = part.tensors[node.inputs[0] or 0]
    return node.name == "NOT_EQUAL" and x.dtype == np.int16


def read_as_floats(node: Node, part: Graph) -> bool:
    """LiteRT's MATRIX_DIAG takes what is no integer for float32, and reads beyond booleans."""
    x = part.tensors[node.inputs[0] or 0]
    return node.name == "MATRIX_DIAG" and x.dtype == np.bool_


def scale_above_one(node: Node, part: Graph) -> bool:
    """Comparisons of quantized values whose scale is above 1: C++ leaves the shift undefined."""
    scales = [t.quantization.scale[0] for t in part.tensors if t.quantization is not None]
    return node.name in _COMPARISONS and max(scales, default=0.0) >= 1


def power_of_integers_overflows(node: Node, part: Graph) -> bool:
    """POW of integers beyond int32, which C++ casts from a double: undefined."""
    if node.name != "POW" or part.tensors[node.outputs[0]].dtype != np.int32:
        return False
    a, b = (part.tensors[i or 0].value for i in node.inputs)
    if a is None or b is None:
        return False
    return bool(np.any(np.abs(a.astype(np.float64) ** b) >= 2.0**31))


def not_a_number_in_a_map(node: Node, part: Graph) -> bool:
    """UNIQUE of values with a NaN, which LiteRT's ordered map takes for equal to any other."""
    return node.name == "UNIQUE" and any(np.any(np.isnan(v)) for v in _floats(part))


def quotient_is_tiny(node: Node, part: Graph) -> bool:
    """Quotients below a quarter of a step: C++ shifts by more than 31 bits, which is undefined."""
    if node.name != "DIV":
        return False
    a, b = (_reals(part.tensors[i or 0]) for i in node.inputs)
    y = part.tensors[node.outputs[0]].quantization
    if a is None or b is None or y is None:
        return False
    return bool(np.any(np.abs(a / b) < 0.25 * y.scale[0]))


def quantized_without_end(node: Node, part: Graph) -> bool:
    """Dynamic range of infinite, huge or NaN activations: C++ casts what int8 cannot hold."""
    operands = [part.tensors[i] for i in node.inputs if i is not None]
    weights = any(t.quantization is not None for t in operands)
    floats = any(t.dtype == np.float32 for t in operands[:1])
    return weights and floats and node.name != "DEQUANTIZE" and _is_extreme(part)


def not_a_number_by_order(node: Node, part: Graph) -> bool:
    """The least or the largest of values with a NaN: C++ keeps it or not, by their order.

    StableHLO keeps it, and so do the reference and XLA.
    """
    windows = node.name in _EXTREMA or (
        node.name == "REDUCE_WINDOW"
        and getattr(node.options, "reduce_function", None)
        in {ReduceWindowFunction.MINIMUM, ReduceWindowFunction.MAXIMUM}
    )
    return windows and any(np.any(np.isnan(v)) for v in _floats(part))


def least_integer_by_minus_one(node: Node, part: Graph) -> bool:
    """The least integer divided by -1 is more than the largest one: undefined in C++."""
    if node.name not in {"DIV", "FLOOR_DIV"} or part.tensors[node.outputs[0]].dtype.kind != "i":
        return False
    a, b = (part.tensors[i or 0].value for i in node.inputs)
    return (
        a is not None and b is not None and bool(np.any((a == np.iinfo(a.dtype).min) & (b == -1)))
    )


def out_of_the_integers(node: Node, part: Graph) -> bool:
    """A float that the integer cannot hold: undefined in C++."""
    if node.name not in {"QUANTIZE", "CAST"}:
        return False
    y = part.tensors[node.outputs[0]]
    if y.dtype.kind not in "iu":
        return False
    info = np.iinfo(np.int32 if y.quantization is not None else y.dtype)
    scale = 1.0 if y.quantization is None else float(y.quantization.scale[0])
    with np.errstate(invalid="ignore", over="ignore"):
        return any(
            bool(np.any(~((v / scale >= info.min) & (v / scale <= info.max))))
            for v in _floats(part)
        )


def transform_of_the_infinite(node: Node, part: Graph) -> bool:
    """A Fourier transform of infinite or huge values: where NaN comes out depends on its order."""
    return node.name == "RFFT2D" and _is_extreme(part)


def states_are_overrun(node: Node, part: Graph) -> bool:
    """Merged outputs, batch major: LiteRT's kernels read beyond their states."""
    merged = getattr(node.options, "merge_outputs", False)
    first = getattr(node.options, "time_major", True)
    return merged and not first and part.tensors[node.inputs[0] or 0].shape[0] > 1


def positions_are_rounded(node: Node, part: Graph) -> bool:
    """Integer kernels round positions between pixels to 1/1024: up to 64 steps of int16."""
    return node.name == "RESIZE_BILINEAR" and part.tensors[node.outputs[0]].dtype == np.int16


def sum_overflows(node: Node, part: Graph) -> bool:
    """Sums of terms near the largest float: their order says whether one is infinite, or NaN."""
    with np.errstate(invalid="ignore"):
        large = [np.any(np.isfinite(v) & (np.abs(v) > _LARGE)) for v in _floats(part)]
    return node.accumulated > 1 and any(large)


def square_root_of_a_square(node: Node, part: Graph) -> bool:
    """XLA makes |x| of sqrt(x * x): a window of one value, whose square float32 cannot hold."""
    o = node.options
    one = getattr(o, "filter_width", 0) == getattr(o, "filter_height", 0) == 1
    return (
        node.name == "L2_POOL_2D" and one and any(np.any(np.abs(v) > 1e18) for v in _floats(part))
    )


def subnormals_are_zeros(found: Disagreement) -> bool:
    """XLA on a CPU takes subnormal floats for zeros: so taken, the reference agrees."""
    part, smallest = found.part, np.finfo(np.float32).smallest_normal
    if found.got is None or not any(
        np.any((v != 0) & (np.abs(v) < smallest)) for v in _floats(part)
    ):
        return False
    tensors = [
        dataclasses.replace(t, value=np.where(np.abs(t.value) < smallest, t.value * 0, t.value))
        if t.value is not None and t.dtype == np.float32
        else t
        for t in part.tensors
    ]
    flushed = dataclasses.replace(part, tensors=tuple(tensors))
    want = reference(flushed.model(), flushed.feeds)
    return why_apart(flushed, found.got, want) is None


def terms_cancel(found: Disagreement) -> bool:
    """A float sum of large terms of both signs: what is left of it depends on their order."""
    part, (node, *more) = found.part, found.part.nodes
    other = found.want if found.engine == _LITERT else found.got  # than the numpy reference
    if more or node.accumulated == 1 or found.got is None or other is None:
        return False
    if any(part.tensors[t].dtype.kind != "f" for t in node.outputs):
        return False
    return is_exact_for_rounded_operands(part, other, reference)


_Explains = Callable[[Node, Graph], bool]
_XLA: tuple[_Explains, ...] = (square_root_of_a_square, quantized_without_end, sum_overflows)
BY_ENGINE: dict[str, tuple[_Explains, ...]] = {
    _LITERT: (
        sum_reads_bytes,
        last_neighbor_is_missing,
        nothing_is_written,
        quotient_is_tiny,
        quantized_without_end,
        not_a_number_by_order,
        not_a_number_in_a_map,
        power_of_integers_overflows,
        read_as_floats,
        scale_above_one,
        out_of_the_integers,
        transform_of_the_infinite,
        states_are_overrun,
        least_integer_by_minus_one,
        sum_overflows,
    ),
    "integer": _XLA,
    "float_view": (positions_are_rounded, *_XLA),
    "without native kernels": _XLA,
}


def explanation(found: Disagreement) -> str | None:
    """The name of what explains a disagreement of one operator; None: it is open."""
    if found.engine != _LITERT and subnormals_are_zeros(found):
        return subnormals_are_zeros.__name__
    if found.engine == _LITERT and _reads_beyond(found):
        return read_as_floats.__name__
    if terms_cancel(found):
        return terms_cancel.__name__
    if len(found.part.nodes) != 1:
        return None
    node = found.part.nodes[0]
    functions = BY_ENGINE.get(found.engine, ())
    return next((f.__name__ for f in functions if f(node, found.part)), None)


def _reads_beyond(found: Disagreement) -> bool:
    """A graph that runs in LiteRT, but not its MATRIX_DIAG alone, which ends the process."""
    aborts = "LiteRT ended the process" in found.difference
    return aborts and any(read_as_floats(node, found.part) for node in found.part.nodes)


def _floats(part: Graph) -> list[np.ndarray]:
    return [t.value for t in part.tensors if t.value is not None and t.dtype.kind == "f"]


def _is_extreme(part: Graph) -> bool:
    with np.errstate(invalid="ignore"):
        return any(bool(np.any(~(np.abs(v) < _LARGE))) for v in _floats(part))


def _reals(t: GraphTensor) -> np.ndarray | None:
    if t.value is None or t.quantization is None:
        return None
    steps = t.value.astype(np.float64) - float(t.quantization.zero_point[0])
    return np.asarray(steps * float(t.quantization.scale[0]))
