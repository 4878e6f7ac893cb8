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
    return None if items.shape[0] else "the list is empty"


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


def _rule(
    name: str,
    arity: int,
    why_not: WhyNot[TensorListOptions],
    lower: Lower[TensorListOptions],
) -> OpRule[TensorListOptions]:
    return OpRule(f"{FLEX}TensorList{name}", TensorListOptions, 1, why_not, lower, arity=arity)


RULES = table(
    _rule("FromTensor", 2, _why_not_from_tensor, _lower_same),
    _rule("GetItem", 3, _why_not_get_item, _lower_get_item),
    _rule("Length", 1, _why_not_length, _lower_length),
    _rule("Reserve", 2, _why_not_reserve, _lower_reserve),
    _rule("Resize", 2, _why_not_resize, _lower_resize),
    _rule("SetItem", 3, _why_not_set_item, _lower_set_item),
    _rule("Stack", 2, _why_not_stack, _lower_same),
)
