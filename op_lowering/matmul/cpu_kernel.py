"""Dynamic range FULLY_CONNECTED, and BATCH_MATMUL by one matrix, by this package's CPU kernel.

The kernel reads weights as the file stores them, packed if they have less than eight bits, with one
scale for a row or one for each block of it. It quantizes rows on the fly; results equal those of
XLA's algorithms bit for bit.
"""

import functools
import math
import operator

import jax
import numpy as np

from jaxdelegate.kernels.library import FULLY_CONNECTED
from jaxdelegate.op_lowering.common.basics import Array, pad
from jaxdelegate.op_lowering.common.dynamic_range import RANGES, filter_scales, row_scales, signed
from jaxdelegate.op_lowering.common.fusion_barrier import traced_once
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.row_batches import OfRows, by_rows
from jaxdelegate.op_lowering.convolution.cpu_kernel import NATIVE
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import block_parameters
from jaxdelegate.quant.packing import BITS, packed_rows

_LEAST_BLOCK = 16  # bytes of weights that share a scale (kLeastBlock in kernels.h)
_AT_ONCE = 1 << 18  # weights that are unpacked together, to add them up
_HALF = np.dtype(np.float16)


def algorithms(context: LoweringContext, tensors: Tensors, activation: Act) -> tuple[str, ...]:
    """For operators that LiteRT's dynamic range kernels accept."""
    w = tensors.w
    if not context.kernels.cpu or w.const is None or activation not in RANGES:
        return ()
    return (NATIVE,) if w.blocks is None or _has_simple_blocks(w) else ()


def is_chosen(context: LoweringContext, tensors: Tensors, activation: Act) -> bool:
    return context.algorithm in (None, NATIVE) and bool(algorithms(context, tensors, activation))


def _has_simple_blocks(w: TensorSpec) -> bool:
    """Whether blocks are powers of two, without zero points, with scales of float16."""
    scale, points = _blocks(w)
    size = w.shape[1] // scale.shape[1] * _bits(w) // 8
    return (
        size >= _LEAST_BLOCK
        and size & (size - 1) == 0
        and not points.any()
        and bool(np.array_equal(scale, scale.astype(_HALF)))
    )


def _blocks(w: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points, [N or 1, blocks]."""
    if w.blocks is None:
        raise ValueError(f"{w.name!r} is not quantized in blocks")
    return block_parameters(w.blocks, w.shape)


def _bits(w: TensorSpec) -> int:
    """The size of a weight in the program: in blocks, 4 or 8 bits."""
    bits = BITS.get(w.dtype, 8)
    return bits if bits == 4 or w.blocks is None else 8


def fully_connected(options: FullyConnectedOptions, tensors: Tensors) -> Lowered:
    """[..., K] x [N, K] -> y, which has rows * N elements."""
    w_spec, y_spec = tensors.w, tensors.y
    output_channels, depth = w_spec.shape
    rows, bits = math.prod(tensors.x.shape) // depth, _bits(w_spec)
    block, asymmetric = 0, options.asymmetric_quantize_inputs
    if w_spec.blocks is not None:
        block, asymmetric = depth // _blocks(w_spec)[0].shape[1], True
    modes, range_ = (bits, block, asymmetric), RANGES[options.fused_activation_function]
    product = _product(modes, range_, (output_channels, depth))
    none = np.full(output_channels, -0.0, np.float32)  # so that zeros keep their sign

    def run(x: jax.Array, w: jax.Array, *rest: jax.Array) -> tuple[jax.Array]:
        whole = x.reshape(-1)[: rows * depth].reshape(rows, depth)  # the kernel ignores the rest
        bias = none if tensors.bias is None else rest[0].reshape(-1)
        return (product(whole, w, bias, *rest[-2:]).reshape(y_spec.shape),)

    stored = functools.partial(_stored, w_spec, bits)
    derived = [(1, functools.partial(f, w_spec)) for f in (_scales, _sums)]
    return Lowered(run, {1: stored}, (NATIVE, bits), derived=derived)


def takes_batch_matmul(context: LoweringContext, tensors: Tensors) -> bool:
    """Whether it multiplies all rows by the same matrix, for BATCH_MATMUL of int8 filters."""
    w = tensors.w
    is_one = math.prod(w.shape[:-2]) == 1 and 0 not in w.shape
    return context.kernels.cpu and w.const is not None and is_one


def batch_matmul(options: BatchMatMulOptions, tensors: Tensors) -> Lowered:
    """[..., M, K] x [K, N] -> [..., M, N]; adj_x and adj_y swap the last two dimensions."""
    spec, y_spec = tensors.w, tensors.y
    *_, depth, columns = spec.shape
    if options.adj_y:
        depth, columns = columns, depth
    modes = 8, 0, options.asymmetric_quantize_inputs
    product = _product(modes, RANGES[Act.NONE], (columns, depth))
    none = np.full(columns, -0.0, np.float32)  # a bias; zeros keep their sign

    def stored(values: Array) -> Array:
        matrix = signed(values).reshape(spec.shape[-2:])
        return matrix if options.adj_y else matrix.transpose(1, 0)

    def run(x: jax.Array, w: jax.Array, *rest: jax.Array) -> tuple[jax.Array]:
        rows = (x.swapaxes(-1, -2) if options.adj_x else x).reshape(-1, depth)
        return (product(rows, w, none, *rest).reshape(y_spec.shape),)

    def scales(_values: Array) -> np.ndarray:
        return filter_scales(spec, columns).astype(np.float32)

    def sums(values: Array) -> Array:
        return signed(values).sum(-1 if options.adj_y else -2, dtype=np.int32).reshape(-1)

    layout = NATIVE, "batch_matmul", options.adj_y
    return Lowered(run, {1: stored}, layout, derived=((1, scales), (1, sums)))


@functools.cache
def _product(modes: tuple[int, ...], range_: tuple[float, float], shape: tuple[int, int]) -> OfRows:
    attributes = {
        "modes": np.array(modes, np.int64),
        "range": np.array(range_, np.float32),
        "shape": np.array(shape, np.int64),
    }

    @traced_once
    @by_rows
    def product(x: jax.Array, *rest: jax.Array) -> jax.Array:
        return native_call(FULLY_CONNECTED, (len(x), shape[0]), **attributes)(x, *rest)

    of_rows: OfRows = product
    return of_rows


def _stored(w: TensorSpec, bits: int, values: Array) -> Array:
    """A filter of the file -> [N, bytes of a row]."""
    if bits == 8:
        return signed(values)
    rows = packed_rows(values)
    if rows is not None:
        return rows
    each = values.astype(np.int8).astype(np.uint8) & np.uint8((1 << bits) - 1)
    whole = pad(each, [(0, 0), (0, -w.shape[1] % (8 // bits))])  # rows of whole bytes
    parts = whole.reshape(w.shape[0], -1, 8 // bits)
    shifted = (parts[..., i] << np.uint8(i * bits) for i in range(8 // bits))
    return functools.reduce(operator.or_, shifted)


def _scales(w: TensorSpec, _values: Array) -> np.ndarray:
    """float32 [N], or float16 [N, blocks]."""
    if w.blocks is None:
        return filter_scales(w, w.shape[0]).astype(np.float32)
    return np.ascontiguousarray(row_scales(w).astype(_HALF))


def _sums(w: TensorSpec, values: Array) -> Array:
    """The sums of rows, int32 [N], or of scaled sums of blocks in their order, float32 [N]."""
    scale = None if w.blocks is None else row_scales(w)
    if isinstance(values, jax.Array):
        return _sums_of_rows(values, scale)
    if packed_rows(values) is None:
        values = np.asarray(values)
    count = max(_AT_ONCE // max(w.shape[1], 1), 1)
    some = [slice(at, at + count) for at in range(0, max(w.shape[0], 1), count)]
    return np.concatenate(
        [_sums_of_rows(values[rows], None if scale is None else scale[rows]) for rows in some]
    )


def _sums_of_rows(values: Array, scale: np.ndarray | None) -> Array:
    if scale is None:
        return signed(values).sum(1, dtype=np.int32)
    sums = signed(values).reshape(*scale.shape, -1).sum(2, dtype=np.int32)
    scaled = sums.astype(np.float32) * scale
    return functools.reduce(operator.add, (scaled[:, i] for i in range(scaled.shape[1])))
