"""Tensor lists as arrays: a list of n tensors is one array with a leading dimension of n."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.signature import ANY, CONSTANTS, INT32
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, table
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexOptions]


def _why_not_list(
    op: _Op, items: TensorSpec, values: TensorSpec, sizes: TensorSpec | None = None
) -> str | None:
    """A reason if `items` are not a list, or `values`, its elements, have another dtype.

    `sizes` are those of an element, or -1.
    """
    dtype = op.options.element_dtype
    wrong = next((spec for spec in (items, values) if spec.dtype != dtype), None)
    return first_reason(
        None if dtype not in HANDLES else "lists of handles or of lists are not supported",
        None if wrong is None else f"{wrong.name!r} is {wrong.dtype}, not a list of {dtype}",
        None if items.shape else f"{items.name!r} is not a list",
        None if sizes is None else _why_not_elements(items.shape[1:], sizes),
    )


def _why_not_elements(shape: Shape, sizes: TensorSpec) -> str | None:
    if sizes.const is None:
        return f"{sizes.name!r}, the shape of the elements, is computed at run time"
    wanted = np.asarray(sizes.const)
    if wanted.ndim == 0:  # any shape
        return None
    pairs = zip(wanted.tolist(), shape, strict=False)
    if wanted.ndim == 1 and len(wanted) == len(shape) and all(s in (-1, n) for s, n in pairs):
        return None
    return f"elements are {list(shape)}, not {wanted.tolist()}"


def _why_not_empty(items: TensorSpec) -> str | None:
    return None if items.shape[0] else "the list is empty"


def _why_not_index(items: TensorSpec, index: TensorSpec) -> str | None:
    if index.shape not in ((), (1,)) or index.dtype not in (np.int32, np.int64):
        return f"{index.name!r} is {index.dtype} {list(index.shape)}, not an index"
    return _why_not_empty(items)


def _at(items: jax.Array, index: jax.Array) -> jax.Array:
    """An index outside the list is an error of TensorFlow's; here it is the nearest element."""
    return jnp.clip(jnp.asarray(index).reshape(()), 0, items.shape[0] - 1)


def _lower_same(_op: _Op) -> Function:
    return lambda x, *_: (x,)


def _why_not_reserve(op: _Op) -> str | None:
    return _why_not_list(op, op.outputs[0], op.outputs[0], op.inputs[0])


def _lower_reserve(op: _Op) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    return lambda *_: (jnp.zeros(shape, dtype),)


def _why_not_from_tensor(op: _Op) -> str | None:
    return _why_not_list(op, op.outputs[0], *op.inputs[:2])


def _why_not_stack(op: _Op) -> str | None:
    items, sizes = op.inputs[:2]
    n = op.options.num_elements
    fits = n in (-1, *items.shape[:1])
    reason = _why_not_list(op, items, op.outputs[0], sizes)
    return reason or (None if fits else f"the list has {items.shape[0]} elements, not {n}")


def _why_not_get_item(op: _Op) -> str | None:
    items, index, sizes = op.inputs[:3]
    return _why_not_list(op, items, op.outputs[0], sizes) or _why_not_index(items, index)


def _lower_get_item(_op: _Op) -> Function:
    return lambda items, index, _sizes: (
        lax.dynamic_index_in_dim(items, _at(items, index), 0, keepdims=False),
    )


def _why_not_set_item(op: _Op) -> str | None:
    items, index, item = op.inputs[:3]
    return (
        _why_not_list(op, items, item)
        or _why_not_index(items, index)
        or ("the list may grow" if op.options.resize_if_index_out_of_bounds else None)
    )


def _lower_set_item(_op: _Op) -> Function:
    return lambda items, index, item: (
        lax.dynamic_update_index_in_dim(items, item, _at(items, index), 0),
    )


def _lower_length(op: _Op) -> Function:
    n = op.inputs[0].shape[0]
    return lambda _items: (jnp.array(n, np.int32),)


def _lower_resize(op: _Op) -> Function:
    n = op.outputs[0].shape[0]

    def resize(items: jax.Array, _n: jax.Array) -> tuple[jax.Array]:
        missing = max(n - items.shape[0], 0)
        return (jnp.pad(items[:n], [(0, missing)] + [(0, 0)] * (items.ndim - 1)),)

    return resize


def _why_not_push(op: _Op) -> str | None:
    return _why_not_list(op, *op.inputs[:2])


def _lower_push(_op: _Op) -> Function:
    return lambda items, item: (
        jnp.concatenate([jnp.reshape(items, (len(items), *item.shape)), jnp.asarray(item)[None]]),
    )


def _why_not_pop(op: _Op) -> str | None:
    items, sizes = op.inputs[:2]
    return _why_not_list(op, items, op.outputs[1], sizes)


def _lower_pop(_op: _Op) -> Function:
    return lambda items, _sizes: (items[:-1], items[-1])


def _why_not_concat(op: _Op) -> str | None:
    items, sizes = op.inputs[:2]
    return _why_not_list(op, items, op.outputs[0], sizes)


def _lower_concat(op: _Op) -> Function:
    """All elements have the same first dimension."""
    n, each, *_ = op.inputs[0].shape
    shape = op.outputs[0].shape
    return lambda items, *_: (jnp.reshape(items, shape), jnp.full(n, each, np.int64))


def _why_not_gather(op: _Op) -> str | None:
    items, _, sizes = op.inputs[:3]
    return _why_not_list(op, items, op.outputs[0], sizes) or _why_not_empty(items)


def _lower_gather(_op: _Op) -> Function:
    """An index outside the list is an error of TensorFlow's; here it is the nearest element."""
    return lambda items, indices, _sizes: (jnp.take(items, indices, axis=0, mode="clip"),)


def _why_not_scatter(op: _Op) -> str | None:
    x, indices, sizes = op.inputs[:3]
    return _why_not_list(op, op.outputs[0], x, sizes) or _why_not_places(x, indices)


def _why_not_places(x: TensorSpec, indices: TensorSpec) -> str | None:
    fits = indices.shape == x.shape[:1]
    return None if fits else f"{list(indices.shape)} indices for values {list(x.shape)}"


def _lower_scatter(op: _Op) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    return lambda x, indices, *_: (_scattered(jnp.zeros(shape, dtype), x, indices),)


def _scattered(items: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
    """An index outside the list is an error of TensorFlow's; here nothing is written."""
    outside = jnp.where(jnp.asarray(indices) < 0, len(items), indices)
    return jnp.asarray(items).at[outside].set(x, mode="drop")


def _why_not_scatter_into(op: _Op) -> str | None:
    items, x, indices = op.inputs[:3]
    return _why_not_list(op, items, x) or _why_not_places(x, indices)


def _lower_scatter_into(_op: _Op) -> Function:
    return lambda items, x, indices: (_scattered(items, x, indices),)


RULES = table(
    rule("EmptyTensorList", [ANY] * 2, _lower_reserve, _why_not_reserve, results=[None]),
    rule("TensorListConcatV2", [ANY] * 3, _lower_concat, _why_not_concat, results=[None, np.int64]),
    rule("TensorListFromTensor", [ANY] * 2, _lower_same, _why_not_from_tensor, results=[None]),
    rule("TensorListGather", [ANY, INT32, ANY], _lower_gather, _why_not_gather, results=[None]),
    rule("TensorListGetItem", [ANY] * 3, _lower_get_item, _why_not_get_item, results=[None]),
    rule("TensorListLength", [ANY], _lower_length, results=[np.int32]),
    rule("TensorListPopBack", [ANY] * 2, _lower_pop, _why_not_pop, results=[0, None]),
    rule("TensorListPushBack", [ANY] * 2, _lower_push, _why_not_push),
    rule("TensorListReserve", [ANY] * 2, _lower_reserve, _why_not_reserve, results=[None]),
    rule("TensorListResize", [ANY, CONSTANTS], _lower_resize),
    rule(
        "TensorListScatterIntoExistingList",
        [ANY, ANY, INT32],
        _lower_scatter_into,
        _why_not_scatter_into,
    ),
    rule(
        "TensorListScatterV2",
        [ANY, INT32, ANY, CONSTANTS],
        _lower_scatter,
        _why_not_scatter,
        results=[None],
    ),
    rule("TensorListSetItem", [ANY] * 3, _lower_set_item, _why_not_set_item),
    rule("TensorListStack", [ANY] * 2, _lower_same, _why_not_stack, results=[None]),
)
