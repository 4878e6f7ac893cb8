"""Constant filters of int4 and int2 that stay packed in a program's memory.

XLA stores such an element in a byte; packed, it takes half or a quarter of one. Unlike in a file
(quant/packing.py), a byte does not hold neighbors: a row is cut into as many equal runs as a byte
holds elements, and a byte has one element of each run. So unpacking is shifts and one
concatenation, which takes XLA:CPU a fifth of the time.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.integer_products import to_int8
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.packing import BITS, MANY, bits_of


@dataclasses.dataclass(frozen=True)
class Packed:
    """Rows [..., n] of int4 or int2 as bytes [..., ceil(n * bits / 8)], and back as int8."""

    dtype: np.dtype
    columns: int

    @property
    def _bits(self) -> int:
        return bits_of(self.dtype)

    def pack(self, w: Array) -> Array:
        """Stored elements, of numpy or jax -> uint8; the last run is padded with zeros."""
        xp = jnp if isinstance(w, jax.Array) else np
        runs = 8 // self._bits
        padded = xp.pad(w.astype(np.int8), [(0, 0)] * (w.ndim - 1) + [(0, -self.columns % runs)])
        raw = padded.astype(np.uint8) & np.uint8((1 << self._bits) - 1)
        parts = xp.split(raw, runs, -1)
        data: Array = parts[0]
        for run, part in enumerate(parts[1:], 1):
            data = data | part << np.uint8(run * self._bits)
        return data

    def runs(self, data: jax.Array) -> list[jax.Array]:
        """uint8 rows -> the runs, int8; the last one with its padding."""
        rest = np.int8(8 - self._bits)
        return [
            lax.bitcast_convert_type(data << np.uint8(8 - top), np.int8) >> rest
            for top in range(self._bits, 9, self._bits)
        ]

    def unpack(self, data: jax.Array) -> jax.Array:
        """uint8 rows -> int8 [..., n]."""
        return jnp.concatenate(self.runs(data), -1)[..., : self.columns]


@dataclasses.dataclass(frozen=True)
class WeightStorage:
    """An integer filter in a program: packed, or int8 (int16 stays int16)."""

    packed: Packed | None

    @classmethod
    def of(cls, w: TensorSpec, columns: int | None = None) -> Self:
        """Packed if that saves memory: a large constant of less than a byte for each element.

        Packing is worth an unpacking at every invoke; smaller constants are compiled into programs.
        `columns` is the size of the last dimension, if a layout changes the filter's.
        """
        if w.const is None or w.const.size < MANY or w.dtype not in BITS:
            return cls(None)
        return cls(Packed(w.dtype, w.shape[-1] if columns is None else columns))

    @classmethod
    def of_convolution(cls, w: TensorSpec, output_channels: int, groups: int) -> Self:
        """Laid out with output channels last.

        With groups it is not packed: one group may have too few output channels to fill bytes.
        """
        return cls.of(w, output_channels) if groups == 1 else cls(None)

    def prepare(self, w: Array) -> Array:
        """A filter of the file, perhaps laid out already -> its stored form (see to_int8)."""
        return to_int8(w) if self.packed is None else self.packed.pack(w)

    def read(self, stored: jax.Array) -> jax.Array:
        """The stored form -> int8 or int16."""
        return stored if self.packed is None else self.packed.unpack(stored)
