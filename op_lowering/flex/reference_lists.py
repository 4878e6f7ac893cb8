"""Tensor lists as arrays: a list of n tensors is one array with a leading dimension of n.

Sources: core/kernels/list_kernels.{h,cc}. Elements that nothing was written to are zeros.
"""

import numpy as np

from jaxdelegate.op_lowering.flex.options import TensorListOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Folds, Kernel

_Shapes = tuple[Shape | None, ...]
_O = TensorListOptions


def _check_dtype(o: _O, spec: TensorSpec) -> None:
    """A file declares a list as VARIANT; `Tensor.dtype` is that of the elements that it names."""
    if spec.dtype != o.element_dtype:
        raise TypeError(f"{spec.name!r} is declared {spec.dtype}, not a list of {o.element_dtype}")


def _element_shape(sizes: Array | None) -> Shape | None:
    """The shape of all elements; None: not known (-1 stands for any size, or any shape)."""
    if sizes is None or sizes.ndim != 1 or (sizes < 0).any():
        return None
    return tuple(int(n) for n in sizes)


def _check_element(shape: Shape, sizes: Array | None) -> None:
    if sizes is None or sizes.ndim == 0:  # a scalar: any shape
        return
    if len(sizes) != len(shape) or any(s not in (-1, n) for s, n in zip(sizes, shape, strict=True)):
        raise ValueError(f"elements are {list(shape)}, not {sizes.tolist()}")


def _list_shape(spec: TensorSpec) -> Shape:
    if not spec.shape:
        raise ValueError(f"{spec.name!r} is not a list")
    return spec.shape


def _one(number: Array) -> int:
    if number.size != 1:
        raise ValueError(f"expected one number, got {number.size}")
    return int(number.reshape(())[()])


# ---- TensorListReserve: element shape, number of elements


def reserve_shape(_o: _O, inputs: Specs) -> _Shapes:
    """None if an element's shape is not known: see `passes/tensor_lists.py`."""
    sizes, n = inputs[0].const, inputs[1].const
    if n is not None and _one(n) < 0:
        raise ValueError(f"a list of {_one(n)} elements")
    element = _element_shape(None if sizes is None else np.asarray(sizes))
    return (None if n is None or element is None else (_one(n), *element),)


def reserve(o: _O, _inputs: Specs, outputs: Specs, sizes: Array, n: Array) -> tuple[Array]:
    (y,) = outputs
    _check_dtype(o, y)
    element = _element_shape(sizes)
    shape = y.shape if element is None else (_one(n), *element)
    if y.is_dynamic and element is None:
        raise ValueError(
            f"{y.name!r} is a list of tensors {sizes.tolist()}, whose shape nothing tells before "
            "the run; only lists whose elements have a known shape are supported"
        )
    _check_element(shape[1:], sizes)
    return (np.zeros(shape, y.dtype),)


# ---- TensorListFromTensor: values, element shape


def from_tensor_shape(_o: _O, inputs: Specs) -> _Shapes:
    return (_list_shape(inputs[0]),)


def from_tensor(o: _O, _inputs: Specs, outputs: Specs, x: Array, sizes: Array) -> tuple[Array]:
    _check_dtype(o, outputs[0])
    _check_element(x.shape[1:], sizes)
    return (x,)


# ---- TensorListStack, TensorListGetItem: list, (index,) element shape


def stack(o: _O, inputs: Specs, _outputs: Specs, items: Array, sizes: Array) -> tuple[Array]:
    _check_dtype(o, inputs[0])
    _check_element(items.shape[1:], sizes)
    if o.num_elements not in (-1, len(items)):
        raise ValueError(f"the list has {len(items)} elements, not {o.num_elements}")
    return (items,)


def item_shape(_o: _O, inputs: Specs) -> _Shapes:
    return (_list_shape(inputs[0])[1:],)


def get_item(
    o: _O, inputs: Specs, _outputs: Specs, items: Array, index: Array, sizes: Array
) -> tuple[Array]:
    _check_dtype(o, inputs[0])
    _check_element(items.shape[1:], sizes)
    return (items[_place(items, index)],)


def _place(items: Array, index: Array) -> int:
    i = _one(index)
    if not 0 <= i < len(items):
        raise IndexError(f"element {i} of a list of {len(items)}")
    return i


# ---- TensorListSetItem: list, index, element


def written_shape(_o: _O, inputs: Specs) -> _Shapes:
    shape = _list_shape(inputs[0])
    if shape[1:] != inputs[2].shape:
        raise ValueError(f"a list of {list(shape[1:])} cannot hold {list(inputs[2].shape)}")
    return (shape,)


def set_item(
    o: _O, inputs: Specs, _outputs: Specs, items: Array, index: Array, item: Array
) -> tuple[Array]:
    _check_dtype(o, inputs[0])
    if o.resize_if_index_out_of_bounds:
        raise ValueError("a list that grows when it is written beyond its end is not supported")
    written = items.copy()
    written[_place(items, index)] = item
    return (written,)


# ---- TensorListLength, TensorListResize: list (, number of elements)


def length_shape(_o: _O, inputs: Specs) -> _Shapes:
    _list_shape(inputs[0])
    return ((),)


def length(_o: _O, _inputs: Specs, _outputs: Specs, items: Array) -> tuple[Array]:
    return (np.array(len(items), np.int32),)


def resized_shape(_o: _O, inputs: Specs) -> _Shapes:
    n = inputs[1].const
    if n is not None and _one(n) < 0:
        raise ValueError(f"a list of {_one(n)} elements")
    return (None if n is None else (_one(n), *_list_shape(inputs[0])[1:]),)


def resize(_o: _O, _inputs: Specs, outputs: Specs, items: Array, n: Array) -> tuple[Array]:
    resized = np.zeros((_one(n), *items.shape[1:]), outputs[0].dtype)
    resized[: len(items)] = items[: len(resized)]
    return (resized,)


# ---- EmptyTensorList: element shape, the most elements


def empty_shape(_o: _O, inputs: Specs) -> _Shapes:
    """None if an element's shape is not known, until one is pushed."""
    sizes = inputs[0].const
    element = _element_shape(None if sizes is None else np.asarray(sizes))
    return (None if element is None else (0, *element),)


def empty(o: _O, _inputs: Specs, outputs: Specs, sizes: Array, _most: Array) -> tuple[Array]:
    _check_dtype(o, outputs[0])
    known = outputs[0].shape if not outputs[0].is_dynamic else (0, *(_element_shape(sizes) or ()))
    return (np.zeros(known, outputs[0].dtype),)


# ---- TensorListPushBack: list, element; TensorListPopBack: list, element shape


def pushed_shape(_o: _O, inputs: Specs) -> _Shapes:
    n, *element = _list_shape(inputs[0])
    if n and tuple(element) != inputs[1].shape:
        raise ValueError(f"a list of {element} cannot hold {list(inputs[1].shape)}")
    return ((n + 1, *inputs[1].shape),)


def push_back(o: _O, inputs: Specs, _outputs: Specs, items: Array, item: Array) -> tuple[Array]:
    _check_dtype(o, inputs[1])
    return (np.concatenate([items.reshape(len(items), *item.shape), item[None]]),)


def popped_shape(_o: _O, inputs: Specs) -> _Shapes:
    n, *element = _list_shape(inputs[0])
    if n == 0:
        raise ValueError(f"the list {inputs[0].name!r} is empty")
    return (n - 1, *element), tuple(element)


def pop_back(
    o: _O, inputs: Specs, _outputs: Specs, items: Array, sizes: Array
) -> tuple[Array, Array]:
    _check_dtype(o, inputs[0])
    _check_element(items.shape[1:], sizes)
    return items[:-1], items[-1]


# ---- TensorListConcatV2: list, element shape, first dimensions of elements never written


def concatenated_shape(_o: _O, inputs: Specs) -> _Shapes:
    """All elements have the same first dimension."""
    n, *element = _list_shape(inputs[0])
    if not element:
        raise ValueError(f"the elements of {inputs[0].name!r} are scalars: there is no first axis")
    return (n * element[0], *element[1:]), (n,)


def concatenate(
    o: _O, inputs: Specs, outputs: Specs, items: Array, sizes: Array, _leading: Array
) -> tuple[Array, Array]:
    """One after the other, and the first dimension of each."""
    _check_dtype(o, inputs[0])
    _check_element(items.shape[1:], sizes)
    lengths = np.full(len(items), items.shape[1], outputs[1].dtype)
    return items.reshape(outputs[0].shape), lengths


# ---- TensorListGather: list, indices, element shape


def gathered_shape(_o: _O, inputs: Specs) -> _Shapes:
    return ((*inputs[1].shape, *_list_shape(inputs[0])[1:]),)


def gather(
    o: _O, inputs: Specs, _outputs: Specs, items: Array, indices: Array, sizes: Array
) -> tuple[Array]:
    _check_dtype(o, inputs[0])
    _check_element(items.shape[1:], sizes)
    _check_indices(indices, len(items))
    return (items[indices],)


def _check_indices(indices: Array, n: int) -> None:
    wrong = [i for i in indices.reshape(-1).tolist() if not 0 <= i < n]
    if wrong:
        raise IndexError(f"elements {wrong} of a list of {n}")


# ---- TensorListScatterV2: values, indices, element shape, number of elements (-1: as needed)
# ---- TensorListScatterIntoExistingList: list, values, indices


def scattered_shape(_o: _O, inputs: Specs) -> _Shapes:
    x, indices, _, number = inputs
    if number.const is None:
        return (None,)
    n = _one(np.asarray(number.const))
    if n == -1 and indices.const is not None:
        n = int(np.asarray(indices.const).max(initial=-1)) + 1
    return (None if n < 0 else (n, *_list_shape(x)[1:]),)


def scatter(
    o: _O, inputs: Specs, outputs: Specs, x: Array, indices: Array, sizes: Array, _n: Array
) -> tuple[Array]:
    _check_element(x.shape[1:], sizes)
    return scatter_into(o, inputs, outputs, np.zeros(outputs[0].shape, x.dtype), x, indices)


def existing_shape(_o: _O, inputs: Specs) -> _Shapes:
    items, x = _list_shape(inputs[0]), _list_shape(inputs[1])
    if items[1:] != x[1:]:
        raise ValueError(f"a list of {list(items[1:])} cannot hold {list(x[1:])}")
    return (items,)


def scatter_into(
    o: _O, _inputs: Specs, outputs: Specs, items: Array, x: Array, indices: Array
) -> tuple[Array]:
    _check_dtype(o, outputs[0])
    _check_indices(indices, len(items))
    if indices.shape != x.shape[:1]:
        raise ValueError(f"{list(indices.shape)} indices for values {list(x.shape)}")
    written = items.copy()
    written[indices] = x
    return (written,)


KERNELS = named(
    {
        f"{FLEX}EmptyTensorList": Kernel(empty, empty_shape),
        f"{FLEX}TensorListConcatV2": Kernel(concatenate, concatenated_shape),
        f"{FLEX}TensorListFromTensor": Kernel(from_tensor, from_tensor_shape),
        f"{FLEX}TensorListGather": Kernel(gather, gathered_shape),
        f"{FLEX}TensorListGetItem": Kernel(get_item, item_shape),
        f"{FLEX}TensorListLength": Kernel(length, length_shape, Folds.SHAPES),
        f"{FLEX}TensorListPopBack": Kernel(pop_back, popped_shape),
        f"{FLEX}TensorListPushBack": Kernel(push_back, pushed_shape),
        f"{FLEX}TensorListReserve": Kernel(reserve, reserve_shape),
        f"{FLEX}TensorListResize": Kernel(resize, resized_shape),
        f"{FLEX}TensorListScatterIntoExistingList": Kernel(scatter_into, existing_shape),
        f"{FLEX}TensorListScatterV2": Kernel(scatter, scattered_shape),
        f"{FLEX}TensorListSetItem": Kernel(set_item, written_shape),
        f"{FLEX}TensorListStack": Kernel(stack, from_tensor_shape),
    }
)
