"""Shape operators, each as LiteRT's kernels/<operator>.cc computes it."""

import math
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.shape.options import ReshapeOptions, SqueezeOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Folds, Kernel, without_specs
from jaxdelegate.reference.movement import ints, known, require_one_scaling, resolved_axis


def _requested(o: ReshapeOptions, inputs: Specs) -> list[int] | None:
    """The second input if it is an int32 vector, else the options; None: known at run time only."""
    sizes = inputs[1] if len(inputs) > 1 else None
    if sizes is None or sizes.dtype != np.int32 or len(sizes.shape) != 1:
        return _legacy(o)
    return None if sizes.const is None else ints(sizes.const)


def reshape_shape(o: ReshapeOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    sizes = _requested(o, inputs)
    return (None if sizes is None else _resolve(sizes, inputs[0].shape),)


def settled_reshape(o: ReshapeOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """None if the requested shape has a -1."""
    sizes = _requested(o, inputs)
    return (None if sizes is None or min(sizes, default=0) < 0 else tuple(sizes),)


def reshape(o: ReshapeOptions, x: Array, asked: Array | None = None) -> Array:
    """The -1 is resolved as in kernels/internal/reshape_utils.h."""
    if asked is None or asked.dtype != np.int32 or asked.ndim != 1:
        return x.reshape(_resolve(_legacy(o), x.shape))
    return x.reshape(_resolve(ints(asked), x.shape))


def _legacy(o: ReshapeOptions) -> list[int]:
    return [] if o.new_shape == (0,) else list(o.new_shape)  # [0] once meant a scalar


def _resolve(asked: list[int], shape: Shape) -> Shape:
    """For an empty tensor the sizes that are not zero decide the -1."""
    if min(asked, default=0) < -1 or asked.count(-1) > 1:
        raise ValueError(f"RESHAPE: one size may be -1 and none less, got {asked}")
    if -1 in asked:
        others = [n for n in asked if n != -1]
        empty = 0 in shape and 0 not in others
        stretch = 0 if empty else _nonzero_product(shape) // _nonzero_product(others)
        asked = [stretch if n == -1 else n for n in asked]
    if math.prod(asked) != math.prod(shape):
        raise ValueError(f"RESHAPE: {list(shape)} does not fit {asked}")
    return tuple(asked)


def _nonzero_product(sizes: Sequence[int]) -> int:
    return math.prod(n for n in sizes if n != 0)


def squeeze_shape(o: SqueezeOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    return (_squeezed(o, inputs[0].shape),)


def squeeze(o: SqueezeOptions, x: Array) -> Array:
    return x.reshape(_squeezed(o, x.shape))


def _squeezed(o: SqueezeOptions, shape: Shape) -> Shape:
    ones = {i for i, n in enumerate(shape) if n == 1}
    named = {resolved_axis(axis, len(shape), "SQUEEZE") for axis in o.squeeze_dims} or ones
    if not named <= ones:
        raise ValueError(f"SQUEEZE: dimensions {sorted(named)} of {list(shape)} are not all one")
    return tuple(n for i, n in enumerate(shape) if i not in named)


def expand_dims_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    axis = inputs[1].const
    return (None if axis is None else _expanded(inputs[0].shape, axis),)


def expand_dims(_o: Options, inputs: Specs, outputs: Specs, x: Array, axis: Array) -> tuple[Array]:
    """A negative axis counts from after the last dimension."""
    require_one_scaling("EXPAND_DIMS", inputs[0], outputs[0])
    return (x.reshape(_expanded(x.shape, axis)),)


def _expanded(shape: Shape, axis: Array) -> Shape:
    at = resolved_axis(int(axis.reshape(())), len(shape) + 1, "EXPAND_DIMS")
    return (*shape[:at], 1, *shape[at:])


def rank_vector(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    return ((len(inputs[0].shape),),)


def shape(_o: Options, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    return (np.array(x.shape, outputs[0].dtype),)


def scalar_shape(_o: Options, _inputs: Specs) -> tuple[Shape | None, ...]:
    return ((),)


def rank(_o: Options, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    return (np.array(x.ndim, outputs[0].dtype),)


def broadcast_to_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    asked = inputs[1].const
    return (None if asked is None else _broadcast(inputs[0].shape, ints(asked)),)


def settled_broadcast_to(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The shape is known even if the first input's is not."""
    asked = inputs[1].const
    return (None if asked is None else tuple(ints(asked)),)


def broadcast_to(_o: Options, x: Array, asked: Array) -> Array:
    return np.broadcast_to(x, _broadcast(x.shape, ints(asked))).copy()


def _broadcast(shape: Shape, asked: list[int]) -> Shape:
    added = len(asked) - len(shape)
    fits = added >= 0 and all(n in (1, m) for n, m in zip(shape, asked[added:], strict=True))
    if not fits or min(asked, default=0) < 0:
        raise ValueError(f"BROADCAST_TO: {list(shape)} does not broadcast to {asked}")
    return tuple(asked)


def broadcast_args_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    return ((max(inputs[0].shape[0], inputs[1].shape[0]),),)


def broadcast_args(
    _o: Options, _inputs: Specs, outputs: Specs, first: Array, second: Array
) -> tuple[Array]:
    """Source: kernels/internal/reference/broadcast_args.h."""
    sizes = zip(*_aligned(ints(first), ints(second)), strict=True)
    result = [b if a == 1 else a for a, b in sizes if a == b or 1 in (a, b)]
    if len(result) != max(first.size, second.size):
        raise ValueError(f"BROADCAST_ARGS: {ints(first)} and {ints(second)} do not broadcast")
    return (np.array(result, outputs[0].dtype),)


def _aligned(a: list[int], b: list[int]) -> tuple[list[int], list[int]]:
    rank = max(len(a), len(b))
    return [1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b


def broadcast_gradient_args_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    shapes = known(*inputs[:2])
    return (None, None) if shapes is None else tuple((len(axes),) for axes in _reduced(*shapes))


def broadcast_gradient_args(
    _o: Options, _inputs: Specs, outputs: Specs, first: Array, second: Array
) -> tuple[Array, ...]:
    """The axes of a broadcast result to sum over for each operand's gradient (TensorFlow).

    A dimension that is one in both is listed for both, but equal shapes list none.
    """
    axes = _reduced(ints(first), ints(second))
    return tuple(np.array(a, y.dtype) for a, y in zip(axes, outputs, strict=True))


def _reduced(first: list[int], second: list[int]) -> list[list[int]]:
    if first == second:
        return [[], []]
    return [[i for i, n in enumerate(shape) if n == 1] for shape in _aligned(first, second)]


def fill_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    sizes = known(inputs[0])
    return (None if sizes is None else _filled(sizes[0]),)


def fill(_o: Options, inputs: Specs, outputs: Specs, sizes: Array, value: Array) -> tuple[Array]:
    require_one_scaling("FILL", inputs[1], outputs[0])
    return (np.full(_filled(ints(sizes)), value.reshape(()), outputs[0].dtype),)


def _filled(sizes: list[int]) -> Shape:
    if min(sizes, default=0) < 0:
        raise ValueError(f"FILL: sizes must not be negative, got {sizes}")
    return tuple(sizes)


def range_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    values = [spec.const for spec in inputs[:3] if spec.const is not None]
    return ((_count(*values),) if len(values) == 3 else None,)


def range_(
    _o: Options, _inputs: Specs, outputs: Specs, start: Array, limit: Array, delta: Array
) -> tuple[Array]:
    """The terms are added up and rounded step by step."""
    steps = np.full(_count(start, limit, delta), delta, outputs[0].dtype)
    steps[:1] = start
    return (np.add.accumulate(steps, dtype=steps.dtype),)


def _count(start: Array, limit: Array, delta: Array) -> int:
    """kernels/range.cc: ceil(|limit - start| / |delta|), in the tensors' own arithmetic."""
    start, limit, delta = (np.reshape(v, ()) for v in (start, limit, delta))
    if not ((start <= limit and delta > 0) or (start >= limit and delta < 0)):
        raise ValueError(f"RANGE: steps of {delta} do not lead from {start} to {limit}")
    if start.dtype.kind in "iu":
        return -(-abs(int(limit) - int(start)) // abs(int(delta)))
    return int(np.ceil(np.abs((limit - start) / delta)))


KERNELS = {
    "RESHAPE": Kernel(without_specs(reshape), reshape_shape, settled=settled_reshape),
    "SQUEEZE": Kernel(without_specs(squeeze), squeeze_shape),
    "EXPAND_DIMS": Kernel(expand_dims, expand_dims_shape),
    "SHAPE": Kernel(shape, rank_vector, Folds.SHAPES),
    "RANK": Kernel(rank, scalar_shape, Folds.SHAPES),
    "BROADCAST_TO": Kernel(
        without_specs(broadcast_to), broadcast_to_shape, settled=settled_broadcast_to
    ),
    "BROADCAST_ARGS": Kernel(broadcast_args, broadcast_args_shape),
    "BroadcastGradientArgs": Kernel(broadcast_gradient_args, broadcast_gradient_args_shape),
    "FILL": Kernel(fill, fill_shape),
    "RANGE": Kernel(range_, range_shape),
}
