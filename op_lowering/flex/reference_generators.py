"""Random numbers of a key and a counter, TensorFlow's bit for bit (stateless_random_ops*.cc)."""

import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.random import reference
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes
from jaxdelegate.reference.movement import ints

_SCRAMBLE = np.array([0x3EC8F720, 0x02461E29], np.uint32)  # the key that mixes seeds


def mixed_shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    if inputs[0].shape != (2,):
        raise ValueError(f"seeds {list(inputs[0].shape)}: expected two")
    return (1,), (2,)


def mixed(_o: FlexOptions, seeds: Array) -> tuple[Array, Array]:
    """A key and a counter whose lower half is 0."""
    low, high = seeds.astype(np.int64).view(np.uint64)
    key, above = reference.philox(_SCRAMBLE, low.reshape(1), high.reshape(1)).view(np.uint64)
    return key.reshape(1), np.array([0, above], np.uint64)


def numbers_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    sizes = inputs[0]
    if len(sizes.shape) != 1:
        raise ValueError(f"a shape {list(sizes.shape)}: expected a vector")
    if sizes.const is None:
        return (None,)
    shape = tuple(ints(np.asarray(sizes.const)))
    if min(shape, default=0) < 0:
        raise ValueError(f"a shape {list(shape)}: expected no negative size")
    return (shape,)


def _words(key: Array, counter: Array, algorithm: Array, n: int) -> Array:
    if key.shape != (1,) or counter.shape != (2,) or key.dtype != np.uint64:
        raise ValueError(f"a key {list(key.shape)}, a counter {list(counter.shape)} of {key.dtype}")
    if int(algorithm.reshape(())) not in (1, 3):
        raise ValueError(f"algorithm {int(algorithm)}: expected 1, which is Philox, or 3")
    return reference.words_of(np.concatenate([counter, key]).view(np.uint32), n)[0]


def _uniform(draw: Callable[[int], Array], n: int, dtype: np.dtype) -> Array:
    if dtype == np.float32:
        return reference.unit(draw(n))
    words = draw(2 * n)
    return reference.unit_double(words[0::2], words[1::2])


def _normal(draw: Callable[[int], Array], n: int, _dtype: np.dtype) -> Array:
    return reference.normal_pairs(draw(n + n % 2))[:n]


def _floats(numbers: Callable[..., Array], *dtypes: type) -> Callable[..., tuple[Array]]:
    def run(
        _o: FlexOptions,
        _inputs: Specs,
        outputs: Specs,
        sizes: Array,
        key: Array,
        counter: Array,
        algorithm: Array,
    ) -> tuple[Array]:
        shape, dtype = ints(sizes), outputs[0].dtype
        if dtype not in dtypes:
            raise ValueError(f"{dtype}: expected {' or '.join(t.__name__ for t in dtypes)}")
        drawn = numbers(lambda n: _words(key, counter, algorithm, n), math.prod(shape), dtype)
        return (drawn.reshape(shape),)

    return run


def _seeded(numbers: Callable[..., tuple[Array]]) -> Callable[..., tuple[Array]]:
    """By two seeds."""

    def run(
        o: FlexOptions, inputs: Specs, outputs: Specs, sizes: Array, seeds: Array
    ) -> tuple[Array]:
        return numbers(o, inputs, outputs, sizes, *mixed(o, seeds), np.array(1))

    return run


def integers(
    _o: FlexOptions,
    sizes: Array,
    key: Array,
    counter: Array,
    algorithm: Array,
    low: Array,
    high: Array,
) -> Array:
    if low.shape or high.shape or low >= high:
        raise ValueError(f"integers from {low.tolist()} to below {high.tolist()}")
    shape, size = ints(sizes), low.dtype.itemsize
    words = _words(key, counter, algorithm, math.prod(shape) * (size // 4))
    drawn = words.view(f"u{size}") % np.array(int(high) - int(low), f"u{size}")
    return np.asarray(low + drawn.astype(low.dtype)).reshape(shape)


_UNIFORM = _floats(_uniform, np.float32, np.float64)
_NORMAL = _floats(_normal, np.float32)
KERNELS = kernels(
    {
        "StatelessRandomGetKeyCounter": (mixed, mixed_shapes),
        "StatelessRandomNormal": Kernel(_seeded(_NORMAL), numbers_shape),
        "StatelessRandomNormalV2": Kernel(_NORMAL, numbers_shape),
        "StatelessRandomUniform": Kernel(_seeded(_UNIFORM), numbers_shape),
        "StatelessRandomUniformIntV2": (integers, numbers_shape),
        "StatelessRandomUniformV2": Kernel(_UNIFORM, numbers_shape),
    }
)
