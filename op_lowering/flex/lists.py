"""Tensor lists as arrays: a list of n tensors is one array with a leading dimension of n."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.flex.options import TensorListOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import (
    Function,
    Lower,
    Op,
    OpRule,
    WhyNot,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[TensorListOptions]


def _why_not_list(op: _Op, items: TensorSpec, values: TensorSpec) -> str | None:
    """A reason if `items` are not a list, or `values`, its elements, have another dtype."""
    dtype = op.options.element_dtype
    wrong = next((spec for spec in (items, values) if spec.dtype != dtype), None)
    return first_reason(
        None if dtype not in HANDLES else "lists of handles or of lists are not supported",
        None if wrong is None else f"{wrong.name!r} is {wrong.dtype}, not a list of {dtype}",
        None if items.shape else f"{items.name!r} is not a list",
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


def _why_not_index(items: TensorSpec, index: TensorSpec) -> str | None:
    if index.shape not in ((), (1,)) or index.dtype not in (np.int32, np.int64):
        return f"{index.name!r} is {index.dtype} {list(index.shape)}, not an index"
    return _why_not_empty(items)


def _at(items: jax.Array, index: jax.Array) -> jax.Array:
    """An index outside the list is an error of TensorFlow's; here it is the nearest element."""
    return jnp.clip(jnp.asarray(index).reshape(()), 0, items.shape[0] - 1)


def _why_not_reserve(op: _Op) -> str | None:
    y = op.outputs[0]
    return _why_not_list(op, y, y) or _why_not_elements(y.shape[1:], op.inputs[0])


def _lower_reserve(op: _Op) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    return lambda *_: (jnp.zeros(shape, dtype),)


def _why_not_from_tensor(op: _Op) -> str | None:
    x, sizes = op.inputs[:2]
    reason = _why_not_list(op, op.outputs[0], x)
    return reason or _why_not_elements(x.shape[1:], sizes)


def _lower_same(_op: _Op) -> Function:
    return lambda x, *_: (x,)


def _why_not_stack(op: _Op) -> str | None:
    items, sizes = op.inputs[:2]
    reason = _why_not_list(op, items, op.outputs[0]) or _why_not_elements(items.shape[1:], sizes)
    n = op.options.num_elements
    if reason is not None or n in (-1, items.shape[0]):
        return reason
    return f"the list has {items.shape[0]} elements, not {n}"


def _why_not_get_item(op: _Op) -> str | None:
    items, index, sizes = op.inputs[:3]
    return (
        _why_not_list(op, items, op.outputs[0])
        or _why_not_elements(items.shape[1:], sizes)
        or _why_not_index(items, index)
    )


def _lower_get_item(_op: _Op) -> Function:
    return lambda items, index, _sizes: (
        lax.dynamic_index_in_dim(items, _at(items, index), 0, keepdims=False),
    )


def _why_not_set_item(op: _Op) -> str | None:
    items, index, item = op.inputs[:3]
    reason = (
        _why_not_list(op, items, item)
        or why_not_result(op.outputs[0], items.dtype)
        or _why_not_index(items, index)
    )
    fits = items.shape[1:] == item.shape
    return reason or first_reason(
        None if fits else f"elements are {list(items.shape[1:])}, not {list(item.shape)}",
        "the list may grow" if op.options.resize_if_index_out_of_bounds else None,
    )


def _lower_set_item(_op: _Op) -> Function:
    return lambda items, index, item: (
        lax.dynamic_update_index_in_dim(items, item, _at(items, index), 0),
    )


def _why_not_length(op: _Op) -> str | None:
    return why_not_result(op.outputs[0], np.int32)


def _lower_length(op: _Op) -> Function:
    n = op.inputs[0].shape[0]
    return lambda _items: (jnp.array(n, np.int32),)


def _why_not_resize(op: _Op) -> str | None:
    items, y = op.inputs[0], op.outputs[0]
    held = None if items.shape else f"{items.name!r} is not a list"
    return held or why_not_result(y, items.dtype) or why_not_const(op.inputs[1])


def _lower_resize(op: _Op) -> Function:
    n = op.outputs[0].shape[0]

    def resize(items: jax.Array, _n: jax.Array) -> tuple[jax.Array]:
        missing = max(n - items.shape[0], 0)
        return (jnp.pad(items[:n], [(0, missing)] + [(0, 0)] * (items.ndim - 1)),)

    return resize


def _why_not_push(op: _Op) -> str | None:
    items, item = op.inputs[:2]
    fits = items.shape[1:] == item.shape or items.shape[:1] == (0,)
    differ = f"elements are {list(items.shape[1:])}, not {list(item.shape)}"
    reason = _why_not_list(op, items, item) or why_not_result(op.outputs[0], items.dtype)
    return reason or (None if fits else differ)


def _lower_push(_op: _Op) -> Function:
    return lambda items, item: (
        jnp.concatenate([jnp.reshape(items, (len(items), *item.shape)), jnp.asarray(item)[None]]),
    )


def _why_not_pop(op: _Op) -> str | None:
    items, sizes = op.inputs[:2]
    reason = _why_not_list(op, items, op.outputs[1]) or why_not_result(op.outputs[0], items.dtype)
    return reason or _why_not_elements(items.shape[1:], sizes) or _why_not_empty(items)


def _why_not_empty(items: TensorSpec) -> str | None:
    return None if items.shape[0] else "the list is empty"


def _lower_pop(_op: _Op) -> Function:
    return lambda items, _sizes: (items[:-1], items[-1])


def _why_not_concat(op: _Op) -> str | None:
    items, sizes = op.inputs[:2]
    reason = _why_not_list(op, items, op.outputs[0]) or why_not_result(op.outputs[1], np.int64)
    is_scalar = None if len(items.shape) > 1 else "the elements are scalars"
    return reason or is_scalar or _why_not_elements(items.shape[1:], sizes)


def _lower_concat(op: _Op) -> Function:
    """All elements have the same first dimension."""
    n, each, *_ = op.inputs[0].shape
    shape = op.outputs[0].shape
    return lambda items, *_: (jnp.reshape(items, shape), jnp.full(n, each, np.int64))


def _why_not_gather(op: _Op) -> str | None:
    items, indices, sizes = op.inputs[:3]
    return (
        _why_not_list(op, items, op.outputs[0])
        or _why_not_elements(items.shape[1:], sizes)
        or why_not_dtype(indices, np.int32)
        or _why_not_empty(items)
    )


def _lower_gather(_op: _Op) -> Function:
    """An index outside the list is an error of TensorFlow's; here it is the nearest element."""
    return lambda items, indices, _sizes: (jnp.take(items, indices, axis=0, mode="clip"),)


def _why_not_scatter(op: _Op) -> str | None:
    x, indices, sizes, n = op.inputs[:4]
    reason = _why_not_list(op, op.outputs[0], x) or _why_not_elements(x.shape[1:], sizes)
    return reason or why_not_const(n) or _why_not_places(x, indices)


def _why_not_places(x: TensorSpec, indices: TensorSpec) -> str | None:
    fits = indices.shape == x.shape[:1]
    differ = f"{list(indices.shape)} indices for values {list(x.shape)}"
    return why_not_dtype(indices, np.int32) or (None if fits else differ)


def _lower_scatter(op: _Op) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    return lambda x, indices, *_: (_scattered(jnp.zeros(shape, dtype), x, indices),)


def _scattered(items: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
    """An index outside the list is an error of TensorFlow's; here nothing is written."""
    outside = jnp.where(jnp.asarray(indices) < 0, len(items), indices)
    return jnp.asarray(items).at[outside].set(x, mode="drop")


def _why_not_scatter_into(op: _Op) -> str | None:
    items, x, indices = op.inputs[:3]
    fits = items.shape[1:] == x.shape[1:]
    differ = f"elements are {list(items.shape[1:])}, not {list(x.shape[1:])}"
    reason = _why_not_list(op, items, x) or why_not_result(op.outputs[0], items.dtype)
    return reason or (None if fits else differ) or _why_not_places(x, indices)


def _lower_scatter_into(_op: _Op) -> Function:
    return lambda items, x, indices: (_scattered(items, x, indices),)


def _rule(
    name: str,
    arity: int,
    why_not: WhyNot[TensorListOptions],
    lower: Lower[TensorListOptions],
    results: int = 1,
) -> OpRule[TensorListOptions]:
    return OpRule(
        f"{FLEX}{name}", TensorListOptions, 1, why_not, lower, arity=arity, results=results
    )


RULES = table(
    _rule("EmptyTensorList", 2, _why_not_reserve, _lower_reserve),
    _rule("TensorListConcatV2", 3, _why_not_concat, _lower_concat, results=2),
    _rule("TensorListFromTensor", 2, _why_not_from_tensor, _lower_same),
    _rule("TensorListGather", 3, _why_not_gather, _lower_gather),
    _rule("TensorListGetItem", 3, _why_not_get_item, _lower_get_item),
    _rule("TensorListLength", 1, _why_not_length, _lower_length),
    _rule("TensorListPopBack", 2, _why_not_pop, _lower_pop, results=2),
    _rule("TensorListPushBack", 2, _why_not_push, _lower_push),
    _rule("TensorListReserve", 2, _why_not_reserve, _lower_reserve),
    _rule("TensorListResize", 2, _why_not_resize, _lower_resize),
    _rule("TensorListScatterIntoExistingList", 3, _why_not_scatter_into, _lower_scatter_into),
    _rule("TensorListScatterV2", 4, _why_not_scatter, _lower_scatter),
    _rule("TensorListSetItem", 3, _why_not_set_item, _lower_set_item),
    _rule("TensorListStack", 2, _why_not_stack, _lower_same),
)
