"""Padding, as kernels/pad.cc and kernels/mirror_pad.cc compute it."""

import numpy as np

from jaxdelegate.op_lowering.padding.options import MirrorPadOptions
from jaxdelegate.op_lowering.records.enums import MirrorPadMode
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.movement import ints, require_one_scaling


def _name(o: Options, inputs: Specs) -> str:
    if isinstance(o, MirrorPadOptions):
        return "MIRROR_PAD"
    return "PAD" if len(inputs) == 2 else "PADV2"


def padded_shape(o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """None where the paddings are not constant."""
    x, paddings = inputs[:2]
    if paddings.const is None:
        return (None,)
    pairs = _pairs(_name(o, inputs), x.shape, paddings.const)
    return (tuple(n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True)),)


def _pairs(name: str, shape: Shape, paddings: Array) -> list[tuple[int, int]]:
    flat = ints(paddings)
    if len(flat) != 2 * len(shape):
        raise ValueError(
            f"{name}: paddings must be {[len(shape), 2]} for an input {list(shape)}, got {flat}"
        )
    if min(flat, default=0) < 0:
        raise ValueError(f"{name}: paddings must not be negative, got {flat}")
    return list(zip(flat[::2], flat[1::2], strict=True))


def pad(
    o: Options, inputs: Specs, outputs: Specs, x: Array, paddings: Array, fill: Array | None = None
) -> tuple[Array]:
    """The output's zero point, which stands for 0, replaces an absent third input."""
    if fill is not None:
        require_one_scaling("PADV2", inputs[2], outputs[0])
    pairs = _pairs(_name(o, inputs), x.shape, paddings)
    value = _zero(outputs[0]) if fill is None else fill.reshape(())
    y = np.full([n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True)], value, x.dtype)
    y[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, pairs, strict=True))] = x
    return (y,)


def _zero(y: TensorSpec) -> Array:
    points = ints(y.quantization.zero_point) if y.quantization and y.is_quantized else []
    return np.array(points[0] if points else 0).astype(y.dtype)


def mirror_padded_shape(o: MirrorPadOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Neither padding may be longer than what it mirrors."""
    paddings = inputs[1].const
    if paddings is not None:
        _check_mirrored(o, inputs[0].shape, paddings)
    return padded_shape(o, inputs)


def _check_mirrored(o: MirrorPadOptions, shape: Shape, paddings: Array) -> None:
    most = [n - _offset(o) for n in shape]
    pairs = _pairs("MIRROR_PAD", shape, paddings)
    if any(max(pair) > n for pair, n in zip(pairs, most, strict=True)):
        raise ValueError(f"MIRROR_PAD: {list(shape)} mirrors at most {most}, got {ints(paddings)}")


def _offset(o: MirrorPadOptions) -> int:
    return int(o.mode is MirrorPadMode.REFLECT)


def mirror_pad(
    o: MirrorPadOptions, inputs: Specs, outputs: Specs, x: Array, paddings: Array
) -> tuple[Array]:
    require_one_scaling("MIRROR_PAD", inputs[0], outputs[0])
    _check_mirrored(o, x.shape, paddings)
    for axis, (before, after) in enumerate(_pairs("MIRROR_PAD", x.shape, paddings)):
        n, offset = x.shape[axis], _offset(o)
        left = [before + offset - 1 - i for i in range(before)]
        right = [n - 1 - offset - i for i in range(after)]
        x = np.take(x, [*left, *range(n), *right], axis)
    return (x,)


KERNELS = {
    "PAD": Kernel(pad, padded_shape),
    "PADV2": Kernel(pad, padded_shape),
    "MIRROR_PAD": Kernel(mirror_pad, mirror_padded_shape),
}
