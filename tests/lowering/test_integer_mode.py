"""Integer mode applies to quantized operators: all others are lowered as by default."""

from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.rewrites.registry import REWRITES
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    ReducerOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes import propagation
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from jaxdelegate.xla import aot

RNG = np.random.default_rng(0)
SAME = Padding.SAME
INTEGER = LoweringContext(quant_mode="integer")


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def mean(builder: ModelBuilder, x: int, *shape: int) -> int:
    y, axes = builder.tensor(shape), builder.constant(np.array([-1], np.int32))
    builder.operator("MEAN", [x, axes], [y], ReducerOptions(keep_dims=True))
    return y


def normalized(builder: ModelBuilder, x: int, *shape: int) -> int:
    """A normalization that `fuse_layer_norm` matches."""
    rows = (*shape[:-1], 1)
    epsilon = builder.constant(np.float32(1e-3))
    centered, squares, variance, root, y = (
        builder.tensor(s) for s in (shape, shape, rows, rows, shape)
    )
    builder.operator("SUB", [x, mean(builder, x, *rows)], [centered])
    builder.operator("MUL", [centered, centered], [squares])
    builder.operator("ADD", [mean(builder, squares, *rows), epsilon], [variance])
    builder.operator("RSQRT", [variance], [root])
    builder.operator("MUL", [centered, root], [y])
    return y


def float_network() -> bytes:
    """Operators that sum in their kernels' order if a quantized one follows."""
    builder = ModelBuilder()
    x, w = builder.input((1, 12, 12, 3)), builder.constant(values(16, 3, 3, 3))
    y, z = builder.tensor((1, 6, 6, 16)), builder.tensor((1, 6, 6, 16))
    builder.operator(
        "CONV_2D", [x, w, builder.constant(values(16))], [y], Conv2DOptions(SAME, 2, 2)
    )
    each = builder.constant(values(1, 3, 3, 16))
    builder.operator("DEPTHWISE_CONV_2D", [y, each], [z], DepthwiseConv2DOptions(SAME, 1, 1, 1))
    builder.outputs(normalized(builder, z, 1, 6, 6, 16))
    return builder.build()


def mixed_network() -> bytes:
    """A normalization, a dynamic range matrix product, a normalization."""
    builder = ModelBuilder()
    before = normalized(builder, builder.input((4, 32)), 4, 32)
    scale = Quantization(np.array([0.01], np.float32), np.zeros(1, np.int64))
    w = builder.constant(RNG.integers(-127, 127, (32, 32)).astype(np.int8), quantization=scale)
    y = builder.tensor((4, 32))
    builder.operator("FULLY_CONNECTED", [before, w], [y], FullyConnectedOptions())
    builder.outputs(normalized(builder, y, 4, 32))
    return builder.build()


def lowered(content: bytes, context: LoweringContext) -> LoweredPartition:
    subgraph = jd.load(content).graph.subgraphs[0]
    specs = dict(enumerate(propagation.subgraph_specs(subgraph, None, [])))
    return lowering.lower_partition(
        subgraph.operators, specs, subgraph.inputs, subgraph.outputs, context, rewrites=REWRITES
    )


@pytest.mark.parametrize("native_kernels", [False, None])
def test_a_float_network_has_the_same_program_and_gives_the_same_bits(
    native_kernels: bool | None,
) -> None:
    content, x = float_network(), values(1, 12, 12, 3)
    found = []
    for mode in ("float_view", "integer"):
        delegate = jd.JaxDelegate(quant_mode=mode, native_kernels=native_kernels)
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        result = run_once(interpreter, [x])
        (partition,) = delegate.partitions()
        executable: Any = partition.program.executable
        found.append((executable.as_text(), result[0].tobytes()))
    assert found[0] == found[1]


def test_what_xla_is_told_depends_on_products_of_integers() -> None:
    for content, has_integers in ((float_network(), False), (mixed_network(), True)):
        for context in (INTEGER, LoweringContext()):
            partition = lowered(content, context)
            assert partition.has_integer_products == (has_integers and context is INTEGER)
    jaxpr = jax.make_jaxpr(jax.numpy.sin)(values(4)).jaxpr
    integer, default = (lowered(float_network(), c) for c in (INTEGER, LoweringContext()))
    assert aot._options(integer, "cpu", jaxpr) == aot._options(default, "cpu", jaxpr)


def test_behind_the_last_quantized_operator_floats_are_lowered_as_by_default() -> None:
    integer, default = (lowered(mixed_network(), c) for c in (INTEGER, LoweringContext()))
    assert [step.operator.name for step in default.operators] == [
        *("fused_layer_norm", "FULLY_CONNECTED", "fused_layer_norm")
    ]
    assert [step.operator.name for step in integer.operators] == [
        *("MEAN", "SUB", "MUL", "MEAN", "ADD", "RSQRT", "MUL"),
        *("FULLY_CONNECTED", "fused_layer_norm"),
    ]
    last = [jax.make_jaxpr(p.operators[-1].run)(values(4, 32)) for p in (integer, default)]
    assert str(last[0]) == str(last[1])
