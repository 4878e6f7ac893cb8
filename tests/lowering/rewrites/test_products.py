"""Products of a decode step: what is fused, that it computes the same, and what stays with XLA."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flatbuffers import flexbuffers
from jax.experimental import pallas as pl

from jaxdelegate.compile.precision_policy import policy_here
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.lowering.rewrites.registry import REWRITES
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.matmul import stored_width
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    FullyConnectedOptions,
    FusedProductsOptions,
    Gate,
    GeluOptions,
    ReducerOptions,
    StableHLOCompositeOptions,
)
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.options import DelegateOptions
from jaxdelegate.passes.propagation import declared_specs, propagate
from jaxdelegate.quant.params import Blockwise, Quantization
from tests.support.combinations import covering
from tests.support.quantized import scaled

WIDTH, HIDDEN, EPSILON = 64, 96, 1e-6
INT4, INT8 = np.dtype(ml_dtypes.int4), np.dtype(np.int8)
KEEP, LAST = ReducerOptions(keep_dims=True), np.array([-1], np.int32)
DENSE = FullyConnectedOptions(keep_num_dims=True, asymmetric_quantize_inputs=True)
RELU = ActivationFunctionType.RELU
KINDS = {"int8": (INT8, 0), "int4": (INT4, 0), "int4_blocks": (INT4, 32), "float32": (None, 0)}


def gpu(dtype: str = "float16", **changes: Any) -> LoweringContext:
    policy = policy_here(DelegateOptions(compute_dtype=dtype), "gpu")  # type: ignore[arg-type]
    return LoweringContext("gpu", policy, **{"kernels": KernelSet(triton=True), **changes})


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_width, "MANY", 1)
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


class Layer:
    """Parts of a decoder's layer in a graph, with filters of one kind."""

    def __init__(self, graph: Any, kind: str = "int8") -> None:
        self.graph, (self.dtype, self.block) = graph, KINDS[kind]
        self.random = np.random.default_rng(0)

    def filters(self, columns: int, depth: int) -> int:
        if self.dtype is None:
            values = self.random.normal(size=(columns, depth)) / np.sqrt(depth)
            found: int = self.graph.builder.constant(values.astype(np.float32))
            return found
        most = 7 if self.dtype == INT4 else 127
        w = self.random.integers(-most, most, (columns, depth), endpoint=True).astype(np.int8)
        size = 2 / (most * np.sqrt(depth))
        scales = self.random.uniform(0.5, 1, (columns, depth // (self.block or depth))) * size
        quantization = scaled(scales[:, 0])
        if self.block:
            none = np.zeros(0, np.float32), np.zeros(0, np.int64)
            blocks = Blockwise(-1, -1, self.block, (), scales.astype(np.float16), None)
            quantization = Quantization(*none, blockwise=blocks)
        index: int = self.graph.builder.constant(w.astype(self.dtype), quantization=quantization)
        return index

    def product(self, x: int, columns: int, depth: int = WIDTH, **more: Any) -> int:
        options = dataclasses.replace(DENSE, **more)
        y: int = self.graph("FULLY_CONNECTED", x, self.filters(columns, depth), options=options)
        return y

    def norm(self, x: int) -> int:
        g = self.graph
        square = g("MEAN", g("MUL", x, x), LAST, options=KEEP)
        y: int = g("MUL", g("MUL", x, g("RSQRT", g("ADD", square, EPSILON))), g.values(WIDTH))
        return y

    def swish(self, x: int) -> int:
        y: int = self.graph("MUL", x, self.graph("LOGISTIC", x))
        return y

    def gelu(self, x: int) -> int:
        y: int = self.graph("GELU", x, options=GeluOptions(approximate=True))
        return y

    def logistic(self, x: int) -> int:
        y: int = self.graph("LOGISTIC", x)
        return y


def qkv(layer: Layer, x: int) -> list[int]:
    n = layer.norm(x)
    return [layer.graph("ABS", layer.product(n, columns)) for columns in (WIDTH, 32, 24)]


def gated(layer: Layer, x: int, activation: str = "swish") -> list[int]:
    n = layer.norm(x)
    activated = getattr(layer, activation)(layer.product(n, HIDDEN))
    return [layer.graph("ABS", layer.graph("MUL", activated, layer.product(n, HIDDEN)))]


def down(layer: Layer, x: int) -> list[int]:
    y = layer.product(layer.graph("ABS", x), WIDTH)
    return [layer.graph("ABS", layer.graph("ADD", x, y))]


PARTS: dict[str, Callable[[Layer, int], list[int]]] = {
    "qkv": qkv,
    "swish": gated,
    "gelu": functools.partial(gated, activation="gelu"),
    "logistic": functools.partial(gated, activation="logistic"),
    "residual": down,
}


def partition_of(
    content: bytes, context: LoweringContext, names: Any = tuple(REWRITES)
) -> LoweredPartition:
    subgraph = read_model(content).subgraphs[0]
    specs = dict(enumerate(propagate(subgraph.operators, declared_specs(subgraph))))
    ends = subgraph.inputs, subgraph.outputs
    return lower_partition(subgraph.operators, specs, *ends, context, rewrites=names)


def run(partition: LoweredPartition, *inputs: Any, slots: bool = False) -> list[np.ndarray]:
    """The outputs; with `slots`, of a batch, by `jax.vmap`."""
    weights = {w: jnp.asarray(partition.value(w)) for w in partition.preparations}

    def call(*values: Any) -> Any:
        return partition.call(weights, values)

    with jax.enable_x64(True):
        return [np.asarray(y) for y in jax.jit(jax.vmap(call) if slots else call)(*inputs)]


def fused(partition: LoweredPartition) -> list[Any]:
    operators = [step.operator for step in partition.operators]
    return [op for op in operators if isinstance(op.options, FusedProductsOptions)]


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(*shape, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    ("part", "kind", "dtype"),
    covering(list(PARTS), list(KINDS), ["float16", "bfloat16", "float32"]),
)
def test_equals_separate_operators(part: str, kind: str, dtype: str, graph: Any) -> None:
    """Within the rounding of results between them; float32 within its own."""
    x = graph.input(3, WIDTH)
    content = graph.content(*PARTS[part](Layer(graph, kind), x))
    partition = partition_of(content, gpu(dtype))
    # XLA multiplies filters of floats in float32.
    assert len(fused(partition)) == ((kind, dtype) != ("float32", "float32"))
    got = run(partition, rows(3))
    want = run(partition_of(content, gpu("float32"), ()), rows(3))
    error = 2e-5 if dtype == "float32" else 6 * float(ml_dtypes.finfo(dtype).eps)
    for y, exact in zip(got, want, strict=True):
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, exact, rtol=0, atol=error * np.abs(exact).max())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("slots", [3, 100, 513])
def test_slots_are_rows(part: str, slots: int, graph: Any) -> None:
    """513 are more than the kernel takes: XLA computes the same."""
    content = graph.content(*PARTS[part](Layer(graph), graph.input(1, WIDTH)))
    partition = partition_of(content, gpu("float32"))
    assert len(fused(partition)) == 1
    got = run(partition, rows(slots, 1), slots=True)
    want = run(partition_of(content, gpu("float32"), ()), rows(slots, 1), slots=True)
    for y, exact in zip(got, want, strict=True):
        np.testing.assert_allclose(y, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


def test_a_layer_is_four_operators_besides_its_attention(graph: Any) -> None:
    layer = Layer(graph)
    x = graph("ABS", graph.input(1, WIDTH))
    q, k, v = (layer.product(n, WIDTH) for n in [layer.norm(x)] for _ in range(3))
    x = graph("ADD", x, layer.product(graph("MUL", graph("MUL", q, k), v), WIDTH))
    n = layer.norm(x)
    hidden = graph("MUL", layer.swish(layer.product(n, HIDDEN)), layer.product(n, HIDDEN))
    content = graph.content(graph("ADD", x, layer.product(hidden, WIDTH, HIDDEN)))
    partition = partition_of(content, gpu())
    names = [step.operator.name for step in partition.operators]
    assert names == ["ABS", "fused_products", "MUL", "MUL", *["fused_products"] * 3]
    gates = [op.options.gate for op in fused(partition)]
    assert gates == [Gate.NONE, Gate.NONE, Gate.SWISH, Gate.NONE]
    assert [len(op.outputs) for op in fused(partition)] == [3, 1, 1, 1]
    (y,), (want,) = (run(p, rows(1)) for p in (partition, partition_of(content, gpu(), ())))
    np.testing.assert_allclose(y, want, rtol=0, atol=4e-3 * np.abs(want).max())


def test_filters_are_those_of_separate_operators(graph: Any) -> None:
    """Not one of all copied together: signatures with more rows share the arrays."""
    content = graph.content(*qkv(Layer(graph, "int4_blocks"), graph.input(1, WIDTH)))
    arrays = [
        {(p.value(w).tobytes(), p.value(w).shape) for w in p.preparations if w.layout is not None}
        for p in (partition_of(content, gpu()), partition_of(content, gpu(), ()))
    ]
    assert len(arrays[0]) == 6  # filters and their scales
    assert arrays[0] == arrays[1]


def test_what_leaves_the_program_stays_float32(graph: Any) -> None:
    """Logits of float16 would have ties."""
    layer, x = Layer(graph), graph.input(1, WIDTH)
    partition = partition_of(graph.content(layer.product(layer.norm(x), 40)), gpu())
    assert len(fused(partition)) == 1
    (y,) = run(partition, rows(1))
    assert (y != y.astype(np.float16)).any()


def with_composite(graph: Any, name: str, **attributes: float) -> list[Any]:
    """The fused operators of two products of a composite's result."""
    layer, x = Layer(graph), graph.input(1, WIDTH)
    decomposition = graph.builder.subgraph("decomposition")
    y = decomposition.tensor((1, WIDTH))
    ends = [decomposition.input((1, WIDTH)), decomposition.input((WIDTH,))]
    decomposition.operator("MUL", ends, [y])
    decomposition.outputs(y)
    o = StableHLOCompositeOptions(name, 1, bytes(flexbuffers.Dumps(attributes)))
    n = graph.builder.tensor((1, WIDTH))
    graph.builder.operator("STABLEHLO_COMPOSITE", [x, graph._tensor(graph.values(WIDTH))], [n], o)
    model = read_model(graph.content(*(layer.product(n, 32) for _ in range(2))))
    subgraph = model.subgraphs[0]
    specs = propagate(subgraph.operators, declared_specs(subgraph), model.subgraphs)
    context = Callees(model.subgraphs, gpu()).in_context()
    ends = subgraph.inputs, subgraph.outputs
    found = lower_partition(
        subgraph.operators, dict(enumerate(specs)), *ends, context, rewrites=REWRITES
    )
    (operator,) = fused(found)
    return [operator, x, n]


def test_a_composite_is_a_normalization_by_its_name(graph: Any) -> None:
    operator, x, _ = with_composite(graph, "odml.rms_norm", epsilon=1e-5)
    assert operator.inputs[0] == x
    assert operator.options.epsilon == pytest.approx(1e-5)


def test_other_composites_stay(graph: Any) -> None:
    operator, _, n = with_composite(graph, "odml.other", epsilon=1e-5)
    assert operator.inputs[:2] == (n, -1)


def test_a_normalization_without_epsilon_stays(graph: Any) -> None:
    operator, _, n = with_composite(graph, "odml.rms_norm")
    assert operator.inputs[:2] == (n, -1)


# ---- what stays as it is


def no_norm(layer: Layer, x: int) -> list[int]:
    return [layer.product(x, WIDTH)]


def activated(layer: Layer, x: int) -> list[int]:
    return [layer.product(layer.norm(x), WIDTH, fused_activation_function=RELU)]


def activated_sum(layer: Layer, x: int) -> list[int]:
    relu = AddOptions(RELU)
    return [layer.graph("ADD", x, layer.product(layer.graph("ABS", x), WIDTH), options=relu)]


def product_read_twice(layer: Layer, x: int) -> list[int]:
    y = layer.product(layer.graph("ABS", x), WIDTH)
    return [layer.graph("ADD", x, y), layer.graph("NEG", y)]


def repeated_residual(layer: Layer, x: int) -> list[int]:
    return [layer.graph("ADD", layer.graph.values(WIDTH), layer.product(x, WIDTH))]


def exact_gelu(layer: Layer, x: int) -> list[int]:
    y = layer.graph("GELU", layer.product(x, WIDTH), options=GeluOptions(approximate=False))
    return [layer.graph("MUL", y, layer.product(layer.graph("ABS", x), WIDTH))]


@pytest.mark.parametrize(
    "write", [no_norm, activated, activated_sum, product_read_twice, repeated_residual, exact_gelu]
)
def test_what_does_not_match_stays(write: Any, graph: Any) -> None:
    content = graph.content(*write(Layer(graph), graph.input(2, WIDTH)))
    assert not fused(partition_of(content, gpu()))


def test_a_norm_that_others_read_stays(graph: Any) -> None:
    layer = Layer(graph)
    n = layer.norm(graph.input(2, WIDTH))
    content = graph.content(n, *(layer.product(n, 32) for _ in range(2)))
    partition = partition_of(content, gpu())
    (operator,) = fused(partition)
    assert operator.inputs[1] == -1
    assert "fused_layer_norm" in [step.operator.name for step in partition.operators]


@pytest.mark.parametrize(
    "context",
    [
        gpu(kernels=KernelSet()),
        gpu(quant_mode="integer"),
        LoweringContext(),
        LoweringContext("tpu"),
    ],
    ids=["no kernels", "integers", "cpu", "tpu"],
)
@pytest.mark.parametrize("part", PARTS)
def test_other_devices_keep_them(part: str, context: LoweringContext, graph: Any) -> None:
    content = graph.content(*PARTS[part](Layer(graph), graph.input(2, WIDTH)))
    assert not fused(partition_of(content, context))


@pytest.mark.parametrize("part", PARTS)
def test_many_rows_and_small_filters_stay(
    part: str, graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = graph.content(*PARTS[part](Layer(graph), graph.input(513, WIDTH)))
    assert not fused(partition_of(content, gpu()))
    few = type(graph)()
    content = few.content(*PARTS[part](Layer(few), few.input(512, WIDTH)))
    assert fused(partition_of(content, gpu()))
    monkeypatch.setattr(stored_width, "MANY", 1 << 16)
    assert not fused(partition_of(content, gpu()))
