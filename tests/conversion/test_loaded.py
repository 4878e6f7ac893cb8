"""Models of `load` in functions: their operators are written back, their weights unchanged."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate
from jaxdelegate.errors import ConversionError, TensorError
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


@pytest.mark.litert
def test_weights_that_depend_on_an_input() -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    apply, params = jaxdelegate.load(content).function()
    name = next(n for n, leaf in params.items() if leaf.ndim == 1 and leaf.size > 10)

    def scaled(x: Any, factor: Any) -> Any:
        return apply({**params, name: params[name] * factor}, x)[0]

    factor = np.float32(3)
    written = jaxdelegate.from_jax(scaled, image, factor)
    assert operators(written) == ["MUL", *operators(content)]
    np.testing.assert_allclose(
        run(written, [image, factor])[0], scaled(image, factor), rtol=1e-5, atol=1e-6
    )
    quantized = NETWORKS["int8_mobilenet"]()
    apply, params = jaxdelegate.load(quantized).function(io="float")
    name = next(n for n, leaf in params.items() if leaf.ndim == 4)
    with pytest.raises(ConversionError, match=r"depends on an input.*close over its value"):
        jaxdelegate.from_jax(scaled, image, factor)


def test_changed_shapes() -> None:
    content = NETWORKS["mobilenet"]()
    (image,) = examples(content)
    apply, params = jaxdelegate.load(content).function()
    name = next(n for n, leaf in params.items() if leaf.ndim == 4)
    changed = {**params, name: params[name][..., :1]}
    with pytest.raises(TensorError, match="expected the shape"):
        jaxdelegate.from_jax(lambda x: apply(changed, x)[0], image)


def test_weights_that_the_file_cannot_hold() -> None:
    content = NETWORKS["int8_mobilenet"]()
    (image,) = examples(content)
    apply, params = jaxdelegate.load(content).function()
    name = next(n for n, leaf in params.items() if leaf.ndim == 4)
    changed = {**params, name: params[name] * np.nan}
    with pytest.raises(ConversionError, match=r"cannot hold its new weights.*NaN or infinite"):
        jaxdelegate.from_jax(lambda x: apply(changed, x)[0], image)


TRAINED: dict[str, dict[str, Any]] = {
    "weights": {},
    "fake_quantized": {"weights": "fake_quantized"},
    "learned": {"weights": "fake_quantized", "ranges": "learned"},
}


@pytest.mark.litert
@pytest.mark.parametrize("mode", TRAINED)
def test_trained_and_with_a_new_head(mode: str) -> None:
    """The integers are those of `model.save`, and the head's input is the saved file's output."""
    content = NETWORKS["int8_mobilenet"]()
    model = jaxdelegate.load(content)
    apply, params = model.function(io="float", **TRAINED[mode])
    shape = open_model(content).subgraphs[0].tensors[0].shape
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    trained = {n: leaf * (1.01 if n in model.scales else 0.97) for n, leaf in params.items()}
    head = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    written = jaxdelegate.from_jax(lambda a: jax.nn.softmax(apply(trained, a)[0] @ head), x)
    saved = model.to_bytes(trained)
    assert saved != content
    names = operators(written)
    assert names == ["QUANTIZE", *operators(content), "DEQUANTIZE", "FULLY_CONNECTED", "SOFTMAX"]
    old, new = constants(saved), constants(written)
    assert {name: new[name] for name in old} == old
    (want,) = run(model.to_bytes(trained, io="float32"), [x])
    np.testing.assert_allclose(run(written, [x])[0], jax.nn.softmax(want @ head), rtol=1e-5)


def test_a_quantized_model_that_becomes_float(caplog: pytest.LogCaptureFixture) -> None:
    model = jaxdelegate.load(NETWORKS["int8_mobilenet"]())
    apply, params = model.function(io="float")
    x = np.zeros((1, 32, 32, 3), np.float32)
    written = jaxdelegate.from_jax(lambda a: apply(params, a, state={})[0][0], x)
    assert "QUANTIZE" not in operators(written)
    assert "is written in floats, not by its operators: it is called with a state" in caplog.text


def _dense(quantized: bool = False) -> bytes:
    b = ModelBuilder()
    q = Quantization(np.array([0.5], np.float32), np.zeros(1, np.int64)) if quantized else None
    dtype = np.dtype(np.int8 if quantized else np.float32)
    x, y = b.input((1, 4), dtype, quantization=q), b.tensor((1, 4), dtype, quantization=q)
    b.operator("SQUARE" if q is None else "RELU", [x], [y])
    b.outputs(y)
    return b.build()


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: jax.vmap(lambda x: f(x[None])[0]),
    "grad": lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x * 2,))[1],
    "hessian": lambda f: jax.vmap(jax.hessian(lambda x: f(x[None]).sum())),
}


@pytest.mark.litert
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_model_that_is_transformed(name: str) -> None:
    """In floats it becomes JAX's operators; integers would silently become floats."""
    rows = 1 if name in ("grad", "jvp") else 3
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    model = jaxdelegate.load(_dense())
    function = TRANSFORMED[name](lambda a: model(a)[0])
    written = jaxdelegate.from_jax(function, x)
    np.testing.assert_allclose(run(written, [x])[0], function(x), rtol=1e-5)
    apply, params = jaxdelegate.load(_dense(quantized=True)).function(io="float")
    instead = (
        r"jax\.vmap: call model\.batched" if rows > 1 and name == "vmap" else r"jax\.(grad|vmap)"
    )
    with pytest.raises(ConversionError, match=f"not inside of {instead}"):
        jaxdelegate.from_jax(TRANSFORMED[name](lambda a: apply(params, a)[0]), x)


@pytest.mark.litert
def test_a_batch_of_a_quantized_model() -> None:
    model = jaxdelegate.load(_dense(quantized=True)).batched(3)
    x = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    written = jaxdelegate.from_jax(lambda a: model(a)[0], x)
    assert operators(written) == ["RELU"]
    np.testing.assert_array_equal(run(written, [x])[0], np.maximum(x, 0))


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
