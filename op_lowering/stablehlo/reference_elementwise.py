"""StableHLO operators that act element by element, as the StableHLO specification defines them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.records.enums import (
    StablehloComparisonDirection,
    StablehloComparisonType,
)
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloCompareOptions,
    StablehloCustomCallOptions,
)
from jaxdelegate.reference.kernel import (
    Array,
    Folds,
    Kernel,
    ResultShapes,
    as_run,
    same_shape,
    undeclared_shapes,
)
from jaxdelegate.reference.pointwise import elementwise, reject_quantized, widen


def one_shape(_options: object, inputs: Specs) -> ResultShapes:
    shapes = {spec.shape for spec in inputs}
    if len(shapes) != 1:
        raise ValueError(f"StableHLO does not broadcast {[list(s) for s in sorted(shapes)]}")
    return (inputs[0].shape,)


# ---- two inputs: integers wrap around


def _divide(x: Array, y: Array) -> Any:
    """Integers truncate; x / 0, which is unspecified, has all bits set, as in XLA."""
    if x.dtype.kind not in "iu":
        return x / y
    down, rest = np.floor_divide(x, y), np.remainder(x, y)
    truncated = np.where((rest != 0) & ((x < 0) != (y < 0)), down + 1, down)
    return np.where(y == 0, np.asarray(-1).astype(x.dtype), truncated)


def _remainder(x: Array, y: Array) -> Any:
    """The dividend's sign; x % 0 is x for integers, as in XLA."""
    rest = np.fmod(x, y)
    return rest if x.dtype.kind not in "iu" else np.where(y == 0, x, rest)


def _power(x: Array, y: Array) -> Any:
    if x.dtype.kind == "c":
        return np.power(x, y)
    if x.dtype.kind not in "iu":
        return np.float_power(x, y)
    inverse = np.where(x == 1, 1, np.where(x.astype(np.int64) == -1, 1 - 2 * (y % 2), 0))
    return np.where(y < 0, inverse.astype(x.dtype), np.power(x, np.where(y < 0, 0, y)))


def _shift_left(x: Array, y: Array) -> Any:
    """Zero once every bit is shifted out; a negative distance counts as a large one."""
    bits = 8 * x.dtype.itemsize
    inside = (y >= 0) & (y < bits)
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0)


_BINARY: dict[str, Callable[..., Any]] = {
    "STABLEHLO_ADD": np.add,  # or, of booleans
    "STABLEHLO_SUBTRACT": np.subtract,
    "STABLEHLO_MULTIPLY": np.multiply,  # and, of booleans
    "STABLEHLO_DIVIDE": _divide,
    "STABLEHLO_REMAINDER": _remainder,
    "STABLEHLO_POWER": _power,
    "STABLEHLO_MAXIMUM": np.maximum,  # NaN if either is; complex numbers in lexicographic order
    "STABLEHLO_MINIMUM": np.minimum,
    "STABLEHLO_AND": np.bitwise_and,
    "STABLEHLO_OR": np.bitwise_or,
    "STABLEHLO_SHIFT_LEFT": _shift_left,
}

# ---- one input

_UNARY: dict[str, Callable[..., Any]] = {
    "STABLEHLO_ABS": np.abs,
    "STABLEHLO_NEGATE": np.negative,
    "STABLEHLO_COSINE": np.cos,
    "STABLEHLO_EXPONENTIAL": np.exp,
    "STABLEHLO_LOG": np.log,
    "STABLEHLO_LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "STABLEHLO_TANH": np.tanh,
    "STABLEHLO_RSQRT": lambda x: 1 / np.sqrt(x),
    "STABLEHLO_CBRT": np.cbrt,
    "STABLEHLO_FLOOR": np.floor,
}

# ---- COMPARE

_COMPARE: dict[StablehloComparisonDirection, Callable[[Array, Array], Any]] = {
    StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_EQ: np.equal,
    StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_NE: np.not_equal,
    StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_GE: np.greater_equal,
    StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_GT: np.greater,
    StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_LE: np.less_equal,
    StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_LT: np.less,
}
_TOTAL_ORDER = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER


def compare(
    o: StablehloCompareOptions, inputs: Specs, outputs: Specs, x: Array, y: Array
) -> tuple[Array]:
    """Floats compare in IEEE 754's total order if the options say so, else as numbers."""
    reject_quantized(inputs)
    if o.compare_type is _TOTAL_ORDER and x.dtype.kind in "fV":
        x, y = _totally_ordered(x), _totally_ordered(y)
    with np.errstate(invalid="ignore"):
        result = _COMPARE[o.comparison_direction](widen(x), widen(y))
    return (np.asarray(result, outputs[0].dtype),)


def _totally_ordered(x: Array) -> Array:
    """Unsigned integers in the order -NaN, -inf ... -0, +0 ... inf, NaN."""
    bits = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)
    sign = bits.dtype.type(1 << (8 * x.dtype.itemsize - 1))
    return np.where(bits & sign != 0, ~bits, bits | sign)


# ---- CONVERT, SELECT, CLAMP


def convert(_options: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Floats truncate and saturate as integers, NaN becomes 0; as booleans, all but 0 are true."""
    reject_quantized(inputs)
    dtype = outputs[0].dtype
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = np.real(x)
    x = widen(x)
    if dtype.kind == "b":
        return (np.not_equal(x, 0),)
    if x.dtype.kind == "f" and dtype.kind in "iu":
        return (_saturated(x, np.iinfo(dtype)),)
    with np.errstate(all="ignore"):
        return (x.astype(dtype),)


def _saturated(x: Array, limits: np.iinfo) -> Array:
    """Toward zero. The least integer is a float; the largest may not be, but the next one is."""
    past = float(int(limits.max) + 1)
    inside = (x >= float(limits.min)) & (x < past)
    whole = np.where(inside, np.trunc(x), 0).astype(limits.dtype)
    whole = np.where(x >= past, limits.max, whole)
    return np.asarray(np.where(x < float(limits.min), limits.min, whole), limits.dtype)


def select_shape(_options: object, inputs: Specs) -> ResultShapes:
    """The predicate may be a scalar."""
    predicate, x, y = inputs
    return one_shape(None, (x, y) if predicate.shape == () else (predicate, x, y))


def select(_options: object, predicate: Array, x: Array, y: Array) -> Array:
    return np.where(predicate, x, y)


def clamp_shape(_options: object, inputs: Specs) -> ResultShapes:
    """The bounds may be scalars."""
    low, x, high = inputs
    return one_shape(None, (x, *(spec for spec in (low, high) if spec.shape != ())))


clamp = elementwise(lambda low, x, high: np.minimum(np.maximum(x, low), high))


# ---- CUSTOM_CALL


def declared_shapes(
    _infer: object, _options: object, _inputs: Specs, outputs: Specs
) -> ResultShapes:
    return tuple(spec.shape for spec in outputs)


def custom_call(
    o: StablehloCustomCallOptions, _inputs: Specs, _outputs: Specs, *_arrays: Array
) -> tuple[Array, ...]:
    """The file names a runtime's function, but does not contain it."""
    raise ValueError(
        f"the file does not contain the function of custom call {o.call_target_name!r}"
    )


KERNELS = {
    **{name: Kernel(elementwise(f), one_shape) for name, f in _BINARY.items()},
    **{name: Kernel(elementwise(f), same_shape) for name, f in _UNARY.items()},
    "STABLEHLO_COMPARE": Kernel(compare, one_shape),
    "STABLEHLO_CONVERT": Kernel(convert, same_shape),
    "STABLEHLO_SELECT": Kernel(as_run(select), select_shape),
    "STABLEHLO_CLAMP": Kernel(clamp, clamp_shape),
    "STABLEHLO_CUSTOM_CALL": Kernel(
        custom_call, undeclared_shapes, Folds.NEVER, inferred_shapes=declared_shapes
    ),
}
