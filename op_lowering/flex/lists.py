"""Tensor lists as arrays: a list of n tensors is one array with a leading dimension of n."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.signature import ANY, CONSTANTS, INT32, Input, Result
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Lower, Op, OpRule, WhyNot, first_reason, table
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexOptions]


def _rule(
    name: str,
    inputs: Sequence[Input],
    lower: Lower[FlexOptions],
    tensors: tuple[int, int],
    sizes: int | None = None,
    *,
    why_not: WhyNot[FlexOptions] | None = None,
    results: Sequence[Result] = (None,),
) -> OpRule[FlexOptions]:
    """The rule of an operator on a list.

    `tensors` are the positions of the list and of its elements, a negative one from the end of the
    results, `sizes` is that of the input with the sizes of an element, or -1.
    """

    def refuse(op: _Op) -> str | None:
        items, values = ((*op.inputs, *op.outputs)[i] for i in tensors)
        reason = _why_not_list(op.options.element_dtype, items, values)
        if sizes is not None:
            reason = reason or _why_not_elements(items.shape[1:], op.inputs[sizes])
        return reason if reason or why_not is None else why_not(op)

    return rule(name, inputs, lower, refuse, results=results)


def _why_not_list(dtype: np.dtype, items: TensorSpec, values: TensorSpec) -> str | None:
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


def _why_not_empty(op: _Op) -> str | None:
    return None if op.inputs[0].shape[0] else "the list is empty"


def _why_not_index(op: _Op) -> str | None:
    index = op.inputs[1]
    if index.shape not in ((), (1,)) or index.dtype not in (np.int32, np.int64):
        return f"{index.name!r} is {index.dtype} {list(index.shape)}, not an index"
    return _why_not_empty(op)


def _at(items: jax.Array, index: jax.Array) -> jax.Array:
    """An index outside the list is an error of TensorFlow's; here it is the nearest element."""
    return jnp.clip(jnp.asarray(index).reshape(()), 0, items.shape[0] - 1)


def _lower_same(_op: _Op) -> Function:
    return lambda x, *_: (x,)


def _lower_reserve(op: _Op) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    return lambda *_: (jnp.zeros(shape, dtype),)


def _why_not_stack(op: _Op) -> str | None:
    n, number = op.inputs[0].shape[0], op.options.num_elements
    return None if number in (-1, n) else f"the list has {n} elements, not {number}"


def _lower_get_item(_op: _Op) -> Function:
    return lambda items, index, _sizes: (
        lax.dynamic_index_in_dim(items, _at(items, index), 0, keepdims=False),
    )


def _why_not_set_item(op: _Op) -> str | None:
    grows = op.options.resize_if_index_out_of_bounds
    return _why_not_index(op) or ("the list may grow" if grows else None)


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


def _lower_push(_op: _Op) -> Function:
    return lambda items, item: (
        jnp.concatenate([jnp.reshape(items, (len(items), *item.shape)), jnp.asarray(item)[None]]),
    )


def _lower_pop(_op: _Op) -> Function:
    return lambda items, _sizes: (items[:-1], items[-1])


def _lower_concat(op: _Op) -> Function:
    """All elements have the same first dimension."""
    n, each, *_ = op.inputs[0].shape
    shape = op.outputs[0].shape
    return lambda items, *_: (jnp.reshape(items, shape), jnp.full(n, each, np.int64))


def _lower_gather(_op: _Op) -> Function:
    """An index outside the list is an error of TensorFlow's; here it is the nearest element."""
    return lambda items, indices, _sizes: (jnp.take(items, indices, axis=0, mode="clip"),)


def _why_not_places(values: int) -> WhyNot[FlexOptions]:
    """`values` is the position of what is written; the input after it has the indices."""

    def why_not(op: _Op) -> str | None:
        x, indices = op.inputs[values : values + 2]
        fits = indices.shape == x.shape[:1]
        return None if fits else f"{list(indices.shape)} indices for values {list(x.shape)}"

    return why_not


def _lower_scatter(op: _Op) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    return lambda x, indices, *_: (_scattered(jnp.zeros(shape, dtype), x, indices),)


def _scattered(items: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
    """An index outside the list is an error of TensorFlow's; here nothing is written."""
    outside = jnp.where(jnp.asarray(indices) < 0, len(items), indices)
    return jnp.asarray(items).at[outside].set(x, mode="drop")


def _lower_scatter_into(_op: _Op) -> Function:
    return lambda items, x, indices: (_scattered(items, x, indices),)


RULES = table(
    _rule("EmptyTensorList", [ANY] * 2, _lower_reserve, (-1, -1), 0),
    _rule("TensorListConcatV2", [ANY] * 3, _lower_concat, (0, -2), 1, results=[None, np.int64]),
    _rule("TensorListFromTensor", [ANY] * 2, _lower_same, (-1, 0), 1),
    _rule("TensorListGather", [ANY, INT32, ANY], _lower_gather, (0, -1), 2, why_not=_why_not_empty),
    _rule("TensorListGetItem", [ANY] * 3, _lower_get_item, (0, -1), 2, why_not=_why_not_index),
    rule("TensorListLength", [ANY], _lower_length, results=[np.int32]),
    _rule("TensorListPopBack", [ANY] * 2, _lower_pop, (0, -1), 1, results=[0, None]),
    _rule("TensorListPushBack", [ANY] * 2, _lower_push, (0, 1), results=[0]),
    _rule("TensorListReserve", [ANY] * 2, _lower_reserve, (-1, -1), 0),
    rule("TensorListResize", [ANY, CONSTANTS], _lower_resize),
    _rule(
        "TensorListScatterIntoExistingList",
        [ANY, ANY, INT32],
        _lower_scatter_into,
        (0, 1),
        why_not=_why_not_places(1),
        results=[0],
    ),
    _rule(
        "TensorListScatterV2",
        [ANY, INT32, ANY, CONSTANTS],
        _lower_scatter,
        (-1, 0),
        2,
        why_not=_why_not_places(0),
    ),
    _rule(
        "TensorListSetItem",
        [ANY] * 3,
        _lower_set_item,
        (0, 2),
        why_not=_why_not_set_item,
        results=[0],
    ),
    _rule("TensorListStack", [ANY] * 2, _lower_same, (0, -1), 1, why_not=_why_not_stack),
)
