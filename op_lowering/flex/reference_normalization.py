"""FusedBatchNormV3 and its gradient (core/kernels/fused_batch_norm_op.cc, on a CPU)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexNormalizationOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel

_O = FlexNormalizationOptions
_Shapes = tuple[Shape | None, ...]


def _channels(o: _O, shape: Shape) -> int:
    if sorted(o.data_format) != sorted("NCHW" if len(shape) == 4 else "NCDHW"):
        raise ValueError(f"images {list(shape)} are not {o.data_format!r}")
    return o.data_format.index("C")


def _check_vectors(n: int, *vectors: TensorSpec) -> None:
    for v in vectors:
        if v.shape != (n,):
            raise ValueError(f"{v.name!r} {list(v.shape)} is not of the {n} channels")


def normalized_shape(o: _O, inputs: Specs) -> _Shapes:
    shape = inputs[0].shape
    n = shape[_channels(o, shape)]
    given = o.exponential_avg_factor != 1 or not o.is_training
    _check_vectors(n, *inputs[1 : 5 if given else 3])
    return shape, (n,), (n,), (n,), (n,), ()


def normalize(
    o: _O,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
) -> tuple[Array, ...]:
    """By the mean and the variance of x in training. Averages hold the unbiased variance."""
    axis = _channels(o, inputs[0].shape)
    rows = np.moveaxis(x, axis, -1).astype(np.float64)
    flat = rows.reshape(-1, rows.shape[-1])
    center, spread = mean.astype(np.float64), variance.astype(np.float64)
    new = [center, spread]
    if o.is_training:
        center, spread, f = flat.mean(0), flat.var(0), o.exponential_avg_factor
        new = [center, spread * len(flat) / max(len(flat) - 1, 1)]
        if f != 1:
            new = [f * a + (1 - f) * b for a, b in zip(new, (mean, variance), strict=True)]
    y = (rows - center) / np.sqrt(spread + o.epsilon) * scale + offset
    results = (np.moveaxis(y, -1, axis), *new, center, spread, np.zeros(()))
    return tuple(a.astype(s.dtype) for a, s in zip(results, outputs, strict=True))


def gradient_shape(o: _O, inputs: Specs) -> _Shapes:
    dy, x, *vectors = inputs[:5]
    if dy.shape != x.shape:
        raise ValueError(f"{list(dy.shape)} and {list(x.shape)} differ")
    n = x.shape[_channels(o, x.shape)]
    _check_vectors(n, *vectors)
    return x.shape, (n,), (n,), (0,), (0,)


def gradient(
    o: _O,
    inputs: Specs,
    outputs: Specs,
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    _reserved: Array | None = None,
) -> tuple[Array, ...]:
    """By the chain rule; in training mean and variance, which are those of x, depend on it."""
    axis = _channels(o, inputs[1].shape)
    moved = [np.moveaxis(a, axis, -1).astype(np.float64) for a in (dy, x)]
    g, v = (a.reshape(-1, a.shape[-1]) for a in moved)
    n, root = len(g), np.sqrt(variance.astype(np.float64) + o.epsilon)
    away = v - mean
    dnormal = g * scale
    dx = dnormal / root
    if o.is_training:
        dspread = np.sum(dnormal * away, 0) * -0.5 / root**3
        dx = dx + dspread * 2 * away / n - dx.mean(0)
    results = (
        np.moveaxis(dx.reshape(moved[0].shape), -1, axis),
        np.sum(g * away / root, 0),
        np.sum(g, 0),
        np.zeros(0),
        np.zeros(0),
    )
    return tuple(a.astype(s.dtype) for a, s in zip(results, outputs, strict=True))


KERNELS = named(
    {
        f"{FLEX}FusedBatchNormV3": Kernel(normalize, normalized_shape),
        f"{FLEX}FusedBatchNormGradV3": Kernel(gradient, gradient_shape),
    }
)
