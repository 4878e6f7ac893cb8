"""A .tflite translated to PyTorch with its weights: the peer on a GPU.

PyTorch's users store images as channels_last. Tensors here are [N, H, W, C] as in the file, and a
convolution gets a view of them as [N, C, H, W], which is the same memory. So the layout does not
change between operators, and outputs can be compared with LiteRT's.

Sources of the operators' semantics:
kernels/{conv,depthwise_conv,pooling,reduce,resize_bilinear}.cc.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import AbsentError

from jaxdelegate.model.records import Model, Operator
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding, TensorType
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import declared_specs, gather, is_constant, propagate

Tensor = torch.Tensor
Step = Callable[..., Tensor]  # the run-time inputs, constants bound


class Network(torch.nn.Module):
    """The main subgraph of a model.

    Its constants are buffers: `.to(device, dtype)` moves them, and every float inside follows.
    """

    def __init__(self, model: Model) -> None:
        """Take over the weights.

        Raises:
            AbsentError: operators or quantized tensors, which have no translation here.
        """
        super().__init__()
        subgraph = model.subgraphs[0]
        if any(t.quantization is not None for t in subgraph.tensors):
            raise AbsentError("no translation to PyTorch of quantized tensors")
        specs = propagate(subgraph.operators, declared_specs(subgraph), model.subgraphs)
        operators = [op for op in subgraph.operators if not is_constant(gather(specs, op.outputs))]
        unknown = sorted({op.name for op in operators} - {*_STEPS})
        if unknown:
            raise AbsentError(f"no translation to PyTorch of {', '.join(unknown)}")
        self._inputs, self._outputs = subgraph.inputs, subgraph.outputs
        self.register_buffer("_unit", torch.ones(()))  # of the dtype that floats have
        self._plan = [
            (op, _STEPS[op.name](op.options, gather(specs, op.inputs))) for op in operators
        ]
        for index in {i for op in operators for i in op.inputs if i >= 0}:
            const = specs[index].const
            if const is not None and const.dtype.kind == "f":
                self.register_buffer(f"tensor_{index}", torch.from_numpy(np.array(const)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        known = dict(zip(self._inputs, inputs, strict=True))
        for operator, step in self._plan:
            y = step(*self._values(operator, known))
            known[operator.outputs[0]] = y.to(self._unit.dtype) if y.is_floating_point() else y
        return tuple(known[i] for i in self._outputs)

    def _values(self, operator: Operator, known: Mapping[int, Tensor]) -> list[Tensor | None]:
        return [
            known[i] if i in known else getattr(self, f"tensor_{i}", None) for i in operator.inputs
        ]


class Casting(torch.nn.Module):
    """A network in another dtype, with float32 inputs and outputs."""

    def __init__(self, network: Network, dtype: torch.dtype) -> None:
        super().__init__()
        self._network, self._dtype = network.to(dtype), dtype

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        cast = [x.to(self._dtype) if x.is_floating_point() else x for x in inputs]
        return tuple(y.float() for y in self._network(*cast))


def _activated(y: Tensor, options: Any) -> Tensor:
    return _ACTIVATIONS[options.fused_activation_function](y)


_ACTIVATIONS: dict[ActivationFunctionType, Callable[[Tensor], Tensor]] = {
    ActivationFunctionType.NONE: lambda y: y,
    ActivationFunctionType.RELU: F.relu,
    ActivationFunctionType.RELU6: F.relu6,
    ActivationFunctionType.TANH: torch.tanh,
}


def _pads(n_in: int, size: int, stride: int, dilation: int, padding: Padding) -> tuple[int, int]:
    """Zeros before and after one axis; an odd one comes after it."""
    if padding == Padding.VALID:
        return 0, 0
    reach = (size - 1) * dilation + 1
    total = max((-(-n_in // stride) - 1) * stride + reach - n_in, 0)
    return total // 2, total - total // 2


def _padded(
    x: Tensor, pads: tuple[tuple[int, int], tuple[int, int]], value: float = 0.0
) -> tuple[Tensor, tuple[int, int]]:
    """Pad `x`, [N, C, H, W], by what the operator itself cannot pad."""
    (top, bottom), (left, right) = pads
    if top == bottom and left == right and value == 0.0:
        return x, (top, left)
    return F.pad(x, (left, right, top, bottom), value=value), (0, 0)


def _convolution(o: Any, _inputs: Sequence[TensorSpec | None], *, depthwise: bool = False) -> Step:
    strides, dilations = (o.stride_h, o.stride_w), (o.dilation_h_factor, o.dilation_w_factor)

    def convolution(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        """Filters are [O, H, W, I], or [1, H, W, C*M] where every channel has its own."""
        filters = w.permute(3, 0, 1, 2) if depthwise else w.permute(0, 3, 1, 2)
        height, width = (
            _pads(
                x.shape[axis + 1],
                filters.shape[axis + 2],
                strides[axis],
                dilations[axis],
                o.padding,
            )
            for axis in (0, 1)
        )
        images, padding = _padded(x.permute(0, 3, 1, 2), (height, width))
        groups = images.shape[1] // filters.shape[1]
        y = F.conv2d(
            images, filters, b, strides, padding=padding, dilation=dilations, groups=groups
        )
        return _activated(y.permute(0, 2, 3, 1), o)

    return convolution


def _pool(o: Any, _inputs: Sequence[TensorSpec | None], *, largest: bool) -> Step:
    sizes, strides = (o.filter_height, o.filter_width), (o.stride_h, o.stride_w)

    def pool(x: Tensor) -> Tensor:
        height, width = (
            _pads(x.shape[axis + 1], sizes[axis], strides[axis], 1, o.padding) for axis in (0, 1)
        )
        images, is_padded = x.permute(0, 3, 1, 2), any((*height, *width))
        if largest:
            images, _ = _padded(images, (height, width), -torch.inf)
            y = F.max_pool2d(images, sizes, strides)
        else:
            y = F.avg_pool2d(_padded_fully(images, height, width), sizes, strides)
            if is_padded:  # padding does not count
                inside = _padded_fully(torch.ones_like(images[:1, :1]), height, width)
                y = y / F.avg_pool2d(inside, sizes, strides)
        return _activated(y.permute(0, 2, 3, 1), o)

    return pool


def _padded_fully(x: Tensor, height: tuple[int, int], width: tuple[int, int]) -> Tensor:
    return F.pad(x, (*width, *height)) if any((*height, *width)) else x


def _binary(o: Any, _inputs: Any, *, function: Callable[[Tensor, Tensor], Tensor]) -> Step:
    return lambda a, b: _activated(function(a, b), o)


def _unary(_o: Any, _inputs: Any, *, function: Callable[[Tensor], Tensor]) -> Step:
    return function


def _squared_difference(_o: Any, _inputs: Any) -> Step:
    return lambda a, b: torch.square(a - b)


def _fully_connected(o: Any, _inputs: Any) -> Step:
    def fully_connected(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        rows = x if o.keep_num_dims else x.reshape(-1, w.shape[1])
        return _activated(F.linear(rows, w, b), o)

    return fully_connected


def _softmax(o: Any, _inputs: Any) -> Step:
    return lambda x: torch.softmax(o.beta * x, -1)


def _mean(o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    axes = [int(axis) for axis in np.ravel(_constant(inputs, 1))]
    return lambda x, _axes: torch.mean(x, axes, keepdim=o.keep_dims)


def _batch_matmul(o: Any, _inputs: Any) -> Step:
    def batch_matmul(x: Tensor, y: Tensor) -> Tensor:
        return torch.matmul(x.mT if o.adj_x else x, y.mT if o.adj_y else y)

    return batch_matmul


def _transpose(_o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    order = [int(axis) for axis in _constant(inputs, 1)]
    return lambda x, _order: x.permute(order)


def _gather(o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    table, rows = inputs
    if o.axis != 0 or o.batch_dims or table is None or rows is None or len(table.shape) != 2:
        raise AbsentError("no translation to PyTorch of a GATHER that is not an embedding")
    return lambda table, rows: F.embedding(rows, table)


def _gelu(o: Any, _inputs: Any) -> Step:
    return functools.partial(F.gelu, approximate="tanh" if o.approximate else "none")


def _cast(o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    if o.out_data_type != TensorType.FLOAT32 or inputs[0] is None or inputs[0].dtype.kind == "f":
        raise AbsentError("no translation to PyTorch of a CAST other than from integers to float32")
    return lambda x: x.float()


def _pad(_o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    last_first = _constant(inputs, 1)[::-1]
    pads = [int(n) for n in itertools.chain.from_iterable(last_first)]
    return lambda x, _pads: F.pad(x, pads)


def _reshape(_o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    sizes = [int(n) for n in _constant(inputs, 1)]
    return lambda x, _sizes: x.reshape(sizes)


def _concatenation(o: Any, _inputs: Any) -> Step:
    return lambda *parts: _activated(torch.cat(parts, o.axis), o)


def _resize_bilinear(o: Any, inputs: Sequence[TensorSpec | None]) -> Step:
    if o.align_corners == o.half_pixel_centers:
        raise AbsentError("PyTorch has no RESIZE_BILINEAR from corners that are not aligned")
    sizes = [int(n) for n in _constant(inputs, 1)]

    def resize_bilinear(x: Tensor, _sizes: None) -> Tensor:
        images = x.permute(0, 3, 1, 2)
        y = F.interpolate(images, sizes, mode="bilinear", align_corners=o.align_corners)
        return y.permute(0, 2, 3, 1)

    return resize_bilinear


def _constant(inputs: Sequence[TensorSpec | None], place: int) -> np.ndarray:
    spec = inputs[place]
    if spec is None or spec.const is None:
        raise AbsentError("an input that PyTorch needs before the run is computed")
    return spec.const


_STEPS: dict[str, Callable[[Any, Sequence[TensorSpec | None]], Step]] = {
    "ADD": functools.partial(_binary, function=torch.add),
    "AVERAGE_POOL_2D": functools.partial(_pool, largest=False),
    "BATCH_MATMUL": _batch_matmul,
    "CAST": _cast,
    "CONCATENATION": _concatenation,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": functools.partial(_convolution, depthwise=True),
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gather,
    "GELU": _gelu,
    "HARD_SWISH": functools.partial(_unary, function=F.hardswish),
    "LOGISTIC": functools.partial(_unary, function=torch.sigmoid),
    "MAX_POOL_2D": functools.partial(_pool, largest=True),
    "MEAN": _mean,
    "MUL": functools.partial(_binary, function=torch.mul),
    "PAD": _pad,
    "RELU": functools.partial(_unary, function=F.relu),
    "RELU6": functools.partial(_unary, function=F.relu6),
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize_bilinear,
    "RSQRT": functools.partial(_unary, function=torch.rsqrt),
    "SOFTMAX": _softmax,
    "SQUARED_DIFFERENCE": _squared_difference,
    "SUB": functools.partial(_binary, function=torch.sub),
    "TRANSPOSE": _transpose,
}
