"""The weights of a language model, as converters write them: tables and filters of 4 to 8 bits."""

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import FullyConnectedOptions
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

    def elementwise(name: str, *operands: int, columns: int = width) -> int:
        y = b.tensor((rows, columns))
        b.operator(name, operands, [y])
        return y

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

    def product(self, x: int, w: int, columns: int) -> int:
        y = self.tensor((self._rows, columns))
        options = FullyConnectedOptions(keep_num_dims=True, asymmetric_quantize_inputs=True)
        self.operator("FULLY_CONNECTED", [x, w, None], [y], options, version=14)
        return y
