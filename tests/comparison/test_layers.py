"""Finds which layer is wrong, as opposed to layers that get wrong inputs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.inputs import InputSettings
from jaxdelegate.comparison.layers import LayerReport, layer_errors
from jaxdelegate.comparison.sides import REFERENCES, Reference, Test, delegated
from jaxdelegate.op_lowering.options import AddOptions, CastOptions, CustomOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.reference import KERNELS
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.testing import ModelBuilder
from tests.support.quantized import scaled

DEEPLAB = Path(__file__).parents[3] / "shared/models/networks/image_segmenter__deeplabv3.tflite"


def report(model: Any, reference: str = "numpy", runs: int = 1, **bounds: Any) -> LayerReport:
    test = delegated(model, [jd.JaxDelegate(min_gain=0, quant_mode="float_view")])
    return layer_errors(test, Reference(reference, model), runs, InputSettings(), Bounds(**bounds))


@pytest.mark.parametrize("reference", list(REFERENCES))
def test_a_correct_delegate(network: bytes, reference: str) -> None:
    found = report(network, reference)
    assert len(found.layers) == 5
    assert found.skipped == 0
    assert found.first_divergence() is None
    assert found.conclusion() == "No layer is out of bounds."
    assert all(layer.local is not None and layer.delegated for layer in found.layers)
    assert 0 < max(layer.own.max_abs or 0 for layer in found.layers) < 1e-4


@pytest.mark.parametrize(
    ("operator", "tensor", "node"),
    [
        ("DEPTHWISE_CONV_2D", "depthwise_2", 1),
        pytest.param("CONV_2D", "conv_3", 2, marks=pytest.mark.slow),
        pytest.param("AVERAGE_POOL_2D", "pool", 3, marks=pytest.mark.slow),
        ("SOFTMAX", "probabilities", 4),
    ],
)
def test_a_broken_lowering_is_named(
    network: bytes, break_rule: Any, operator: str, tensor: str, node: int
) -> None:
    break_rule(operator, lambda y: y * 1.01, tensor)
    found = report(network)
    divergence = found.first_divergence()
    assert divergence is not None
    assert (divergence.kind, divergence.layer.node) == ("operator", node)
    assert str(divergence).startswith(
        f"First divergence: #{node} {operator} {tensor!r}: wrong on the reference's inputs"
    )
    # The error propagates; only its origin is reported.
    assert [layer.node for layer in found.wrong_operators()] == [node]
    assert found.ranked()[0].node == node
    assert [layer.tensor.agrees for layer in found.layers[:node]] == [True] * node
    assert not found.layers[node].tensor.agrees
    assert not found.layers[-1].tensor.agrees
    assert found.layers[node].own.relative_to_largest == pytest.approx(0.01, rel=1e-3)


@pytest.mark.slow
def test_mobilenet_v1_with_a_broken_layer(mobilenet: bytes, break_rule: Any) -> None:
    break_rule("DEPTHWISE_CONV_2D", lambda y: y * 1.01, "depthwise_14")
    found = report(mobilenet, "litert_ref")
    assert len(found.layers) == 31
    assert [layer.node for layer in found.wrong_operators()] == [13]
    assert found.ranked()[0].label == "#13 DEPTHWISE_CONV_2D 'depthwise_14'"
    assert not found.layers[13].tensor.agrees


def test_a_later_and_larger_error_does_not_hide_the_first(network: bytes, break_rule: Any) -> None:
    break_rule("DEPTHWISE_CONV_2D", lambda y: y * 1.001, "depthwise_2")
    break_rule("AVERAGE_POOL_2D", lambda y: y + 1.0)
    found = report(network)
    divergence = found.first_divergence()
    assert divergence is not None
    assert divergence.layer.tensor.name == "depthwise_2"
    assert [layer.operator for layer in found.ranked()[:2]] == [
        "AVERAGE_POOL_2D",
        "DEPTHWISE_CONV_2D",
    ]


def test_errors_that_only_the_whole_program_has(
    network: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, seen = RULES["AVERAGE_POOL_2D"], []

    def lower(*arguments: Any) -> Any:
        right = rule.lower(*arguments)
        seen.append(1)
        return right if len(seen) > 1 else lambda *arrays: tuple(2 * y for y in right(*arrays))

    monkeypatch.setitem(RULES, "AVERAGE_POOL_2D", dataclasses.replace(rule, lower=lower))
    divergence = report(network).first_divergence()
    assert divergence is not None
    assert (divergence.kind, divergence.layer.node) == ("program", 3)
    assert "its inputs agree, its output does not" in str(divergence)
    assert str(divergence).endswith("alone, on the reference's inputs, it agrees")


def chain(shape: tuple[int, ...] = (2, 3)) -> bytes:
    """ADD, a custom operator that stays on the host, RELU."""
    builder = ModelBuilder()
    x = builder.input(shape, np.float32, "x")
    a, b, c = (builder.tensor(shape, name=name) for name in "abc")
    builder.operator("ADD", [x, x], [a], AddOptions())
    builder.operator("HostOnly", [a], [b], CustomOptions())
    builder.operator("RELU", [b], [c])
    builder.outputs(c)
    return builder.build()


def test_operators_on_the_host_are_distinguished(
    monkeypatch: pytest.MonkeyPatch, break_rule: Any
) -> None:
    def triple(_o: Any, _i: Any, _s: Any, x: np.ndarray) -> tuple[np.ndarray]:
        return (3 * x,)

    monkeypatch.setitem(KERNELS, "HostOnly", Kernel(triple, same_shape))
    break_rule("ADD", lambda y: y + 1)
    found = report(chain())
    assert [layer.delegated for layer in found.layers] == [True, False, True]
    assert [layer.local is None for layer in found.layers] == [False, True, False]
    assert [layer.own.max_abs for layer in found.layers] == pytest.approx([1.0, 3.0, 0.0])
    assert [layer.inputs_agree for layer in found.layers] == [True, False, False]


def quantized_chain() -> bytes:
    """int8: y = x + x, z = relu(y)."""
    q = scaled(0.05, -3)
    builder = ModelBuilder()
    x = builder.input((1, 64), np.int8, "x", quantization=q)
    y = builder.tensor((1, 64), np.int8, "y", quantization=q)
    z = builder.tensor((1, 64), np.int8, "z", quantization=q)
    builder.operator("ADD", [x, x], [y], AddOptions(), version=2)
    builder.operator("RELU", [y], [z], version=2)
    builder.outputs(z)
    return builder.build()


@pytest.mark.parametrize("reference", ["numpy", "litert_ref"])
def test_quantized_layers(break_rule: Any, reference: str) -> None:
    assert report(quantized_chain(), reference).first_divergence() is None
    break_rule("RELU", lambda y: y + np.float32(0.15))  # three steps
    found = report(quantized_chain(), reference)
    assert [layer.operator for layer in found.wrong_operators()] == ["RELU"]
    histogram = found.wrong_operators()[0].own.lsb_histogram
    assert histogram is not None
    assert max(histogram, key=lambda lsb: histogram[lsb]) == 3


def test_shapes_that_depend_on_data() -> None:
    builder = ModelBuilder()
    x = builder.input((40,), np.bool_, "x")
    where = builder.tensor((0, 1), np.int64, "where", shape_signature=(-1, 1))
    y = builder.tensor((0, 1), np.float32, "y", shape_signature=(-1, 1))
    z = builder.tensor((0, 1), np.float32, "z", shape_signature=(-1, 1))
    builder.operator("WHERE", [x], [where])
    builder.operator("CAST", [where], [y], CastOptions())
    builder.operator("RELU", [y], [z])
    builder.outputs(z)
    found = report(builder.build(), runs=2)
    assert [layer.tensor.agrees for layer in found.layers] == [True, True, True]
    assert found.layers[0].tensor.shape[0] > 0


def test_a_delegate_that_cannot_be_restricted(network: bytes) -> None:
    from ai_edge_litert.interpreter import Interpreter

    def opened(_delegates: Any, *, preserve_all_tensors: bool = False) -> Any:
        return Interpreter(
            model_content=network, experimental_preserve_all_tensors=preserve_all_tensors
        )

    found = layer_errors(Test(opened), Reference("numpy", network), 1, InputSettings(), Bounds())
    assert [layer.local for layer in found.layers] == [None] * 5
    assert [layer.delegated for layer in found.layers] == [None] * 5
    assert found.first_divergence() is None


def test_jaxdelegate_in_the_stock_interpreter(network: bytes, break_rule: Any) -> None:
    from ai_edge_litert.interpreter import Interpreter

    def opened(delegates: Any, *, preserve_all_tensors: bool = False) -> Any:
        return Interpreter(
            model_content=network,
            experimental_delegates=delegates,
            experimental_preserve_all_tensors=preserve_all_tensors,
        )

    break_rule("AVERAGE_POOL_2D", lambda y: y * 1.01)
    test = Test(opened, [jd.JaxDelegate()])
    found = layer_errors(test, Reference("litert_ref", network), 1, InputSettings(), Bounds())
    assert [layer.node for layer in found.wrong_operators()] == [3]


@pytest.mark.slow
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
def test_a_real_network(break_rule: Any) -> None:
    assert report(DEEPLAB).first_divergence() is None
    break_rule("CONV_2D", lambda y: y * 1.001, "aspp0/Relu")
    found = report(DEEPLAB)
    assert [layer.tensor.name for layer in found.wrong_operators()] == ["aspp0/Relu"]
