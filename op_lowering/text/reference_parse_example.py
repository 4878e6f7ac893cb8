"""TensorFlow's ParseExample and ParseExampleV2, in numpy: serialized tf.Example to tensors.

Sources: kernels/parse_example/parse_example.cc, TensorFlow's parsing_ops.cc and example.proto.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Infer, Kernel, undeclared_shapes
from jaxdelegate.wire import Message, fields

_Feature = tuple[int, Message]  # which list of the message Feature, and the list
_Example = dict[bytes, _Feature]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The number of features of each kind. Outputs are grouped, with one per feature in a group.

    The groups are the indices, values and shapes of sparse features, the dense features, and the
    values and row splits of ragged ones.
    """

    n_sparse: int
    n_dense: int
    n_ragged: int = 0

    def grouped(self, outputs: Sequence[Any]) -> list[Sequence[Any]]:
        ends = np.cumsum([*[self.n_sparse] * 3, self.n_dense, self.n_ragged, self.n_ragged])
        return [outputs[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def _layout_v1(inputs: Specs, outputs: Specs) -> _Layout:
    """Inputs: examples, names, a key for each feature, a default for each dense one."""
    n_sparse = (2 * len(outputs) - len(inputs) + 2) // 5
    return _Layout(n_sparse, len(outputs) - 3 * n_sparse)


def _layout_v2(inputs: Specs, _outputs: Specs) -> _Layout:
    """Inputs: examples, names, keys of sparse, dense and ragged features, dense defaults."""
    return _Layout(*(math.prod(spec.shape) for spec in inputs[2:5]))


def parse_example_shapes(
    _infer: Infer, _o: object, inputs: Specs, outputs: Specs
) -> tuple[Shape | None, ...]:
    """A dense feature has the shape that the file declares, for each example."""
    return _shapes(_layout_v1(inputs, outputs), inputs[0].shape, outputs)


def parse_example_v2_shapes(
    _infer: Infer, _o: object, inputs: Specs, outputs: Specs
) -> tuple[Shape | None, ...]:
    return _shapes(_layout_v2(inputs, outputs), inputs[0].shape, outputs)


def _shapes(layout: _Layout, batch: Shape, outputs: Specs) -> tuple[Shape | None, ...]:
    *_, dense, _, _ = layout.grouped(outputs)
    return (
        *[None] * (2 * layout.n_sparse),
        *[(len(batch) + 1,)] * layout.n_sparse,
        *((*batch, *spec.shape[len(batch) :]) for spec in dense),
        *[None] * layout.n_ragged,
        *[(math.prod(batch) + 1,)] * layout.n_ragged,
    )


def parse_example(_o: object, inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array, ...]:
    """Every key is a separate input."""
    layout = _layout_v1(inputs, outputs)
    keys = [array.flat[0] for array in arrays[2 : 2 + layout.n_sparse + layout.n_dense]]
    return _parse(layout, arrays[0], keys, arrays[2 + len(keys) :], outputs)


def parse_example_v2(
    _o: object, inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array, ...]:
    """One input holds all keys of a kind."""
    keys = [key for array in arrays[2:5] for key in array.ravel()]
    return _parse(_layout_v2(inputs, outputs), arrays[0], keys, arrays[5:], outputs)


def _parse(
    layout: _Layout,
    serialized: Array,
    keys: Sequence[bytes],
    defaults: Sequence[Array],
    outputs: Specs,
) -> tuple[Array, ...]:
    examples = [_read_example(message) for message in serialized.ravel()]
    batch = serialized.shape
    _, sparse_values, _, dense, ragged_values, splits = layout.grouped(outputs)
    n_sparse, n_dense = layout.n_sparse, layout.n_dense
    sparse = [
        _sparse([_values(e, key, spec.dtype) for e in examples], batch, spec.dtype)
        for key, spec in zip(keys[:n_sparse], sparse_values, strict=True)
    ]
    dense_keys = keys[n_sparse : n_sparse + n_dense]
    full = [
        _dense([_values(e, key, spec.dtype) for e in examples], key, default, batch, spec)
        for key, default, spec in zip(dense_keys, defaults, dense, strict=True)
    ]
    ragged = [
        _ragged([_values(e, key, spec.dtype) for e in examples], spec.dtype, split.dtype)
        for key, spec, split in zip(keys[n_sparse + n_dense :], ragged_values, splits, strict=True)
    ]
    by_kind = (*zip(*sparse, strict=True), full, *zip(*ragged, strict=True))
    return tuple(array for kind in by_kind for array in kind)


_Lists = Sequence[Array | None]  # for each example; None where it lacks the feature


def _joined(lists: _Lists, dtype: np.dtype) -> tuple[Array, Array]:
    present = [np.zeros(0, dtype) if values is None else values for values in lists]
    return np.concatenate([np.zeros(0, dtype), *present]), np.array([v.size for v in present], int)


def _sparse(lists: _Lists, batch: Shape, dtype: np.dtype) -> tuple[Array, Array, Array]:
    """The index of each value, the values, and the shape that holds the longest list."""
    values, counts = _joined(lists, dtype)
    examples = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(values.size) - (np.cumsum(counts) - counts)[examples]
    indices = np.stack([examples, positions], axis=1)[:, 0 if batch else 1 :]
    return indices.astype(np.int64), values, np.array([*batch, counts.max(initial=0)], np.int64)


def _dense(lists: _Lists, key: bytes, default: Array, batch: Shape, spec: TensorSpec) -> Array:
    shape = spec.shape[len(batch) :]
    if any(values is None for values in lists) and default.size == 0:
        raise ValueError(f"an example lacks the feature {key!r}, which has no default")
    rows = [default.reshape(-1) if values is None else values for values in lists]
    wrong = next((row.size for row in rows if row.size != math.prod(shape)), None)
    if wrong is not None:
        raise ValueError(f"the feature {key!r} has {wrong} values, not {list(shape)}")
    values, _ = _joined(rows, spec.dtype)
    return values.reshape(*batch, *shape)


def _ragged(lists: _Lists, dtype: np.dtype, split_dtype: np.dtype) -> tuple[Array, Array]:
    """The values, and where each example's begin, with the end of the last."""
    values, counts = _joined(lists, dtype)
    return values, np.cumsum([0, *counts]).astype(split_dtype)


def _values(example: _Example, key: bytes, dtype: np.dtype) -> Array | None:
    if key not in example:
        return None
    if dtype not in _LISTS:
        raise TypeError(f"features are int64, float32 or strings, not {dtype}")
    number, values = example[key]
    wanted, decode = _LISTS[dtype]
    if number != wanted:
        raise ValueError(f"the feature {key!r} is not a list of {dtype}")
    return decode(values)


def _strings(values: Message) -> Array:
    return np.array([*map(bytes, values.all_data(1)), None], object)[:-1]


def _floats(values: Message) -> Array:
    return np.frombuffer(b"".join(values.all_data(1)), "<f4")


def _integers(values: Message) -> Array:
    return np.array(values.integers(1), np.int64)


# By dtype: the list of the message Feature that holds it, and what its encoded values mean.
_LISTS: dict[np.dtype, tuple[int, Callable[[Message], Array]]] = {
    np.dtype(object): (1, _strings),
    np.dtype(np.float32): (2, _floats),
    np.dtype(np.int64): (3, _integers),
}


def _read_example(message: bytes) -> _Example:
    """Example { Features features = 1 }, Features { map<string, Feature> feature = 1 }."""
    example: _Example = {}
    for features in Message(message).messages(1):
        for entry in features.messages(1):
            key = bytes(entry.data(1))
            feature = fields(entry.data(2))
            lists = [(n, Message(v)) for n, _, v in feature if isinstance(v, memoryview)]
            example.pop(key, None)  # the last entry of a key counts, even an empty one
            if lists:
                example[key] = lists[-1]
    return example


KERNELS = {
    "ParseExample": Kernel(parse_example, undeclared_shapes, inferred_shapes=parse_example_shapes),
    "ParseExampleV2": Kernel(
        parse_example_v2, undeclared_shapes, inferred_shapes=parse_example_v2_shapes
    ),
}
