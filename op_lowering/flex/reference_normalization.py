"""Batch normalization and its gradient, as on a CPU; losses of softmax, with their gradients.

Sources: core/kernels/{fused_batch_norm_op,xent_op,sparse_xent_op}.cc.
"""

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, ResultShapes

_FORMATS = {4: ("NHWC", "NCHW"), 5: ("NDHWC", "NCDHW")}  # by rank


def _channels(o: FlexOptions, shape: Shape) -> int:
    if o.data_format not in _FORMATS.get(len(shape), ()):
        raise ValueError(f"images {list(shape)} are not {o.data_format!r}")
    return int(o.data_format.index("C"))


def _check_vectors(n: int, *vectors: TensorSpec) -> None:
    for v in vectors:
        if v.shape != (n,):
            raise ValueError(f"{v.name!r} {list(v.shape)} is not of the {n} channels")


def normalized_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = inputs[0].shape
    n = shape[_channels(o, shape)]
    reads_averages = o.exponential_avg_factor != 1 or not o.is_training
    _check_vectors(n, *inputs[1 : 5 if reads_averages else 3])
    return shape, (n,), (n,), (n,), (n,), ()


def normalize(
    o: FlexOptions, x: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> tuple[Array, ...]:
    """By the mean and the variance of x in training. Averages hold the unbiased variance."""
    axis = _channels(o, x.shape)
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
    return np.moveaxis(y, -1, axis), *new, center, spread, np.zeros(())


def gradient_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    dy, x, *vectors = inputs[:5]
    if dy.shape != x.shape:
        raise ValueError(f"{list(dy.shape)} and {list(x.shape)} differ")
    n = x.shape[_channels(o, x.shape)]
    _check_vectors(n, *vectors)
    return x.shape, (n,), (n,), (0,), (0,)


def gradient(
    o: FlexOptions,
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    variance: Array,
    _reserved: Array | None = None,
) -> tuple[Array, ...]:
    """By the chain rule; in training mean and variance, which are those of x, depend on it."""
    axis = _channels(o, x.shape)
    moved = [np.moveaxis(a, axis, -1).astype(np.float64) for a in (dy, x)]
    g, v = (a.reshape(-1, a.shape[-1]) for a in moved)
    n, root = len(g), np.sqrt(variance.astype(np.float64) + o.epsilon)
    away = v - mean
    dnormal = g * scale
    dx = dnormal / root
    if o.is_training:
        dspread = np.sum(dnormal * away, 0) * -0.5 / root**3
        dx = dx + dspread * 2 * away / n - dx.mean(0)
    dx = np.moveaxis(dx.reshape(moved[0].shape), -1, axis)
    return dx, np.sum(g * away / root, 0), np.sum(g, 0), np.zeros(0), np.zeros(0)


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits


def soft_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = np.broadcast_shapes(inputs[0].shape, inputs[1].shape)
    if len(shape) != 2:
        raise ValueError(f"logits {list(inputs[0].shape)} are not a matrix")
    return shape[:1], shape


def sparse_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    logits, labels = inputs[0].shape, inputs[1].shape
    if len(logits) != 2 or labels != logits[:1]:
        raise ValueError(f"{list(labels)} labels for logits {list(logits)}")
    return labels, logits


def soft_loss(_o: FlexOptions, logits: Array, labels: Array) -> tuple[Array, Array]:
    """The loss of each row, and its gradient."""
    logits, labels = (a.astype(np.float64) for a in np.broadcast_arrays(logits, labels))
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    total = np.exp(shifted).sum(axis=1, keepdims=True)
    terms = np.where(labels == 0, 0, labels * (np.log(total) - shifted))
    return terms.sum(axis=1), np.exp(shifted) / total - labels


def sparse_loss(o: FlexOptions, logits: Array, labels: Array) -> tuple[Array, Array]:
    n = logits.shape[1]
    if ((labels < 0) | (labels >= n)).any():
        raise ValueError(f"a label of {labels.tolist()} is not one of {n} classes")
    return soft_loss(o, logits, np.eye(n)[labels])


KERNELS = kernels(
    {
        "FusedBatchNormGradV3": (gradient, gradient_shape),
        "FusedBatchNormV3": (normalize, normalized_shape),
        "SoftmaxCrossEntropyWithLogits": (soft_loss, soft_shape),
        "SparseSoftmaxCrossEntropyWithLogits": (sparse_loss, sparse_shape),
    }
)
