"""Gradients of windows and slices, and of softmax with its loss (core/kernels/)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import why_not_broadcast
from jaxdelegate.op_lowering.common.movement import MOVABLE, integers
from jaxdelegate.op_lowering.common.products import PRODUCT_FLOATS, Arithmetic, nothing
from jaxdelegate.op_lowering.common.window import Window, Windows, why_not_fit, why_not_windows
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.flex.options import FlexSliceOptions, FlexWindowGradientOptions
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape

_INDICES = frozenset(np.dtype(t) for t in (np.int32, np.int64))
_Op = Op[FlexWindowGradientOptions]
_Slice = Op[FlexSliceOptions]


# ---- StridedSliceGrad: shape, begin, end, strides, gradient


def _why_not_slice(op: _Slice) -> str | None:
    *numbers, dy = op.inputs[:5]
    return first_reason(
        *(why_not_const(n) or why_not_dtype(n, _INDICES) for n in numbers),
        why_not_dtype(dy, MOVABLE),
        why_not_result(op.outputs[0], dy.dtype),
    ) or _why_not_taken(op)


def _why_not_taken(op: _Slice) -> str | None:
    shape, *entries = map(integers, op.inputs[:4])
    try:
        index = op.options.index(*entries)
        taken = np.broadcast_to(np.int8(0), shape)[index].shape
    except (ValueError, IndexError) as error:
        return f"a slice of {list(shape)}: {error}"
    given = op.inputs[4].shape
    return None if taken == given else f"a slice is {list(taken)}, its gradient {list(given)}"


def _lower_slice(op: _Slice) -> Function:
    shape, *entries = map(integers, op.inputs[:4])
    index, dtype = op.options.index(*entries), op.outputs[0].dtype
    return lambda *arrays: (jnp.zeros(shape, dtype).at[index].set(arrays[4]),)


# ---- what gradients of windows share


def _windows(o: FlexWindowGradientOptions, x: Shape, sizes: Shape) -> Windows:
    """Over the height and the width of images [N, H, W, C]."""
    padding = Padding.VALID if o.padding == "EXPLICIT" else Padding[o.padding]
    around = o.explicit_paddings if o.padding == "EXPLICIT" else (0,) * 8
    edges = list(zip(around[::2], around[1::2], strict=True))
    return tuple(
        Window(x[i], size, o.strides[i], padding, o.dilations[i], edges[i])
        for i, size in zip((1, 2), sizes, strict=True)
    )


def _why_not_options(o: FlexWindowGradientOptions) -> str | None:
    lists = (o.strides, o.dilations)
    fits = all(len(sizes) == 4 and sizes[0] == sizes[3] == 1 for sizes in lists)
    edges = o.explicit_paddings
    explicit = len(edges) == 8 and min(edges) >= 0 == max(*edges[:2], *edges[6:])
    padded = o.padding in Padding.__members__ or (o.padding == "EXPLICIT" and explicit)
    return first_reason(
        None if o.data_format == "NHWC" else f"the data_format {o.data_format!r}",
        None if fits else f"strides {list(o.strides)}, dilations {list(o.dilations)}",
        None if padded else f"the padding {o.padding!r} {list(edges)}",
    )


def _why_not_gradient(windows: Windows, x: Shape, dy: Shape, channels: int) -> str | None:
    wanted = (x[0], *(w.n_out for w in windows), channels)
    reason = why_not_windows(windows) or why_not_fit(windows)
    differ = f"a gradient {list(dy)} of a result {list(wanted)}"
    return reason or (None if wanted == dy else differ)


# ---- Conv2DBackpropInput: sizes, filter, gradient; Conv2DBackpropFilter: x, sizes, gradient


def _parts(op: _Op, constant: int) -> tuple[Shape, Shape, Shape]:
    """The shapes of x, filter and gradient; one of the first two is a constant's values."""
    shapes = [spec.shape for spec in op.inputs[:3]]
    shapes[constant] = integers(op.inputs[constant])
    return shapes[0], shapes[1], shapes[2]


def _why_not_convolution(op: _Op, constant: int) -> str | None:
    sizes, floats = op.inputs[constant], [s for i, s in enumerate(op.inputs[:3]) if i != constant]
    reason = first_reason(
        why_not_const(sizes) or why_not_dtype(sizes, np.int32),
        *(why_not_dtype(s, PRODUCT_FLOATS) for s in floats),
        why_not_result(op.outputs[0], floats[0].dtype),
        _why_not_options(op.options),
    )
    if reason is not None:
        return reason
    x, w, dy = shapes = _parts(op, constant)
    if any(len(shape) != 4 or min(shape) < 1 for shape in shapes):
        return f"x {list(x)}, filter {list(w)}, gradient {list(dy)}: expected four sizes of each"
    if x[3] % w[2] or w[3] % (x[3] // w[2]):
        return f"{x[3]} input channels for a filter {list(w)}"
    return _why_not_gradient(_windows(op.options, x, w[:2]), x, dy, w[3])


def _lower_convolution(op: _Op, constant: int) -> Function:
    """The transpose of the convolution, which is linear in x and in the filter."""
    x, w, _ = shapes = _parts(op, constant)
    windows, dtype = _windows(op.options, x, w[:2]), op.outputs[0].dtype
    given = op.inputs[1 - constant]
    a = Arithmetic.of_convolution(op.context, given, op.inputs[2])
    zeros = np.zeros((), a.operand)
    wanted = np.broadcast_to(zeros, shapes[constant])  # for its shape

    def gradient(*arrays: jax.Array) -> tuple[jax.Array]:
        held, dy = a.reduced(arrays[1 - constant]), a.reduced(arrays[2])

        def convolve(part: jax.Array) -> jax.Array:
            operands = (part, held) if constant == 0 else (held, part)
            return lax.conv_general_dilated(
                operands[0],
                operands[1],
                [w.stride for w in windows],
                [w.pads for w in windows],
                rhs_dilation=[w.dilation for w in windows],
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=x[3] // w[2],
                precision=a.precision,
            )

        return (jax.linear_transpose(convolve, wanted)(dy)[0].astype(dtype),)

    return gradient


def _convolution_rule(name: str, constant: int) -> OpRule[FlexWindowGradientOptions]:
    def why_not(op: _Op) -> str | None:
        return _why_not_convolution(op, constant)

    def lower(op: _Op) -> Function:
        return _lower_convolution(op, constant)

    return OpRule(f"{FLEX}{name}", FlexWindowGradientOptions, 1, why_not, lower, arity=3)


# ---- MaxPoolGrad: x, the pool's result, its gradient


def _why_not_pool(op: _Op) -> str | None:
    x, y, dy = op.inputs[:3]
    o = op.options
    fits = len(x.shape) == len(o.ksize) == 4 and o.ksize[0] == o.ksize[3] == 1
    reason = first_reason(
        *(why_not_dtype(spec, FLOATS) for spec in (x, y, dy)),
        *(why_not_result(spec, x.dtype) for spec in (y, dy, op.outputs[0])),
        _why_not_options(o),
        None if fits else f"windows {list(o.ksize)} over {x.name!r} {list(x.shape)}",
    )
    if reason is not None:
        return reason
    return _why_not_gradient(_windows(o, x.shape, o.ksize[1:3]), x.shape, dy.shape, x.shape[3])


def _lower_pool(op: _Op) -> Function:
    """The first of equal values gets the gradient."""
    if 0 in (*op.inputs[0].shape, *op.inputs[2].shape):
        return nothing(op.outputs)
    windows = _windows(op.options, op.inputs[0].shape, op.options.ksize[1:3])
    pads = [(0, 0), *(w.pads for w in windows), (0, 0)]
    lowest = np.asarray(-np.inf, op.inputs[0].dtype)

    def pool(x: jax.Array) -> jax.Array:
        sizes, strides = [1, *(w.size for w in windows), 1], [1, *(w.stride for w in windows), 1]
        pooled: jax.Array = lax.reduce_window(x, lowest, lax.max, sizes, strides, pads)
        return pooled

    return lambda x, _y, dy: jax.vjp(pool, x)[1](dy)


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits: logits, labels


def _why_not_logits(op: Op[FlexOptions]) -> str | None:
    logits, loss, gradient = op.inputs[0], *op.outputs[:2]
    return first_reason(
        why_not_dtype(logits, FLOATS),
        *(why_not_result(y, logits.dtype) for y in (loss, gradient)),
        None if len(logits.shape) == 2 else f"{logits.name!r} {list(logits.shape)} is not a matrix",
    )


def _why_not_soft(op: Op[FlexOptions]) -> str | None:
    logits, labels = op.inputs[:2]
    return (
        _why_not_logits(op)
        or why_not_dtype(labels, logits.dtype.type)
        or why_not_broadcast(logits.shape, labels.shape)
    )


def _why_not_sparse(op: Op[FlexOptions]) -> str | None:
    logits, labels = op.inputs[:2]
    fits = labels.shape == logits.shape[:1] and 0 not in logits.shape[1:]
    differ = f"{list(labels.shape)} labels for logits {list(logits.shape)}"
    return _why_not_logits(op) or why_not_dtype(labels, _INDICES) or (None if fits else differ)


def _lower_soft(op: Op[FlexOptions]) -> Function:
    return _entropy(op, lambda labels, logits: jnp.broadcast_to(labels, logits.shape))


def _lower_sparse(op: Op[FlexOptions]) -> Function:
    """A label outside the classes is an error of TensorFlow's; here its loss is 0."""
    n = op.inputs[0].shape[1]
    return _entropy(op, lambda labels, logits: jax.nn.one_hot(labels, n, dtype=logits.dtype))


def _entropy(op: Op[FlexOptions], as_rows: Callable[[jax.Array, jax.Array], jax.Array]) -> Function:
    dtype, shape = op.inputs[0].dtype, op.outputs[1].shape
    wide = op.context.precision.accumulator(dtype)

    def entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.broadcast_to(jnp.asarray(logits).astype(wide), shape)
        rows = as_rows(jnp.asarray(labels), logits).astype(wide)
        logs = jax.nn.log_softmax(logits, axis=1)
        # Where a label is 0, an infinite logarithm does not count.
        terms = jnp.where(rows == 0, jnp.zeros_like(rows), rows * logs)
        return (-jnp.sum(terms, 1)).astype(dtype), (jnp.exp(logs) - rows).astype(dtype)

    return entropy


RULES = table(
    _convolution_rule("Conv2DBackpropInput", 0),
    _convolution_rule("Conv2DBackpropFilter", 1),
    OpRule(f"{FLEX}MaxPoolGrad", FlexWindowGradientOptions, 1, _why_not_pool, _lower_pool, arity=3),
    OpRule(
        f"{FLEX}SoftmaxCrossEntropyWithLogits",
        FlexOptions,
        1,
        _why_not_soft,
        _lower_soft,
        arity=2,
        results=2,
    ),
    OpRule(
        f"{FLEX}SparseSoftmaxCrossEntropyWithLogits",
        FlexOptions,
        1,
        _why_not_sparse,
        _lower_sparse,
        arity=2,
        results=2,
    ),
    OpRule(f"{FLEX}StridedSliceGrad", FlexSliceOptions, 1, _why_not_slice, _lower_slice, arity=5),
)
