"""Gradients of slices, and of softmax with its loss (core/kernels/)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexSliceOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.movement import ints

_Shapes = tuple[Shape | None, ...]


# ---- StridedSliceGrad


def slice_shape(_o: FlexSliceOptions, inputs: Specs) -> _Shapes:
    shape = inputs[0].const
    return (None if shape is None else tuple(ints(np.asarray(shape))),)


def slice_gradient(
    o: FlexSliceOptions, _inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array]:
    """Zeros, except where the slice read."""
    shape, *entries = map(ints, arrays[:4])
    y, index = np.zeros(shape, outputs[0].dtype), o.index(*entries)
    if y[index].shape != arrays[4].shape:
        given = list(arrays[4].shape)
        raise ValueError(f"StridedSliceGrad: a slice is {list(y[index].shape)}, not {given}")
    y[index] = arrays[4]
    return (y,)


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits


def soft_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    shape = np.broadcast_shapes(inputs[0].shape, inputs[1].shape)
    if len(shape) != 2:
        raise ValueError(f"logits {list(inputs[0].shape)} are not a matrix")
    return shape[:1], shape


def sparse_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    logits, labels = inputs[0].shape, inputs[1].shape
    if len(logits) != 2 or labels != logits[:1]:
        raise ValueError(f"{list(labels)} labels for logits {list(logits)}")
    return labels, logits


def soft_loss(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, logits: Array, labels: Array
) -> tuple[Array, Array]:
    """The loss of each row, and its gradient."""
    logits = np.broadcast_to(logits, outputs[1].shape).astype(np.float64)
    labels = np.broadcast_to(labels, outputs[1].shape).astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis=1, keepdims=True)
        terms = np.where(labels == 0, 0, labels * (np.log(total) - shifted))
        results = terms.sum(axis=1), np.exp(shifted) / total - labels
    return results[0].astype(outputs[0].dtype), results[1].astype(outputs[1].dtype)


def sparse_loss(
    o: FlexOptions, inputs: Specs, outputs: Specs, logits: Array, labels: Array
) -> tuple[Array, Array]:
    n = logits.shape[1]
    if ((labels < 0) | (labels >= n)).any():
        raise ValueError(f"a label of {labels.tolist()} is not one of {n} classes")
    return soft_loss(o, inputs, outputs, logits, np.eye(n)[labels])


KERNELS = named(
    {
        f"{FLEX}SoftmaxCrossEntropyWithLogits": Kernel(soft_loss, soft_shape),
        f"{FLEX}SparseSoftmaxCrossEntropyWithLogits": Kernel(sparse_loss, sparse_shape),
        f"{FLEX}StridedSliceGrad": Kernel(slice_gradient, slice_shape),
    }
)
