"""Models with TensorFlow's operators: converted and run by TensorFlow 2.17, then by jaxdelegate.

python bench/convert_flex_models.py write FOLDER     # with tensorflow-cpu==2.17.*
python bench/convert_flex_models.py compare FOLDER   # with jaxdelegate: a line for each model

`write` stores each model with its inputs and the results of the function that it comes from, which
TensorFlow runs eagerly. A difference is relative to the largest value of an output.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20
BATCH = 3  # of models whose batch is free
# Flex runs every kernel of TensorFlow, but the converter wants those outside its list by name.
BEYOND_THE_LIST = (
    *("Acosh", "Asinh", "Atanh", "Digamma", "Erfc", "Erfinv", "MatrixSolve", "SelfAdjointEigV2"),
    *("StringNGrams", "StringUpper", "Svd"),
)

Build = Callable[[Any, np.random.Generator], Callable[..., Any]]
# By name: how to build the function from TensorFlow and a generator, and the specs of its inputs.
MODELS: dict[str, tuple[Build, Sequence[Any]]] = {}


def model(*specs: Any) -> Callable[[Build], Build]:
    """A spec is a shape, (shape, dtype, low, high), or (how many, strings to choose from)."""

    def register(build: Build) -> Build:
        MODELS[build.__name__] = build, specs
        return build

    return register


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)


# ---- attention, products and decompositions


@model((None, 6, 8))
def attention_heads(tf: Any, rng: np.random.Generator) -> Any:
    q, k, v = (weights(rng, 8, 2, 4) for _ in range(3))
    out = weights(rng, 2, 4, 8)

    def run(x: Any) -> Any:
        heads = [tf.einsum("abc,cde->abde", x, w) for w in (q, k, v)]
        scores = tf.nn.softmax(tf.einsum("aecd,abcd->acbe", heads[1], heads[0]))
        return tf.einsum("abcd,cde->abe", tf.einsum("acbe,aecd->abcd", scores, heads[2]), out)

    return run


@model((None, 5, 4), (None, 5, 3))
def bilinear_pairs(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 4, 3, 6)
    return lambda x, y: tf.nn.tanh(tf.einsum("bti,ijk,btj->bk", x, w, y))


@model((None, 4, 5, 5))
def traces(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 4, 3)

    def run(x: Any) -> Any:
        raw = tf.raw_ops.Einsum
        traces = raw(inputs=[x], equation="bhii->bh")
        diagonals = raw(inputs=[x], equation="...ii->...i")
        return tf.matmul(traces, w), diagonals, raw(inputs=[x, x], equation="bhij,bhjj->bi")

    return run


@model((2, 5, 5), (2, 5, 1))
def gaussian_process(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any, y: Any) -> Any:
        kernel = tf.matmul(x, x, transpose_b=True) + 2.0 * tf.eye(5)
        root = tf.linalg.cholesky(kernel)
        half = tf.linalg.triangular_solve(root, y)
        return tf.linalg.triangular_solve(root, half, adjoint=True), tf.linalg.diag_part(root)

    return run


@model((4, 6), (4, 2))
def ridge_regression(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any, y: Any) -> Any:
        gram = tf.matmul(x, x, transpose_a=True) + 0.5 * tf.eye(6)
        beta = tf.linalg.solve(gram, tf.matmul(x, y, transpose_a=True))
        return beta, tf.linalg.inv(gram)

    return run


@model((None, 5, 3))
def orthogonal_projection(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        q, r = tf.linalg.qr(x)
        return tf.matmul(q, q, transpose_b=True), tf.linalg.logdet(
            tf.matmul(r, r, transpose_a=True)
        )

    return run


@model((None, 4, 6))
def low_rank(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        s, u, v = tf.linalg.svd(x)
        kept = u[..., :2] * s[..., None, :2]
        return tf.matmul(kept, v[..., :2], transpose_b=True), s

    return run


@model((10, 4))
def principal_components(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        centered = x - tf.reduce_mean(x, 0, keepdims=True)
        values, vectors = tf.linalg.eigh(tf.matmul(centered, centered, transpose_a=True))
        return values, tf.abs(tf.matmul(centered, vectors))

    return run


@model((4, 4))
def determinants(tf: Any, _rng: np.random.Generator) -> Any:
    return lambda x: (tf.linalg.det(x), tf.linalg.inv(x + 5 * tf.eye(4), adjoint=True))


@model((2, 3, 4), (2, 4, 5))
def products(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any, y: Any) -> Any:
        return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32), tf.sinh(x)

    return run


# ---- images


@model((2, 16, 16, 3))
def region_features(tf: Any, rng: np.random.Generator) -> Any:
    boxes = np.float32([[0, 0, 0.6, 0.7], [0.2, 0.1, 1.1, 0.9], [0.9, 0.9, 0.1, 0.2]])
    w = weights(rng, 3, 4)

    def run(x: Any) -> Any:
        crops = tf.image.crop_and_resize(x, boxes, [0, 1, 1], [5, 6], extrapolation_value=0.5)
        return tf.nn.relu(tf.matmul(crops, w))

    return run


@model((1, 12, 12, 2), ((4, 4), np.float32, 0, 1))
def regions_at_run_time(tf: Any, _rng: np.random.Generator) -> Any:
    indices = [0, 0, 0, 0]
    return lambda x, b: tf.image.crop_and_resize(x, b, indices, [3, 3], method="nearest")


@model((2, 9, 8, 3))
def spatial_transformer(tf: Any, _rng: np.random.Generator) -> Any:
    matrices = np.float32([[1.1, 0.2, -1, -0.1, 0.9, 0.5, 0.001, 0], [1, 0, 2, 0, 1, -1, 0, 0]])

    def run(x: Any) -> Any:
        return [
            tf.raw_ops.ImageProjectiveTransformV3(
                images=x,
                transforms=matrices,
                output_shape=[7, 10],
                fill_value=0.25,
                interpolation=kind,
                fill_mode=mode,
            )
            for kind, mode in (
                ("BILINEAR", "CONSTANT"),
                ("NEAREST", "REFLECT"),
                ("BILINEAR", "WRAP"),
                ("BILINEAR", "NEAREST"),
            )
        ]

    return run


@model((None, 9, 10, 2))
def patch_embedding(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 18, 5)

    def run(x: Any) -> Any:
        patches = tf.image.extract_patches(x, [1, 3, 3, 1], [1, 2, 3, 1], [1, 1, 1, 1], "VALID")
        return tf.matmul(patches, w)

    return run


@model((None, 8, 8, 3))
def dilated_patches(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        patches = tf.image.extract_patches(x, [1, 2, 3, 1], [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
        return tf.nn.softplus(patches)

    return run


@model(((2, 20, 1, 4), np.float32, 0, 1), ((2, 20, 3), np.float32, 0, 1))
def detector_head(tf: Any, _rng: np.random.Generator) -> Any:
    def run(boxes: Any, scores: Any) -> Any:
        found = tf.image.combined_non_max_suppression(boxes, scores, 4, 6, 0.3, 0.2)
        return found.nmsed_boxes, found.nmsed_scores, found.nmsed_classes, found.valid_detections

    return run


@model(((1, 12, 2, 4), np.float32, 0, 1), ((1, 12, 2), np.float32, 0, 1))
def detector_head_by_class(tf: Any, _rng: np.random.Generator) -> Any:
    def run(boxes: Any, scores: Any) -> Any:
        found = tf.image.combined_non_max_suppression(
            2 * boxes - 0.5, scores, 3, 5, 0.5, pad_per_class=True, clip_boxes=True
        )
        return list(found)

    return run


@model((None, 5, 6, 3))
def super_resolution(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 3, 3, 3, 3)

    def run(x: Any) -> Any:
        large = tf.raw_ops.ResizeBicubic(images=x, size=[10, 12], half_pixel_centers=True)
        return large + tf.nn.conv2d(large, w, 1, "SAME")

    return run


# ---- signals


@model((None, 24))
def spectral_filter(tf: Any, rng: np.random.Generator) -> Any:
    gain = np.abs(weights(rng, 13))
    return lambda x: tf.signal.irfft(tf.signal.rfft(x) * tf.cast(gain, tf.complex64), [24])


@model((2, 8, 12))
def picture_spectrum(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        bins = tf.signal.fft2d(tf.complex(x, tf.zeros_like(x)))
        return tf.abs(bins), tf.math.real(tf.signal.ifft2d(bins * tf.complex(0.5, 0.25)))

    return run


@model((4, 16))
def analytic_signal(tf: Any, _rng: np.random.Generator) -> Any:
    keep = np.float32([1] + [2] * 7 + [1] + [0] * 7)

    def run(x: Any) -> Any:
        bins = tf.signal.fft(tf.complex(x, tf.zeros_like(x)))
        return tf.math.imag(tf.signal.ifft(bins * tf.complex(keep, tf.zeros(16))))

    return run


@model((1, 4, 6, 8))
def volume_spectrum(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        bins = tf.signal.rfft3d(x)
        whole = tf.signal.fft3d(tf.complex(x, x))
        back = tf.signal.ifft3d(whole)
        return tf.signal.irfft3d(bins * tf.complex(0.5, 0.0)), tf.math.real(back), tf.abs(whole)

    return run


@model((2, 64))
def short_time_transform(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        frames = tf.signal.stft(x, 16, 8, 16)
        return tf.abs(frames), tf.signal.inverse_stft(frames, 16, 8, 16)

    return run


@model((2, 6, 8))
def picture_filter(tf: Any, _rng: np.random.Generator) -> Any:
    return lambda x: tf.signal.irfft2d(tf.signal.rfft2d(x) * tf.complex(0.75, 0.0))


@model((2, 400))
def cepstrum(tf: Any, _rng: np.random.Generator) -> Any:
    filters = tf.signal.linear_to_mel_weight_matrix(10, 129, 8000, 80.0, 3800.0)

    def run(x: Any) -> Any:
        mel = tf.tensordot(tf.abs(tf.signal.stft(x, 200, 100, 256)), filters, 1)
        return tf.signal.mfccs_from_log_mel_spectrograms(tf.math.log(mel + 1e-6))

    return run


# ---- training


@model((2, 8, 8, 4))
def gradient_of_depthwise_network(tf: Any, rng: np.random.Generator) -> Any:
    w = tf.constant(weights(rng, 3, 3, 4, 2))

    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.elu(tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"))
            loss = tf.reduce_sum(tf.sin(tf.nn.avg_pool2d(y, 3, 2, "SAME")))
        return tape.gradient(loss, [x, w])

    return run


@model((1, 4, 6, 5, 2))
def gradient_of_volumes(tf: Any, rng: np.random.Generator) -> Any:
    w = tf.constant(weights(rng, 2, 2, 2, 2, 3))

    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.max_pool3d(tf.nn.conv3d(x, w, [1] * 5, "SAME"), 2, 2, "VALID")
            loss = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(tf.nn.avg_pool3d(x, 2, 2, "SAME") ** 2)
        return tape.gradient(loss, [x, w])

    return run


@model((3, 6))
def dropped_out(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 6, 6)

    def run(x: Any) -> Any:
        y = tf.nn.experimental.stateless_dropout(tf.matmul(x, w), 0.5, [3, 4])
        return y, tf.random.stateless_normal([3, 5], [1, 2])

    return run


@model((4, 6, 5, 3))
def batch_normalization_in_training(tf: Any, rng: np.random.Generator) -> Any:
    scale, offset = np.abs(weights(rng, 3)) + 0.5, weights(rng, 3)

    def run(x: Any) -> Any:
        return tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=[], variance=[], epsilon=1e-3
        )[:3]

    return run


@model((2, 4, 4, 3))
def running_averages(tf: Any, rng: np.random.Generator) -> Any:
    scale, offset = np.abs(weights(rng, 3)) + 0.5, weights(rng, 3)

    def run(x: Any) -> Any:
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=offset,
            variance=scale,
            exponential_avg_factor=0.1,
        )[:3]

    return run


@model((4, 5, 5, 3))
def gradient_of_normalization(tf: Any, rng: np.random.Generator) -> Any:
    scale, offset = tf.constant(np.abs(weights(rng, 3)) + 0.5), tf.constant(weights(rng, 3))

    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y = tf.compat.v1.nn.fused_batch_norm(x, scale, offset)[0]
            loss = tf.reduce_sum(tf.sin(y))
        return tape.gradient(loss, [x, scale, offset])

    return run


@model((3, 8, 8, 2), ((3,), np.int32, 0, 4))
def gradient_of_network(tf: Any, rng: np.random.Generator) -> Any:
    w, dense = tf.constant(weights(rng, 3, 3, 2, 4)), tf.constant(weights(rng, 64, 5))
    bias = tf.constant(weights(rng, 5))

    def run(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w, dense, bias])
            y = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")), 2, 2, "VALID")
            logits = tf.nn.bias_add(tf.matmul(tf.reshape(y, [3, 64]), dense), bias)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return loss, *tape.gradient(loss, [x, w, dense, bias])

    return run


@model((2, 9, 9, 3))
def gradient_of_strided_convolution(tf: Any, rng: np.random.Generator) -> Any:
    w = tf.constant(weights(rng, 3, 2, 3, 4))

    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            loss = tf.reduce_sum(tf.nn.conv2d(x, w, [2, 3], "VALID") ** 2)
        return tape.gradient(loss, [x, w])

    return run


@model((2, 5), ((2, 5), np.float32, 0, 1))
def soft_labels(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any, labels: Any) -> Any:
        return tf.raw_ops.SoftmaxCrossEntropyWithLogits(
            features=x, labels=labels / tf.reduce_sum(labels, 1, keepdims=True)
        )

    return run


@model((4, 7))
def gradient_of_slices(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x[1:4:2, ::-2] ** 3) + tf.reduce_sum(tf.math.softplus(x[..., 2]))
        return tape.gradient(loss, x)

    return run


@model((1, 3, 4, 5, 2))
def volume_decoder(tf: Any, rng: np.random.Generator) -> Any:
    down, up = weights(rng, 2, 2, 2, 2, 4), weights(rng, 2, 2, 2, 3, 4)

    def run(x: Any) -> Any:
        y = tf.nn.conv3d(x, down, [1] * 5, "SAME")
        y = tf.raw_ops.Conv3DBackpropInputV2(
            input_sizes=[1, 6, 8, 10, 3],
            filter=up,
            out_backprop=tf.nn.relu(y),
            strides=[1, 2, 2, 2, 1],
            padding="SAME",
        )
        return tf.nn.max_pool3d(y, 2, 2, "VALID"), tf.nn.avg_pool3d(y, 2, 2, "SAME")

    return run


# ---- lists, loops and recurrent layers


def _recurrent(tf: Any, layer: Any, features: int, **options: Any) -> Any:
    tf.keras.utils.set_random_seed(SEED)
    cell = layer(5, **options)
    cell.build((None, None, features))
    return cell.__call__


@model((None, 6, 4))
def lstm(tf: Any, _rng: np.random.Generator) -> Any:
    return _recurrent(tf, tf.keras.layers.LSTM, 4, return_sequences=True)


@model((None, 6, 4))
def gru(tf: Any, _rng: np.random.Generator) -> Any:
    return _recurrent(tf, tf.keras.layers.GRU, 4)


@model((None, 5, 3))
def simple_rnn(tf: Any, _rng: np.random.Generator) -> Any:
    return _recurrent(tf, tf.keras.layers.SimpleRNN, 3, return_sequences=True)


@model((None, 6, 4))
def lstm_backwards(tf: Any, _rng: np.random.Generator) -> Any:
    return _recurrent(tf, tf.keras.layers.LSTM, 4, go_backwards=True)


@model((None, 6, 4))
def bidirectional_gru(tf: Any, _rng: np.random.Generator) -> Any:
    tf.keras.utils.set_random_seed(SEED)
    layer = tf.keras.layers.Bidirectional(tf.keras.layers.GRU(3, return_sequences=True))
    layer.build((None, 6, 4))
    return layer.__call__


@model((3, 4))
def stack_machine(tf: Any, _rng: np.random.Generator) -> Any:
    raw = tf.raw_ops

    def run(x: Any) -> Any:
        items = raw.EmptyTensorList(
            element_shape=[4], max_num_elements=-1, element_dtype=tf.float32
        )
        for row in range(3):
            items = raw.TensorListPushBack(input_handle=items, tensor=x[row] * (row + 1.0))
        items, last = raw.TensorListPopBack(
            input_handle=items, element_shape=[4], element_dtype=tf.float32
        )
        stacked = raw.TensorListStack(
            input_handle=items, element_shape=[4], element_dtype=tf.float32
        )
        return tf.nn.softplus(stacked), last

    return run


@model((4, 2, 3))
def list_of_rows(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 4, element_shape=[2, 3]).unstack(x)
        array = array.write(1, tf.math.erf(array.read(0)))
        return array.concat(), array.gather([3, 1]), tf.cast(array.size(), tf.float32)

    return run


@model((4, 3))
def scattered_rows(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 6, element_shape=[3]).scatter([5, 0, 2, 3], x)
        return tf.math.expm1(array.stack())

    return run


@model((None, 4))
def power_iteration(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 4, 4)

    def run(x: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            return i + 1, tf.nn.l2_normalize(tf.math.softsign(tf.matmul(x, w)), 1)

        return tf.while_loop(lambda i, _x: i < 5, step, [tf.constant(0), x])[1]

    return run


# ---- text and tables

WORDS = ["one two", " three", "FOUR five six", "", "seven  Seven", "a1b22", "\u00fcber"]


@model((6, WORDS))
def words_of_lines(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        lines = tf.strings.regex_replace(tf.strings.lower(tf.strings.strip(x)), "[0-9]+", "#")
        words = tf.raw_ops.StringSplitV2(input=lines, sep="")
        return words.values, words.indices, words.shape

    return run


@model((5, WORDS))
def lengths_and_parts(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        padded = tf.strings.join([x, "--", tf.strings.upper(x)], separator="|")
        parts = tf.strings.substr(padded, 1, 3)
        return padded, parts, tf.strings.length(x), tf.strings.length(x, "UTF8_CHAR")

    return run


@model((4, WORDS))
def hashed_words(tf: Any, rng: np.random.Generator) -> Any:
    table = weights(rng, 50, 3)

    def run(x: Any) -> Any:
        return tf.gather(table, tf.strings.to_hash_bucket_fast(x, 50))

    return run


@model((5, WORDS))
def matches(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        return tf.where(tf.strings.regex_full_match(x, ".*[a-z]+ .*"), 1.0, -1.0)

    return run


@model((2, 3))
def numbers_as_text(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        text = tf.strings.as_string(x, precision=3)
        return (
            tf.strings.reduce_join(text, axis=1, separator=","),
            tf.strings.to_number(text),
            tf.strings.as_string(tf.cast(10 * x, tf.int32), width=5, fill="0"),
        )

    return run


@model((6, ["red", "green", "blue", "violet"]))
def vocabulary(tf: Any, rng: np.random.Generator) -> Any:
    rows = tf.lookup.KeyValueTensorInitializer(
        ["red", "green", "blue"], tf.range(3, dtype=tf.int64)
    )
    table, vectors = tf.lookup.StaticHashTable(rows, 3), weights(rng, 4, 2)

    def run(x: Any) -> Any:
        return tf.gather(vectors, table.lookup(x)) / tf.cast(table.size(), tf.float32)

    run.table = table  # type: ignore[attr-defined] (kept alive)
    return run


@model(((7,), np.int64, 0, 9))
def table_of_numbers(tf: Any, rng: np.random.Generator) -> Any:
    keys = tf.constant([1, 3, 5, 7], tf.int64)
    rows = tf.lookup.KeyValueTensorInitializer(keys, tf.constant(weights(rng, 4)))
    table = tf.lookup.StaticHashTable(rows, -1.0)

    def run(x: Any) -> Any:
        return tf.nn.softplus(table.lookup(x))

    run.table = table  # type: ignore[attr-defined] (kept alive)
    return run


@model((6, WORDS))
def vectorized_text(tf: Any, rng: np.random.Generator) -> Any:
    rows = tf.lookup.KeyValueTensorInitializer(["one", "two", "#"], tf.range(3, dtype=tf.int64))
    table, vectors = tf.lookup.StaticHashTable(rows, 3), weights(rng, 4, 2)

    def run(x: Any) -> Any:
        lines = tf.strings.regex_replace(tf.strings.lower(x), r"[^\p{L}\s]", "#")
        words = tf.strings.split(lines)
        ids = tf.RaggedTensor.from_row_splits(table.lookup(words.values), words.row_splits)
        return tf.gather(vectors, ids.to_tensor(3, shape=[None, 5]))

    run.table = table  # type: ignore[attr-defined] (kept alive)
    return run


@model((5, WORDS))
def pairs_of_words(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        pairs = tf.strings.ngrams(tf.strings.split(x), 2, separator="_")
        letters = tf.strings.unicode_decode(x, "UTF-8")
        return pairs.values, pairs.row_splits, letters.values, tf.strings.format("{}", [x])

    return run


# ---- counts, sets and checks


@model(((12,), np.int32, 0, 5))
def histogram(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        counts = tf.raw_ops.DenseBincount(input=x, size=6, weights=tf.zeros([0], tf.float32))
        weighted = tf.raw_ops.Bincount(arr=x, size=6, weights=tf.cast(x, tf.float32) * 0.5)
        return counts, weighted

    return run


@model(((3, 8), np.int32, 0, 5))
def bag_of_words(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 6, 4)

    def run(x: Any) -> Any:
        bags = tf.raw_ops.DenseBincount(
            input=x, size=6, weights=tf.zeros([0], tf.float32), binary_output=True
        )
        return tf.matmul(bags, w)

    return run


@model(((6, 2), np.int32, 0, 2))
def distinct_rows(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        rows, index = tf.raw_ops.UniqueV2(x=x, axis=[0])
        return rows, index, tf.gather(tf.cast(rows, tf.float32), index) * 0.5

    return run


@model((2, 9))
def split_and_joined(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        a, b, c = tf.raw_ops.SplitV(value=x, size_splits=[2, -1, 3], axis=1, num_split=3)
        return tf.concat([tf.math.acosh(1 + a * a), tf.math.asinh(b), tf.math.atan(c)], 1)

    return run


@model((2, 3), (2, 3))
def rows_in_parallel(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any, y: Any) -> Any:
        rows = [tf.expand_dims(tf.reduce_mean(v, 0), 0) for v in (x, y)]
        return tf.raw_ops.ParallelConcat(values=rows, shape=[2, 3])

    return run


@model((3, 4))
def checked(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        x = tf.debugging.check_numerics(x, "x is not finite")
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 100.0), [x])]):
            return tf.math.cumprod(tf.math.erfc(x), 1, exclusive=True), tf.roll(x, 1, 0)

    return run


@model((None, 5))
def special_functions(tf: Any, _rng: np.random.Generator) -> Any:
    def run(x: Any) -> Any:
        positive = tf.nn.softplus(x) + 0.5
        terms = [tf.math.digamma(positive), tf.math.erf(x), tf.tan(x / 2)]
        return tf.add_n(terms), tf.math.erfinv(tf.tanh(x)), tf.math.log1p(positive)

    return run


@model((None, 6))
def odd_activations(tf: Any, rng: np.random.Generator) -> Any:
    w = weights(rng, 6, 6)

    def run(x: Any) -> Any:
        y = tf.nn.selu(tf.matmul(x, w))
        return tf.cosh(y) + tf.math.softsign(y), tf.math.reciprocal(y + 5), tf.math.atanh(y / 9)

    return run


def _specs(given: Sequence[Any]) -> list[tuple[Any, Any, tuple[float, float]]]:
    """Shape, dtype (or words), and range of each input."""
    found = []
    for spec in given:
        if len(spec) == 2 and isinstance(spec[1], list):
            found.append(((spec[0],), spec[1], (0, 0)))
        elif spec and isinstance(spec[0], tuple):
            found.append((spec[0], spec[1], spec[2:]))
        else:
            found.append((spec, np.float32, (-1.5, 1.5)))
    return found


def _input(rng: np.random.Generator, shape: Any, kind: Any, limits: tuple[float, float]) -> Any:
    shape = [BATCH if n is None else n for n in shape]
    if isinstance(kind, list):
        return np.array([kind[i % len(kind)].encode() for i in range(shape[0])])
    if np.dtype(kind).kind == "i":
        return rng.integers(*limits, shape, kind, endpoint=True)
    return rng.uniform(*limits, shape).astype(kind)


def write(folder: Path) -> None:
    """Each model, its inputs and TensorFlow's results."""
    import tensorflow as tf  # noqa: PLC0415 (only here)

    folder.mkdir(parents=True, exist_ok=True)
    for name, (build, given) in MODELS.items():
        rng, specs = np.random.default_rng(SEED), _specs(given)
        built = build(tf, rng)
        run = tf.function(
            built,
            input_signature=[
                tf.TensorSpec(shape, tf.string if isinstance(kind, list) else kind)
                for shape, kind, _ in specs
            ],
        )
        inputs = [_input(rng, *spec) for spec in specs]
        try:
            (folder / f"{name}.tflite").write_bytes(
                _converted(tf, run, getattr(built, "table", None))
            )
            results = tf.nest.flatten(run(*map(tf.constant, inputs)))
        except Exception as error:  # TensorFlow's converter raises any
            print(json.dumps({"model": name, "not_converted": str(error)[-300:]}), flush=True)
            continue
        arrays = [np.asarray(y) for y in results]
        texts = [a.astype("S") if a.dtype.hasobject else a for a in arrays]
        np.savez(folder / f"{name}.inputs.npz", *inputs)
        np.savez(folder / f"{name}.results.npz", *texts)


def _converted(tf: Any, run: Any, table: Any) -> bytes:
    """Only a saved model holds what fills a table."""
    with tempfile.TemporaryDirectory() as folder:
        concrete = run.get_concrete_function()
        if table is None:
            converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
        else:
            module = tf.Module()
            module.run, module.table = run, table
            tf.saved_model.save(module, folder, signatures=concrete)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS,
            tf.lite.OpsSet.SELECT_TF_OPS,
        ]
        converter.target_spec.experimental_select_user_tf_ops = BEYOND_THE_LIST
        converter._experimental_lower_tensor_list_ops = False
        converted: bytes = converter.convert()
        return converted


def compare(folder: Path) -> None:
    """A line for each model, and one for all."""
    import jaxdelegate as jd  # noqa: PLC0415 (not where TensorFlow is)
    from jaxdelegate.model.records import read_model  # noqa: PLC0415

    totals: Counter[str] = Counter()
    operators: set[str] = set()
    for path in sorted(folder.glob("*.tflite")):
        totals["models"] += 1
        subgraphs = read_model(path.read_bytes()).subgraphs
        used = {o.name for subgraph in subgraphs for o in subgraph.operators}
        operators |= (flex := {name for name in used if name.startswith("Flex")})
        totals["with_flex"] += bool(flex)
        row: dict[str, Any] = {"model": path.stem, "flex": sorted(flex)}
        for kind in ("host", "delegate"):
            try:
                row[kind] = _largest(
                    path, [jd.JaxDelegate(min_gain=0)] if kind == "delegate" else None
                )
            except (RuntimeError, ValueError) as error:
                row[kind] = str(error)[:300]
            if isinstance(row[kind], float):
                totals[f"{kind}_runs"] += 1
                totals[f"{kind}_within_1e-5"] += row[kind] <= 1e-5
        print(json.dumps(row), flush=True)
    print(json.dumps({**totals, "operators": len(operators), "names": sorted(operators)}))


def _largest(path: Path, delegates: Any) -> float:
    """The largest difference of a model's results from TensorFlow's."""
    import jaxdelegate as jd  # noqa: PLC0415 (not where TensorFlow is)

    given, wanted = (
        np.load(path.with_suffix(f".{kind}.npz")).values() for kind in ("inputs", "results")
    )
    interpreter = jd.Interpreter(str(path), experimental_delegates=delegates)
    for details, array in zip(interpreter.get_input_details(), given, strict=True):
        interpreter.resize_tensor_input(details["index"], array.shape)
    interpreter.allocate_tensors()
    for details, array in zip(interpreter.get_input_details(), given, strict=True):
        texts = array.dtype.kind == "S"
        interpreter.set_tensor(details["index"], array.astype(object) if texts else array)
    interpreter.invoke()
    found = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    return max(_difference(y, z) for y, z in zip(found, wanted, strict=True))


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative to the largest value; infinite for another shape, text or dtype."""
    if found.dtype.hasobject:
        found = found.astype("S")
    if found.shape != wanted.shape or found.dtype.kind != wanted.dtype.kind:
        return float("inf")
    if wanted.dtype.kind == "S":
        return 0.0 if (found == wanted).all() else float("inf")
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    apart = np.abs(found.astype(wide) - wanted.astype(wide)).max(initial=0)
    largest = float(np.abs(wanted.astype(wide)).max(initial=0))
    return float(apart / largest) if largest else float(apart)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"write": write, "compare": compare}[arguments.step](arguments.folder)
