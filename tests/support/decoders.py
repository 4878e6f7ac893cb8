"""The weights of a language model, as converters write them: tables and filters of 4 to 8 bits."""

import functools

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import FullyConnectedOptions, ReducerOptions
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import ModelBuilder
from tests.support.quantized import scaled

VOCABULARY, WIDTH, HIDDEN = 400, 256, 384
INT4, INT8 = np.dtype(ml_dtypes.int4), np.dtype(np.int8)
FLOAT32 = np.dtype(np.float32)


def quantized_decoder(
    rows: int, vocabulary: int = VOCABULARY, width: int = WIDTH, hidden: int = HIDDEN
) -> bytes:
    """ids [rows] -> logits [rows, vocabulary]; the table is the last filter too.

    The filters are int4 in blocks of 32, int4 and int8.
    """
    b = _Decoder(rows)
    ids, table = b.input((rows,), np.int32), b.filters((vocabulary, width), INT8)
    x = b.tensor((rows, width))
    b.operator("EMBEDDING_LOOKUP", [ids, table], [x], version=4)
    x = b.product(x, b.filters((hidden, width), INT4, 32), hidden)
    x = b.product(x, b.filters((hidden, hidden), INT4), hidden)
    x = b.product(x, b.filters((width, hidden), INT8), width)
    b.outputs(b.product(x, table, vocabulary))
    return b.build()


def chain(rows: int, dtype: np.dtype, block: int = 0, *, layers: int, width: int) -> bytes:
    """Decoder layers without attention: float32 [rows, width] -> the same.

    Each has filters [width, width] twice, and a gated unit of three times the width. Products are
    added to what enters, at a tenth, so that values stay small.
    """
    b, hidden = _Decoder(rows), 3 * width
    x0 = x = b.input((rows, width), np.float32, "x")
    tenth = b.constant(np.float32(0.1))
    elementwise = functools.partial(b.elementwise, columns=width)
    for _ in range(layers):
        y = b.product(x, b.filters((width, width), dtype, block), width)
        y = b.product(y, b.filters((width, width), dtype, block), width)
        x = elementwise("ADD", x, elementwise("MUL", y, tenth))
        gate, up = (b.product(x, b.filters((hidden, width), dtype, block), hidden) for _ in "gu")
        gated = elementwise(
            "MUL", elementwise("LOGISTIC", gate, columns=hidden), up, columns=hidden
        )
        down = b.product(gated, b.filters((width, hidden), dtype, block), width)
        x = elementwise("ADD", x, elementwise("MUL", down, tenth))
    b.outputs(x)
    b.signature("decode", {"x": x0}, {"y": x})
    return b.build()


def gated_layers(
    rows: int, dtype: np.dtype, block: int = 0, *, layers: int, width: int, hidden: int
) -> bytes:
    """Decoder layers, float32 [rows, width] -> the same, and the keys and values of each.

    Each has an RMS norm, filters of queries, keys and values, TANH of the queries in place of an
    attention, their product added to what enters; and a norm and a unit with SiLU, added as well.
    """
    b = _Decoder(rows)
    x, left = b.input((rows, width), np.float32, "x"), list[int]()
    for _ in range(layers):
        n = b.norm(x, width)
        q, *others = (
            b.product(n, b.filters((size, width), dtype, block), size)
            for size in (2 * width, width, width)
        )
        left += others
        y = b.elementwise("TANH", q, columns=2 * width)
        y = b.product(y, b.filters((width, 2 * width), dtype, block), width)
        x = b.elementwise("ADD", x, y, columns=width)
        n = b.norm(x, width)
        gate, up = (b.product(n, b.filters((hidden, width), dtype, block), hidden) for _ in "gu")
        share = b.elementwise("LOGISTIC", gate, columns=hidden)
        gated = b.elementwise("MUL", gate, share, columns=hidden)
        gated = b.elementwise("MUL", gated, up, columns=hidden)
        down = b.product(gated, b.filters((width, hidden), dtype, block), width)
        x = b.elementwise("ADD", x, down, columns=width)
    b.outputs(x, *left)
    return b.build()


class _Decoder(ModelBuilder):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows, self._random = rows, np.random.default_rng(0)

    def filters(self, shape: tuple[int, int], dtype: np.dtype, block: int = 0) -> int:
        """A constant; of integers, with a scale for each row, or each block of it."""
        if dtype == FLOAT32:
            values = self._random.standard_normal(shape, np.float32)
            return self.constant(values / np.float32(np.sqrt(shape[1])))
        low, high = integer_range(dtype, narrow=True)
        values = self._random.integers(low, high, shape, endpoint=True).astype(np.int8)
        size = 2 / (high * np.sqrt(shape[1]))
        if not block:
            scales = self._random.uniform(0.5, 1, shape[0]) * size
            return self.constant(values.astype(dtype), quantization=scaled(scales))
        half = self._random.uniform(0.5, 1, (shape[0], shape[1] // block)) * size
        blocks = Blockwise(-1, -1, block, (), half.astype(np.float16), None)
        none = np.zeros(0, np.float32), np.zeros(0, np.int64)
        quantization = Quantization(*none, blockwise=blocks)
        return self.constant(values.astype(dtype), quantization=quantization)

    def elementwise(self, name: str, *operands: int, columns: int) -> int:
        y = self.tensor((self._rows, columns))
        self.operator(name, operands, [y])
        return y

    def norm(self, x: int, columns: int) -> int:
        """x over the root of its mean square, with scales from a half to one and a half."""
        y, last = self.tensor((self._rows, 1)), self.constant(np.array([-1], np.int32))
        square = self.elementwise("MUL", x, x, columns=columns)
        self.operator("MEAN", [square, last], [y], ReducerOptions(keep_dims=True))
        y = self.elementwise("ADD", y, self.constant(np.float32(1e-6)), columns=1)
        y = self.elementwise("MUL", x, self.elementwise("RSQRT", y, columns=1), columns=columns)
        scales = self._random.uniform(0.5, 1.5, columns).astype(np.float32)
        return self.elementwise("MUL", y, self.constant(scales), columns=columns)

    def product(self, x: int, w: int, columns: int) -> int:
        y = self.tensor((self._rows, columns))
        options = FullyConnectedOptions(keep_num_dims=True, asymmetric_quantize_inputs=True)
        self.operator("FULLY_CONNECTED", [x, w, None], [y], options, version=14)
        return y
