"""Large constants whose values are computed when they are used."""

import abc
import math
from typing import Any

import numpy as np


class LazyConstant(np.lib.mixins.NDArrayOperatorsMixin, abc.ABC):
    """An array that is computed whenever it is used, in a fraction of its memory until then.

    It has the methods and operators of a read-only array, each of which computes the whole of it;
    `np.asarray` does so once.

    Attributes:
        shape: of the elements.
        dtype: of the elements.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    @abc.abstractmethod
    def values(self) -> np.ndarray:
        """All elements, in a new array."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the computed array, which programs and limits reckon with."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"a {type(self).__name__} cannot be read without a copy")
        values = self.values()
        values.flags.writeable = bool(copy)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(x) if isinstance(x, LazyConstant) else x for x in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        # Not the protocols by which numpy and jax would find memory or devices here.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype} {list(self.shape)})"
