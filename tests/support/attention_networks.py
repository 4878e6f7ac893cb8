"""Transformers with random weights, built in memory: for tests and benchmarks."""

from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    CastOptions,
    FullyConnectedOptions,
    GatherOptions,
    GeluOptions,
    Options,
    ReducerOptions,
    ReshapeOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.testing.builder import ModelBuilder

_MASKED = -10000.0  # what BERT adds to the scores of masked positions
_EPSILON = 1e-6  # of the layer normalization


def bert_small(
    *,
    length: int = 128,
    layers: int = 4,
    hidden: int = 512,
    heads: int = 8,
    vocabulary: int = 30522,
    seed: int = 0,
) -> bytes:
    """BERT small with a question-answering head, as a .tflite, float32.

    int32 `ids` and `mask` [1, length], the mask 0 where there is padding, to `logits`
    [1, length, 2], of the first and of the last token (Devlin et al. 2019; Turc et al. 2019).

    Args:
        length: of the sequence.
        layers: how many encoders.
        hidden: width of the residual stream, a multiple of `heads`.
        heads: of each attention.
        vocabulary: rows of the embedding.
        seed: of the random weights.

    Returns:
        The file's content: about 115 MB with the defaults, of which 63 MB are the embedding.
    """
    net = _Transformer(seed, length, hidden, heads)
    signature = (-1, length)
    ids, mask = (
        net.builder.input((1, length), np.int32, name, shape_signature=signature)
        for name in ("ids", "mask")
    )
    added = net.added_mask(mask)
    x = net.embedded(ids, vocabulary)
    for _ in range(layers):
        x = net.normalized(net.sum(x, net.attention(x, added)))
        x = net.normalized(net.sum(x, net.feed_forward(x)))
    logits = net.dense(x, 2, "logits")
    net.builder.outputs(logits)
    net.builder.signature("serving_default", {"ids": ids, "mask": mask}, {"logits": logits})
    return net.builder.build()


def vision_transformer(
    *, patches: int = 196, layers: int = 2, hidden: int = 256, heads: int = 4, seed: int = 0
) -> bytes:
    """An encoder of patches of 16 x 16 pixels, with random weights, as a .tflite.

    float32 `images` [1, patches, 768] to `features` [1, patches, hidden] (Dosovitskiy et al. 2020).
    """
    net = _Transformer(seed, patches, hidden, heads)
    images = net.builder.input((1, patches, 768), np.float32, "images")
    x = net.placed(net.dense(images, hidden, channels=768))
    for _ in range(layers):
        x = net.sum(x, net.attention(net.normalized(x)))
        x = net.sum(x, net.feed_forward(net.normalized(x)))
    x = net.normalized(x)
    net.builder.outputs(x)
    net.builder.signature("vision", {"images": images}, {"features": x})
    return net.builder.build()


class _Transformer:
    """Layers over a residual stream [1, length, hidden]."""

    def __init__(self, seed: int, length: int, hidden: int, heads: int) -> None:
        self.builder = ModelBuilder("BERT, random weights")
        self._rng = np.random.default_rng(seed)
        self._length, self._hidden, self._heads = length, hidden, heads

    def embedded(self, ids: int, vocabulary: int) -> int:
        """The rows of a table, with one for each position added."""
        table = self._constant(self._normal(vocabulary, self._hidden), "embedding")
        rows = self._then("GATHER", [table, ids], self._stream, GatherOptions())
        return self.normalized(self.placed(rows))

    def placed(self, x: int) -> int:
        """With a row for each position added."""
        positions = self._constant(self._normal(self._length, self._hidden), "positions")
        return self._then("ADD", [x, positions], self._stream)

    def added_mask(self, mask: int) -> int:
        """[1, length] of 0 and 1 to [1, 1, 1, length] of -10000 and 0."""
        options = CastOptions(TensorType.INT32, TensorType.FLOAT32)
        x = self._then("CAST", [mask], (1, self._length), options)
        x = self._reshaped(x, (1, 1, 1, self._length))
        x = self._then("SUB", [self._constant(1.0), x], (1, 1, 1, self._length))
        return self._then("MUL", [x, self._constant(_MASKED)], (1, 1, 1, self._length))

    def attention(self, x: int, mask: int | None = None) -> int:
        """Scaled dot products; a `mask` [1, 1, 1, length] is added to the scores."""
        n, depth = self._length, self._hidden // self._heads
        q, k, v = (self._heads_first(self.dense(x, self._hidden)) for _ in range(3))
        scores = (1, self._heads, n, n)
        products = self._then("BATCH_MATMUL", [q, k], scores, BatchMatMulOptions(adj_y=True))
        factor = self._constant(1 / np.sqrt(depth))
        y = self._then("MUL", [products, factor], scores)
        y = y if mask is None else self._then("ADD", [y, mask], scores)
        weights = self._then("SOFTMAX", [y], scores, SoftmaxOptions(beta=1.0))
        y = self._then(
            "BATCH_MATMUL", [weights, v], (1, self._heads, n, depth), BatchMatMulOptions()
        )
        y = self._transposed(y, (1, n, self._heads, depth))
        return self.dense(self._reshaped(y, self._stream), self._hidden)

    def feed_forward(self, x: int) -> int:
        inner = self.dense(x, 4 * self._hidden)
        shape = (1, self._length, 4 * self._hidden)
        y = self._then("GELU", [inner], shape, GeluOptions(approximate=True))
        return self.dense(y, self._hidden, channels=4 * self._hidden)

    def sum(self, a: int, b: int) -> int:
        return self._then("ADD", [a, b], self._stream)

    def normalized(self, x: int) -> int:
        """Layer normalization, in the operators that converters write."""
        columns, means = self._stream, (1, self._length, 1)
        mean = self._mean(x)
        centered = self._then("SUB", [x, mean], columns)
        squares = self._then("SQUARED_DIFFERENCE", [x, mean], columns)
        variance = self._then("ADD", [self._mean(squares), self._constant(_EPSILON)], means)
        y = self._then("MUL", [centered, self._then("RSQRT", [variance], means)], columns)
        gamma = self._constant(1 + self._normal(self._hidden, deviation=0.1))
        beta = self._constant(self._normal(self._hidden, deviation=0.1))
        return self._then("ADD", [self._then("MUL", [y, gamma], columns), beta], columns)

    def dense(
        self, x: int, units: int, name: str | None = None, *, channels: int | None = None
    ) -> int:
        """FULLY_CONNECTED over the last dimension."""
        channels = self._hidden if channels is None else channels
        w = self._constant(self._normal(units, channels, deviation=1 / np.sqrt(channels)))
        b = self._constant(self._normal(units, deviation=0.1))
        options = FullyConnectedOptions(keep_num_dims=True)
        shape = (1, self._length, units)
        return self._then("FULLY_CONNECTED", [x, w, b], shape, options, name=name)

    @property
    def _stream(self) -> tuple[int, int, int]:
        return 1, self._length, self._hidden

    def _heads_first(self, x: int) -> int:
        n, depth = self._length, self._hidden // self._heads
        split = self._reshaped(x, (1, n, self._heads, depth))
        return self._transposed(split, (1, self._heads, n, depth))

    def _transposed(self, x: int, shape: Sequence[int]) -> int:
        order = self.builder.constant(np.array([0, 2, 1, 3], np.int32))
        return self._then("TRANSPOSE", [x, order], shape)

    def _reshaped(self, x: int, shape: Sequence[int]) -> int:
        """`shape` with an open batch."""
        open_batch = (-1, *shape[1:])
        target = self.builder.constant(np.array(open_batch, np.int32))
        return self._then("RESHAPE", [x, target], shape, ReshapeOptions(open_batch))

    def _mean(self, x: int) -> int:
        axis = self.builder.constant(np.array([2], np.int32))
        options = ReducerOptions(keep_dims=True)
        return self._then("MEAN", [x, axis], (1, self._length, 1), options)

    def _normal(self, *shape: int, deviation: float = 1.0) -> np.ndarray:
        return self._rng.normal(0, deviation, shape)

    def _constant(self, values: float | np.ndarray, name: str | None = None) -> int:
        return self.builder.constant(np.asarray(values, np.float32), name)

    def _then(
        self,
        operator: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        options: Options | None = None,
        *,
        name: str | None = None,
    ) -> int:
        y = self.builder.tensor(shape, name=name)
        self.builder.operator(operator, inputs, [y], options)
        return y
