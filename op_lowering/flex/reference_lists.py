"""Tensor lists as arrays: a list of n tensors is one array with a leading dimension of n.

Sources: core/kernels/list_kernels.{h,cc}. Elements that nothing was written to are zeros.
"""

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Folds, Kernel, ResultShapes, as_run


def _check(o: FlexOptions, spec: TensorSpec, shape: Shape = (), sizes: Array | None = None) -> None:
    """An error unless elements have the dtype and the sizes that the operator names.

    A file declares a list as VARIANT; `Tensor.dtype` is that of the elements that it names.
    """
    if spec.dtype != o.element_dtype:
        raise TypeError(f"{spec.name!r} is declared {spec.dtype}, not a list of {o.element_dtype}")
    if sizes is None or sizes.ndim == 0:  # a scalar: any shape
        return
    if len(sizes) != len(shape) or any(s not in (-1, n) for s, n in zip(sizes, shape, strict=True)):
        raise ValueError(f"elements are {list(shape)}, not {sizes.tolist()}")


def _element_shape(sizes: Array | None) -> Shape | None:
    """The shape of all elements; None: not known (-1 stands for any size, or any shape)."""
    if sizes is None or np.ndim(sizes) != 1 or (np.asarray(sizes) < 0).any():
        return None
    return tuple(int(n) for n in sizes)


def _list_shape(spec: TensorSpec) -> Shape:
    if not spec.shape:
        raise ValueError(f"{spec.name!r} is not a list")
    return spec.shape


def _one(number: Array) -> int:
    if number.size != 1:
        raise ValueError(f"expected one number, got {number.size}")
    return int(number.reshape(())[()])


def _count(number: TensorSpec) -> int | None:
    if number.const is None:
        return None
    n = _one(np.asarray(number.const))
    if n < 0:
        raise ValueError(f"a list of {n} elements")
    return n


# ---- TensorListReserve: element shape, number of elements


def reserve_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    """None if an element's shape is not known: see `passes/tensor_lists.py`."""
    n, element = _count(inputs[1]), _element_shape(inputs[0].const)
    return (None if n is None or element is None else (n, *element),)


def reserve(o: FlexOptions, _i: Specs, outputs: Specs, sizes: Array, n: Array) -> tuple[Array]:
    (y,) = outputs
    element = _element_shape(sizes)
    shape = y.shape if element is None else (_one(n), *element)
    if y.is_dynamic and element is None:
        raise ValueError(
            f"{y.name!r} is a list of tensors {sizes.tolist()}, whose shape nothing tells before "
            "the run; only lists whose elements have a known shape are supported"
        )
    _check(o, y, shape[1:], sizes)
    return (np.zeros(shape, y.dtype),)


# ---- TensorListFromTensor: values, element shape


def same_list(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    return (_list_shape(inputs[0]),)


def from_tensor(o: FlexOptions, _i: Specs, outputs: Specs, x: Array, sizes: Array) -> tuple[Array]:
    _check(o, outputs[0], x.shape[1:], sizes)
    return (x,)


# ---- TensorListStack, TensorListGetItem: list, (index,) element shape


def stack(o: FlexOptions, inputs: Specs, _y: Specs, items: Array, sizes: Array) -> tuple[Array]:
    _check(o, inputs[0], items.shape[1:], sizes)
    if o.num_elements not in (-1, len(items)):
        raise ValueError(f"the list has {len(items)} elements, not {o.num_elements}")
    return (items,)


def item_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    return (_list_shape(inputs[0])[1:],)


def get_item(
    o: FlexOptions, inputs: Specs, _y: Specs, items: Array, index: Array, sizes: Array
) -> tuple[Array]:
    _check(o, inputs[0], items.shape[1:], sizes)
    return (items[_place(items, index)],)


def _place(items: Array, index: Array) -> int:
    i = _one(index)
    if not 0 <= i < len(items):
        raise IndexError(f"element {i} of a list of {len(items)}")
    return i


# ---- TensorListSetItem: list, index, element


def _check_held(element: Shape, other: Shape) -> None:
    if element != other:
        raise ValueError(f"a list of {list(element)} cannot hold {list(other)}")


def written_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = _list_shape(inputs[0])
    _check_held(shape[1:], inputs[2].shape)
    return (shape,)


def set_item(
    o: FlexOptions, inputs: Specs, _y: Specs, items: Array, index: Array, item: Array
) -> tuple[Array]:
    _check(o, inputs[0])
    if o.resize_if_index_out_of_bounds:
        raise ValueError("a list that grows when it is written beyond its end is not supported")
    written = items.copy()
    written[_place(items, index)] = item
    return (written,)


# ---- TensorListLength, TensorListResize: list (, number of elements)


def length_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    _list_shape(inputs[0])
    return ((),)


def length(_o: FlexOptions, items: Array) -> Array:
    return np.array(len(items))


def resized_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    n = _count(inputs[1])
    return (None if n is None else (n, *_list_shape(inputs[0])[1:]),)


def resize(_o: FlexOptions, items: Array, n: Array) -> Array:
    resized = np.zeros((_one(n), *items.shape[1:]), items.dtype)
    resized[: len(items)] = items[: len(resized)]
    return resized


# ---- EmptyTensorList: element shape, the most elements


def empty_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    """None if an element's shape is not known, until one is pushed."""
    element = _element_shape(inputs[0].const)
    return (None if element is None else (0, *element),)


def empty(o: FlexOptions, _i: Specs, outputs: Specs, sizes: Array, _most: Array) -> tuple[Array]:
    (y,) = outputs
    _check(o, y)
    known = (0, *(_element_shape(sizes) or ())) if y.is_dynamic else y.shape
    return (np.zeros(known, y.dtype),)


# ---- TensorListPushBack: list, element; TensorListPopBack: list, element shape


def pushed_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    n, *element = _list_shape(inputs[0])
    if n:
        _check_held(tuple(element), inputs[1].shape)
    return ((n + 1, *inputs[1].shape),)


def push_back(o: FlexOptions, inputs: Specs, _y: Specs, items: Array, item: Array) -> tuple[Array]:
    _check(o, inputs[1])
    return (np.concatenate([items.reshape(len(items), *item.shape), item[None]]),)


def popped_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    n, *element = _list_shape(inputs[0])
    if n == 0:
        raise ValueError(f"the list {inputs[0].name!r} is empty")
    return (n - 1, *element), tuple(element)


def pop_back(
    o: FlexOptions, inputs: Specs, _y: Specs, items: Array, sizes: Array
) -> tuple[Array, Array]:
    _check(o, inputs[0], items.shape[1:], sizes)
    return items[:-1], items[-1]


# ---- TensorListConcatV2: list, element shape, first dimensions of elements never written


def concatenated_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    """All elements have the same first dimension."""
    n, *element = _list_shape(inputs[0])
    if not element:
        raise ValueError(f"the elements of {inputs[0].name!r} are scalars: there is no first axis")
    return (n * element[0], *element[1:]), (n,)


def concatenate(
    o: FlexOptions, inputs: Specs, outputs: Specs, items: Array, sizes: Array, _leading: Array
) -> tuple[Array, Array]:
    """One after the other, and the first dimension of each."""
    _check(o, inputs[0], items.shape[1:], sizes)
    lengths = np.full(len(items), items.shape[1], outputs[1].dtype)
    return items.reshape(outputs[0].shape), lengths


# ---- TensorListGather: list, indices, element shape


def gathered_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    return ((*inputs[1].shape, *_list_shape(inputs[0])[1:]),)


def gather(
    o: FlexOptions, inputs: Specs, _y: Specs, items: Array, indices: Array, sizes: Array
) -> tuple[Array]:
    _check(o, inputs[0], items.shape[1:], sizes)
    _check_indices(indices, len(items))
    return (items[indices],)


def _check_indices(indices: Array, n: int) -> None:
    wrong = [i for i in indices.reshape(-1).tolist() if not 0 <= i < n]
    if wrong:
        raise IndexError(f"elements {wrong} of a list of {n}")


# ---- TensorListScatterV2: values, indices, element shape, number of elements (-1: as needed)
# ---- TensorListScatterIntoExistingList: list, values, indices


def scattered_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    x, indices, _, number = inputs
    if number.const is None:
        return (None,)
    n = _one(np.asarray(number.const))
    if n == -1 and indices.const is not None:
        n = int(np.asarray(indices.const).max(initial=-1)) + 1
    return (None if n < 0 else (n, *_list_shape(x)[1:]),)


def scatter(
    o: FlexOptions, _i: Specs, outputs: Specs, x: Array, indices: Array, sizes: Array, _n: Array
) -> tuple[Array]:
    _check(o, outputs[0], x.shape[1:], sizes)
    return scatter_into(o, _i, outputs, np.zeros(outputs[0].shape, x.dtype), x, indices)


def existing_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    items = _list_shape(inputs[0])
    _check_held(items[1:], _list_shape(inputs[1])[1:])
    return (items,)


def scatter_into(
    o: FlexOptions, _i: Specs, outputs: Specs, items: Array, x: Array, indices: Array
) -> tuple[Array]:
    _check(o, outputs[0])
    _check_indices(indices, len(items))
    if indices.shape != x.shape[:1]:
        raise ValueError(f"{list(indices.shape)} indices for values {list(x.shape)}")
    written = items.copy()
    written[indices] = x
    return (written,)


KERNELS = kernels(
    {
        "EmptyTensorList": Kernel(empty, empty_shape),
        "TensorListConcatV2": Kernel(concatenate, concatenated_shape),
        "TensorListFromTensor": Kernel(from_tensor, same_list),
        "TensorListGather": Kernel(gather, gathered_shape),
        "TensorListGetItem": Kernel(get_item, item_shape),
        "TensorListLength": Kernel(as_run(length), length_shape, Folds.SHAPES),
        "TensorListPopBack": Kernel(pop_back, popped_shape),
        "TensorListPushBack": Kernel(push_back, pushed_shape),
        "TensorListReserve": Kernel(reserve, reserve_shape),
        "TensorListResize": (resize, resized_shape),
        "TensorListScatterIntoExistingList": Kernel(scatter_into, existing_shape),
        "TensorListScatterV2": Kernel(scatter, scattered_shape),
        "TensorListSetItem": Kernel(set_item, written_shape),
        "TensorListStack": Kernel(stack, same_list),
    }
)
