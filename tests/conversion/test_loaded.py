"""Models of `load` in functions: their operators are written back, their weights unchanged."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate
from jaxdelegate.errors import ConversionError
from jaxdelegate.model.open_models import open_model
from jaxdelegate.op_lowering.options import IfOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.testing.running import random_inputs
from tests.support.attention_networks import bert_small
from tests.support.networks import deeplab_v3, mobilenet_v2, resnet50

NETWORKS: dict[str, Callable[[], bytes]] = {
    "mobilenet": lambda: mobilenet_v2(size=32, width=0.25, classes=10),
    "int8_mobilenet": lambda: mobilenet_v2(size=32, width=0.25, classes=10, quantized=True),
    "resnet": lambda: resnet50(size=32, width=0.125, classes=10),
    "deeplab": lambda: deeplab_v3(size=33, width=0.25, depth=16, classes=5),
    "bert": lambda: bert_small(length=8, layers=2, hidden=16, heads=2, vocabulary=50),
}


def run(content: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    stock = StockInterpreter(model_content=content)
    stock.allocate_tensors()
    for detail, value in zip(stock.get_input_details(), inputs, strict=True):
        stock.set_tensor(detail["index"], value)
    stock.invoke()
    return [stock.get_tensor(d["index"]) for d in stock.get_output_details()]


def examples(content: bytes) -> list[np.ndarray]:
    return random_inputs(jaxdelegate.Interpreter(model_content=content).get_input_details())


def operators(content: bytes) -> list[str]:
    return [op.name for op in open_model(content).subgraphs[0].operators]


def ends(content: bytes) -> list[Any]:
    """The quantization of the only input and of the only output."""
    main = open_model(content).subgraphs[0]
    return [main.tensors[i].quantization for i in (*main.inputs, *main.outputs)]


def constants(content: bytes) -> dict[str, bytes]:
    tensors = open_model(content).subgraphs[0].tensors
    return {t.name: t.stored.tobytes() for t in tensors if t.stored is not None}


@pytest.mark.litert
@pytest.mark.parametrize("name", NETWORKS)
def test_round_trip(name: str) -> None:
    content = NETWORKS[name]()
    inputs = examples(content)
    written = jaxdelegate.from_jax(jaxdelegate.load(content), *inputs)
    assert operators(written) == operators(content)
    for got, want in zip(run(written, inputs), run(content, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.litert
def test_a_new_head_of_a_quantized_model() -> None:
    content = NETWORKS["int8_mobilenet"]()
    (image,) = examples(content)
    q = ends(content)[1]
    head = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)

    def classify(x: Any) -> Any:
        (y,) = jaxdelegate.load(content)(x)
        real = (y.astype(jnp.float32) - float(q.zero_point[0])) * float(q.scale[0])
        return y, jax.nn.softmax(real @ head)

    written = jaxdelegate.from_jax(classify, image)
    assert operators(written)[: len(operators(content))] == operators(content)
    old, new = constants(content), constants(written)
    assert {name: new[name] for name in old} == old
    integers, probabilities = run(written, [image])
    (want,) = run(content, [image])
    np.testing.assert_array_equal(integers, want)
    real = (want.astype(np.float32) - q.zero_point[0]) * q.scale[0]
    np.testing.assert_allclose(probabilities, jax.nn.softmax(real @ head), rtol=1e-5, atol=1e-6)


@pytest.mark.litert
def test_floats_around_a_quantized_model() -> None:
    content = NETWORKS["int8_mobilenet"]()
    apply, params = jaxdelegate.load(content).function(io="float")
    shape = open_model(content).subgraphs[0].tensors[0].shape
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    written = jaxdelegate.from_jax(lambda a: apply(params, a)[0], x)
    names = operators(written)
    assert (names[0], names[-1]) == ("QUANTIZE", "DEQUANTIZE")
    assert names[1:-1] == operators(content)
    q, out = ends(content)
    steps = np.clip(np.round(x / q.scale[0]) + q.zero_point[0], -128, 127).astype(np.int8)
    (got,), (want,) = run(written, [x]), run(content, [steps])
    real = (want.astype(np.float32) - out.zero_point[0]) * out.scale[0]
    np.testing.assert_allclose(got, real, atol=1e-6)


@pytest.mark.litert
def test_changed_weights() -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    model = jaxdelegate.load(content)
    apply, params = model.function()
    name = next(n for n, leaf in params.items() if leaf.ndim == 4)
    changed = {**params, name: params[name] * 2}
    written = jaxdelegate.from_jax(lambda x: apply(changed, x)[0], image)
    assert operators(written) == operators(content)
    np.testing.assert_array_equal(jaxdelegate.load(written).params[name], changed[name])
    given = jaxdelegate.from_jax(lambda p, x: apply(p, x)[0], image, params=params)
    assert constants(given) == constants(content)


def test_changed_shapes() -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    apply, params = jaxdelegate.load(content).function()
    name = next(n for n, leaf in params.items() if leaf.ndim == 4)
    changed = {**params, name: params[name][..., :1]}
    with pytest.raises(ConversionError, match="change its values only"):
        jaxdelegate.from_jax(lambda x: apply(changed, x)[0], image)


def test_changed_weights_of_a_quantized_model() -> None:
    content = NETWORKS["int8_mobilenet"]()
    (image,) = examples(content)
    apply, params = jaxdelegate.load(content).function()
    name = next(n for n, leaf in params.items() if leaf.ndim == 4)
    changed = {**params, name: params[name] * 2}
    with pytest.raises(ConversionError, match=r"in another type.*model\.save\(path, params\)"):
        jaxdelegate.from_jax(lambda x: apply(changed, x)[0], image)


@pytest.mark.parametrize("transformed", [jax.vmap, jax.grad])
def test_a_model_that_is_transformed(transformed: Any) -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    model = jaxdelegate.load(content)
    function = transformed(lambda x: model(x)[0].sum())
    with pytest.raises(ConversionError, match=r"call it outside of jax\.grad and jax\.vmap"):
        jaxdelegate.from_jax(function, image[None] if transformed is jax.vmap else image)


@pytest.mark.litert
def test_two_scales_of_one_input() -> None:
    content = NETWORKS["int8_mobilenet"]()
    apply, params = jaxdelegate.load(content).function(io="float")
    other, leaves = jaxdelegate.load(_quantized_identity(0.5)).function(io="float")
    shape = open_model(content).subgraphs[0].tensors[0].shape
    x = np.full(shape, 0.3, np.float32)

    def both(a: Any) -> Any:
        return apply(params, a)[0], other(leaves, a)[0]

    written = jaxdelegate.from_jax(both, x)
    assert operators(written).count("QUANTIZE") == 2
    np.testing.assert_array_equal(run(written, [x])[1], np.full(shape, 0.5, np.float32))


def _quantized_identity(scale: float) -> bytes:
    b = ModelBuilder()
    q = Quantization(np.array([scale], np.float32), np.zeros(1, np.int64))
    x = b.input((1, 32, 32, 3), np.int8, quantization=q)
    y = b.tensor((1, 32, 32, 3), np.int8, quantization=q)
    b.operator("RELU", [x], [y])
    b.outputs(y)
    return b.build()


@pytest.mark.litert
def test_two_models_in_one() -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    model, other = jaxdelegate.load(content), jaxdelegate.load(NETWORKS["resnet"]())
    written = jaxdelegate.from_jax(lambda x: (model(x)[0] + other(x)[0]) / 2, image)
    both = operators(content) + operators(NETWORKS["resnet"]())
    assert operators(written) == [*both, "ADD", "DIV"]
    want = (run(content, [image])[0] + run(NETWORKS["resnet"](), [image])[0]) / 2
    np.testing.assert_allclose(run(written, [image])[0], want, rtol=1e-5, atol=1e-6)


def _with_branches() -> bytes:
    b = ModelBuilder()
    for name, op in (("then", "NEG"), ("else", "ABS")):
        s = b.subgraph(name)
        x, y = s.input((2,)), s.tensor((2,))
        s.operator(op, [x], [y])
        s.outputs(y)
    which, x = b.input((), np.bool_), b.input((2,))
    y = b.tensor((2,))
    b.operator("IF", [which, x], [y], IfOptions(1, 2))
    b.outputs(y)
    return b.build()


@pytest.mark.litert
def test_subgraphs_that_operators_call() -> None:
    content = _with_branches()
    inputs = [np.array(True), np.array([1, -2], np.float32)]
    written = jaxdelegate.from_jax(jaxdelegate.load(content), *inputs)
    assert [len(s.operators) for s in open_model(written).subgraphs] == [1, 1, 1]
    np.testing.assert_array_equal(run(written, inputs)[0], -inputs[1])


@pytest.mark.litert
def test_a_variable_keeps_its_value() -> None:
    b = ModelBuilder()
    x, state, y = b.input((2,)), b.tensor((2,), is_variable=True), b.tensor((2,))
    b.operator("ADD", [x, state], [y])
    b.outputs(y)
    content = b.build()
    x_ = np.array([1, 2], np.float32)
    written = jaxdelegate.from_jax(jaxdelegate.load(content), x_)
    variables = [t for t in open_model(written).subgraphs[0].tensors if t.is_variable]
    assert len(variables) == 1
    np.testing.assert_array_equal(run(written, [x_])[0], x_)


def test_a_call_outside_is_not_changed() -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    model = jaxdelegate.load(content)
    before = model(image)[0]
    jaxdelegate.from_jax(model, image)
    np.testing.assert_array_equal(jax.jit(model)(image)[0].shape, before.shape)
    np.testing.assert_allclose(jax.jit(model)(image)[0], before, rtol=1e-5, atol=1e-6)
