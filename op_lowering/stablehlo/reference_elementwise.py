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
from jaxdelegate.op_lowering.stablehlo.reference_shape import Shapes
from jaxdelegate.reference.kernel import Array, Folds, Kernel, same_shape, undeclared_shapes
from jaxdelegate.reference.pointwise import elementwise, reject_quantized, widen


def one_shape(_options: object, inputs: Specs) -> Shapes:
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


add = elementwise(np.add)  # or, of booleans
subtract = elementwise(np.subtract)
multiply = elementwise(np.multiply)  # and, of booleans
divide = elementwise(_divide)
remainder = elementwise(_remainder)
power = elementwise(_power)
maximum = elementwise(np.maximum)  # NaN if either is; complex numbers in lexicographic order
minimum = elementwise(np.minimum)
and_ = elementwise(np.bitwise_and)
or_ = elementwise(np.bitwise_or)
shift_left = elementwise(_shift_left)

# ---- one input

absolute = elementwise(np.abs)
negate = elementwise(np.negative)
cosine = elementwise(np.cos)
exponential = elementwise(np.exp)
log = elementwise(np.log)
logistic = elementwise(lambda x: 1 / (1 + np.exp(-x)))
tanh = elementwise(np.tanh)
rsqrt = elementwise(lambda x: 1 / np.sqrt(x))
cbrt = elementwise(np.cbrt)
floor = elementwise(np.floor)

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


def select_shape(_options: object, inputs: Specs) -> Shapes:
    """The predicate may be a scalar."""
    predicate, x, y = inputs
    return one_shape(None, (x, y) if predicate.shape == () else (predicate, x, y))


def select(
    _options: object, _inputs: Specs, _outputs: Specs, predicate: Array, x: Array, y: Array
) -> tuple[Array]:
    return (np.where(predicate, x, y),)


def clamp_shape(_options: object, inputs: Specs) -> Shapes:
    """The bounds may be scalars."""
    low, x, high = inputs
    return one_shape(None, (x, *(spec for spec in (low, high) if spec.shape != ())))


clamp = elementwise(lambda low, x, high: np.minimum(np.maximum(x, low), high))


# ---- CUSTOM_CALL


def declared_shapes(_infer: object, _options: object, _inputs: Specs, outputs: Specs) -> Shapes:
    return tuple(spec.shape for spec in outputs)


def custom_call(
    o: StablehloCustomCallOptions, _inputs: Specs, _outputs: Specs, *_arrays: Array
) -> tuple[Array, ...]:
    """The file names a runtime's function, but does not contain it."""
    raise ValueError(
        f"the file does not contain the function of custom call {o.call_target_name!r}"
    )


KERNELS = {
    "STABLEHLO_ADD": Kernel(add, one_shape),
    "STABLEHLO_SUBTRACT": Kernel(subtract, one_shape),
    "STABLEHLO_MULTIPLY": Kernel(multiply, one_shape),
    "STABLEHLO_DIVIDE": Kernel(divide, one_shape),
    "STABLEHLO_REMAINDER": Kernel(remainder, one_shape),
    "STABLEHLO_POWER": Kernel(power, one_shape),
    "STABLEHLO_MAXIMUM": Kernel(maximum, one_shape),
    "STABLEHLO_MINIMUM": Kernel(minimum, one_shape),
    "STABLEHLO_AND": Kernel(and_, one_shape),
    "STABLEHLO_OR": Kernel(or_, one_shape),
    "STABLEHLO_SHIFT_LEFT": Kernel(shift_left, one_shape),
    "STABLEHLO_ABS": Kernel(absolute, same_shape),
    "STABLEHLO_NEGATE": Kernel(negate, same_shape),
    "STABLEHLO_COSINE": Kernel(cosine, same_shape),
    "STABLEHLO_EXPONENTIAL": Kernel(exponential, same_shape),
    "STABLEHLO_LOG": Kernel(log, same_shape),
    "STABLEHLO_LOGISTIC": Kernel(logistic, same_shape),
    "STABLEHLO_TANH": Kernel(tanh, same_shape),
    "STABLEHLO_RSQRT": Kernel(rsqrt, same_shape),
    "STABLEHLO_CBRT": Kernel(cbrt, same_shape),
    "STABLEHLO_FLOOR": Kernel(floor, same_shape),
    "STABLEHLO_COMPARE": Kernel(compare, one_shape),
    "STABLEHLO_CONVERT": Kernel(convert, same_shape),
    "STABLEHLO_SELECT": Kernel(select, select_shape),
    "STABLEHLO_CLAMP": Kernel(clamp, clamp_shape),
    "STABLEHLO_CUSTOM_CALL": Kernel(
        custom_call, undeclared_shapes, Folds.NEVER, inferred_shapes=declared_shapes
    ),
}
