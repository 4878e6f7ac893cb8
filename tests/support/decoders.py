"""The weights of a language model, as converters write them: tables and filters of 4 to 8 bits."""

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import ModelBuilder
from tests.support.quantized import scaled

VOCABULARY, WIDTH, HIDDEN = 400, 256, 384


def quantized_decoder(
    rows: int, vocabulary: int = VOCABULARY, width: int = WIDTH, hidden: int = HIDDEN
) -> bytes:
    """ids [rows] -> logits [rows, vocabulary]; the table is the last filter too.

    The filters are int4 in blocks of 32, int4 and int8.
    """
    rng, b = np.random.default_rng(0), ModelBuilder()

    def filters(shape: tuple[int, int], dtype: np.dtype, block: int = 0) -> int:
        low, high = integer_range(dtype, narrow=True)
        values = rng.integers(low, high, shape, endpoint=True).astype(np.int8).astype(dtype)
        size = 2 / (high * np.sqrt(shape[1]))
        if not block:
            return b.constant(values, quantization=scaled(rng.uniform(0.5, 1, shape[0]) * size))
        half = (rng.uniform(0.5, 1, (shape[0], shape[1] // block)) * size).astype(np.float16)
        blocks = Blockwise(-1, -1, block, (), half, None)
        none = np.zeros(0, np.float32), np.zeros(0, np.int64)
        return b.constant(values, quantization=Quantization(*none, blockwise=blocks))

    def product(x: int, w: int, columns: int) -> int:
        y = b.tensor((rows, columns))
        options = FullyConnectedOptions(keep_num_dims=True, asymmetric_quantize_inputs=True)
        b.operator("FULLY_CONNECTED", [x, w, None], [y], options, version=14)
        return y

    int4, int8 = np.dtype(ml_dtypes.int4), np.dtype(np.int8)
    ids, table = b.input((rows,), np.int32), filters((vocabulary, width), int8)
    x = b.tensor((rows, width))
    b.operator("EMBEDDING_LOOKUP", [ids, table], [x], version=4)
    x = product(x, filters((hidden, width), int4, 32), hidden)
    x = product(x, filters((hidden, hidden), int4), hidden)
    x = product(x, filters((width, hidden), int8), width)
    b.outputs(product(x, table, vocabulary))
    return b.build()
