"""Stock LiteRT runs the networks that are built in memory, at any batch, and ours agrees."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.model.records import read_model
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.attention_networks import bert_small
from tests.support.networks import deeplab_v3, mobilenet_v2, resnet50

pytestmark = pytest.mark.litert
REFERENCE = OpResolverType.BUILTIN_REF


def small_mobilenet() -> bytes:
    return mobilenet_v2(size=32, width=0.25, classes=10)


def small_int8_mobilenet() -> bytes:
    return mobilenet_v2(size=32, width=0.25, classes=10, quantized=True)


def small_resnet() -> bytes:
    return resnet50(size=32, width=0.125, classes=10)


def small_deeplab() -> bytes:
    return deeplab_v3(size=33, width=0.25, depth=16, classes=5)


def small_bert() -> bytes:
    return bert_small(length=8, layers=2, hidden=16, heads=2, vocabulary=50)


SMALL = [small_mobilenet, small_int8_mobilenet, small_resnet, small_deeplab, small_bert]


def batch_of_two(content: bytes) -> list[np.ndarray]:
    details = jd.Interpreter(model_content=content).get_input_details()
    return random_inputs([{**d, "shape": np.array([2, *d["shape"][1:]])} for d in details])


@pytest.mark.parametrize("build", SMALL)
def test_it_computes_what_litert_does(build: Callable[[], bytes]) -> None:
    content = build()
    feeds = batch_of_two(content)
    stock = StockInterpreter(model_content=content, experimental_op_resolver_type=REFERENCE)
    want = run_once(stock, feeds)
    delegate = jd.JaxDelegate(quant_mode="integer", require_full_delegation=True)
    got = run_once(jd.Interpreter(model_content=content, experimental_delegates=[delegate]), feeds)
    if want[0].dtype == np.int8:
        np.testing.assert_array_equal(got[0], want[0])
    else:
        assert_close(got, want, tolerance=NETWORK)
    assert not np.array_equal(want[0][0], want[0][1])  # the images are not all the same to it


@pytest.mark.parametrize("build", SMALL)
def test_activations_stay_near_unit_size(build: Callable[[], bytes]) -> None:
    """Through all layers, so that float16 neither overflows nor vanishes."""
    content = build()
    subgraph = read_model(content).subgraphs[0]
    stock = StockInterpreter(
        model_content=content,
        experimental_op_resolver_type=REFERENCE,
        experimental_preserve_all_tensors=True,
    )
    run_once(stock, batch_of_two(content))
    wide = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
    for operator in (op for op in subgraph.operators if op.name in wide):
        index = operator.outputs[0]
        y = stock.get_tensor(index).astype(np.float64)
        quantization = subgraph.tensors[index].quantization
        if quantization is not None:
            y = (y - quantization.zero_point) * quantization.scale
        assert 0.05 < np.sqrt(np.mean(y**2)) < 10, f"#{operator.index} {operator.name}"


def test_strides_past_the_feature_grid_become_dilations() -> None:
    """MobileNet v2 under DeepLab: 1/16 of the image, and its last stage sees as far as before."""
    operators = read_model(small_deeplab()).subgraphs[0].operators
    depthwise: list[Any] = [op.options for op in operators if op.name == "DEPTHWISE_CONV_2D"]
    assert np.prod([o.stride_h for o in depthwise]) == 8  # the first convolution has two
    assert [o.dilation_h_factor for o in depthwise[-7:]] == [1, 2, 2, 2, 6, 12, 18]
