"""Each rewrite: the operators left of a small graph, equal results, and graphs that stay as is."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.lowering.rewrites.registry import REWRITES, enabled
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    DivOptions,
    FullyConnectedOptions,
    MulOptions,
    Padding,
    SubOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes.propagation import declared_specs, propagate
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.case import Call, run_together
from jaxdelegate.testing.running import run_once

RELU6 = ActivationFunctionType.RELU6
VALID = Padding.VALID


class Net:
    """A chain of operators on an input [2, 8, 9, 3] of random values."""

    def __init__(self, *shape: int) -> None:
        self.builder = ModelBuilder()
        self.random = np.random.default_rng(0)
        self.last = self.builder.input(shape or (2, 8, 9, 3))
        self.outputs: list[int] = []

    def add(self, name: str, *others: Any, options: Any = None, first: bool = True) -> int:
        constants = [
            o if isinstance(o, int) else self.builder.constant(np.asarray(o)) for o in others
        ]
        inputs = [self.last, *constants] if first else [*constants, self.last]
        self.last = self.builder.tensor((1,))
        self.builder.operator(name, inputs, [self.last], *([options] if options else []))
        return self.last

    def values(self, *shape: int) -> np.ndarray:
        return self.random.uniform(0.5, 1.5, shape).astype(np.float32)

    def content(self, *more: int) -> bytes:
        self.builder.outputs(self.last, *more)
        return self.builder.build()


Lowered = tuple[list[str], list[np.ndarray]]


def lowered(content: bytes, *choices: Collection[str]) -> list[Lowered]:
    """For each choice of rewrites: the lowered operators' names, and outputs of a seeded input."""
    subgraph = read_model(content).subgraphs[0]
    specs = dict(enumerate(propagate(subgraph.operators, declared_specs(subgraph))))
    ends = subgraph.inputs, subgraph.outputs
    names, calls = [], []
    for rewrites in choices:
        partition = lower_partition(
            subgraph.operators, specs, *ends, LoweringContext(), rewrites=rewrites
        )
        names.append([step.operator.name for step in partition.operators])
        calls.append(call(partition))
    return list(zip(names, run_together(calls), strict=True))


def call(partition: LoweredPartition) -> Call:
    random = np.random.default_rng(1)
    shapes = [partition.specs[i].shape for i in partition.inputs]
    inputs = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    weights = {w: partition.value(w) for w in partition.preparations}
    return lambda *arrays: partition.call(weights, arrays), inputs


def check(net: Net, rewrite: str, left: Sequence[str], *more: int) -> None:
    results = lowered(net.content(*more), (), [rewrite], REWRITES)
    (before, want), (after, got), (everything, got_all) = results
    assert after == list(left)
    assert len(before) >= len(after) >= len(everything)
    assert_close(got, want, accumulated=64)
    assert_close(got_all, want, accumulated=64)


def conv(net: Net, activation: Any = ActivationFunctionType.NONE, *, bias: bool = True) -> int:
    o = Conv2DOptions(VALID, 1, 1, activation)
    return net.add("CONV_2D", net.values(4, 3, 3, 3), *([net.values(4)] if bias else []), options=o)


# ---- scales and biases


@pytest.mark.parametrize(
    ("name", "options", "shape", "bias"),
    [
        ("MUL", MulOptions(RELU6), (4,), True),
        ("MUL", MulOptions(RELU6), (), False),
        ("ADD", AddOptions(RELU6), (1, 1, 1, 4), True),
        ("ADD", AddOptions(RELU6), (1,), False),
        ("SUB", SubOptions(), (), True),
        ("SUB", SubOptions(), (4,), False),
        ("DIV", DivOptions(), (1,), True),
        ("DIV", DivOptions(), (1, 1, 1, 4), False),
    ],
)
def test_a_constant_for_each_channel_joins_a_convolution(
    name: str, options: Any, shape: tuple[int, ...], bias: bool
) -> None:
    net = Net()
    conv(net, bias=bias)
    net.add(name, net.values(*shape), options=options)
    check(net, "scale_convolution", ["CONV_2D"])


def depthwise(net: Net) -> None:
    o = DepthwiseConv2DOptions(VALID, 2, 1, 2)
    net.add("DEPTHWISE_CONV_2D", net.values(1, 3, 2, 6), net.values(6), options=o)


def transposed(net: Net) -> None:
    x = net.last
    shape = net.builder.constant(np.array([2, 10, 11, 6], np.int32))
    w = net.builder.constant(net.values(6, 3, 3, 3))
    net.last = net.builder.tensor((1,))
    net.builder.operator(
        "TRANSPOSE_CONV", [shape, w, x], [net.last], TransposeConvOptions(VALID, 1, 1)
    )


def dense(net: Net) -> None:
    net.add("FULLY_CONNECTED", net.values(6, 216), net.values(6), options=FullyConnectedOptions())


@pytest.mark.parametrize("product", [depthwise, transposed, dense])
def test_other_products_take_it_too(product: Callable[[Net], None]) -> None:
    net = Net()
    product(net)
    net.add("MUL", net.values(6), options=MulOptions())
    net.add("ADD", net.values(6), options=AddOptions(RELU6), first=False)
    name = {"depthwise": "DEPTHWISE_CONV_2D", "transposed": "TRANSPOSE_CONV"}
    check(net, "scale_convolution", [name.get(product.__name__, "FULLY_CONNECTED")])


def test_a_constant_minuend_stays() -> None:
    net = Net()
    conv(net)
    net.add("SUB", net.values(4), options=SubOptions(), first=False)
    check(net, "scale_convolution", ["CONV_2D", "SUB"])


@pytest.mark.parametrize("shape", [(6, 7, 4), (7, 1), (2, 1, 1, 4)], ids=str)
def test_a_constant_for_each_place_stays(shape: tuple[int, ...]) -> None:
    net = Net()
    conv(net)
    net.add("MUL", net.values(*shape), options=MulOptions())
    check(net, "scale_convolution", ["CONV_2D", "MUL"])


def test_behind_an_activation_it_stays() -> None:
    net = Net()
    conv(net, RELU6)
    net.add("MUL", net.values(4), options=MulOptions())
    check(net, "scale_convolution", ["CONV_2D", "MUL"])


def test_what_others_read_stays() -> None:
    net = Net()
    y = conv(net)
    net.add("MUL", net.values(4), options=MulOptions())
    check(net, "scale_convolution", ["CONV_2D", "MUL"], y)


def test_a_division_by_zero_stays() -> None:
    net = Net()
    conv(net)
    net.add("DIV", np.array([1, 0, 2, 3], np.float32), options=DivOptions())
    content = net.content()
    assert lowered(content, ["scale_convolution"])[0][0] == ["CONV_2D", "DIV"]


# ---- padding


def pads(top: int, bottom: int, left: int, right: int, *, channels: int = 0) -> np.ndarray:
    return np.array([[0, 0], [top, bottom], [left, right], [0, channels]], np.int32)


@pytest.mark.parametrize(
    ("name", "stride", "amounts"),
    [("PAD", 1, (1, 1, 1, 1)), ("PADV2", 2, (0, 1, 0, 1)), ("PAD", 2, (3, 0, 0, 2))],
)
def test_padding_joins_a_convolution(name: str, stride: int, amounts: Any) -> None:
    net = Net()
    net.add(name, pads(*amounts), *([np.float32(0)] if name == "PADV2" else []))
    o = Conv2DOptions(VALID, stride, stride)
    net.add("CONV_2D", net.values(4, 3, 3, 3), net.values(4), options=o)
    check(net, "pad_convolution", ["CONV_2D"])


def test_padding_joins_a_depthwise_convolution() -> None:
    net = Net()
    net.add("PAD", pads(1, 2, 0, 1))
    depthwise(net)
    check(net, "pad_convolution", ["DEPTHWISE_CONV_2D"])


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("PADV2", [pads(1, 1, 1, 1), np.float32(2)]),
        ("PAD", [np.array([[0, 1], [1, 1], [1, 1], [0, 0]], np.int32)]),
        ("MIRROR_PAD", [pads(1, 1, 1, 1)]),
    ],
    ids=["value", "batch", "mirror"],
)
def test_other_padding_stays(name: str, others: list[Any]) -> None:
    net = Net()
    net.add(name, *others)
    conv(net)
    check(net, "pad_convolution", [name, "CONV_2D"])


def test_padding_before_a_same_convolution_stays() -> None:
    net = Net()
    net.add("PAD", pads(1, 1, 1, 1))
    net.add("CONV_2D", net.values(4, 3, 3, 3), options=Conv2DOptions(Padding.SAME, 1, 1))
    check(net, "pad_convolution", ["PAD", "CONV_2D"])


# ---- dilation


def spread(net: Net, block: tuple[int, int], pad: Any, crop: Any, stride: int = 1) -> None:
    net.add("SPACE_TO_BATCH_ND", np.array(block, np.int32), np.array(pad, np.int32))
    o = Conv2DOptions(VALID, stride, stride)
    net.add("CONV_2D", net.values(4, 3, 3, 3), net.values(4), options=o)
    net.add("BATCH_TO_SPACE_ND", np.array(block, np.int32), np.array(crop, np.int32))


@pytest.mark.parametrize(
    ("block", "pad", "crop"),
    [
        ((2, 3), [[0, 0], [0, 0]], [[0, 0], [0, 0]]),
        ((2, 3), [[2, 2], [3, 3]], [[0, 0], [0, 0]]),
        ((2, 2), [[2, 2], [2, 3]], [[0, 0], [0, 1]]),
        ((4, 3), [[4, 4], [3, 3]], [[0, 0], [0, 0]]),
    ],
    ids=str,
)
def test_a_convolution_between_batches_is_dilated(block: Any, pad: Any, crop: Any) -> None:
    net = Net(2, 8, 9, 3)
    spread(net, block, pad, crop)
    check(net, "dilate_convolution", ["CONV_2D"])


def test_crops_at_the_top_and_strides_stay() -> None:
    net = Net(2, 8, 8, 3)
    spread(net, (2, 2), [[2, 2], [2, 2]], [[1, 0], [0, 0]])
    names = ["SPACE_TO_BATCH_ND", "CONV_2D", "BATCH_TO_SPACE_ND"]
    check(net, "dilate_convolution", names)
    net = Net(2, 8, 8, 3)
    spread(net, (2, 2), [[2, 2], [2, 2]], [[0, 0], [0, 0]], stride=2)
    check(net, "dilate_convolution", names)


# ---- no-ops


def test_copies_are_removed() -> None:
    net = Net(1, 8, 9, 3)
    net.add("RESHAPE", np.array([1, 8, 9, 3], np.int32))
    net.add("TRANSPOSE", np.array([1, 0, 2, 3], np.int32))  # the batch is 1: another shape
    net.add("PAD", np.zeros((4, 2), np.int32))
    net.add("SLICE", np.zeros(4, np.int32), np.full(4, -1, np.int32))
    net.add("TILE", np.ones(4, np.int32))
    net.add("ABS")
    check(net, "remove_no_ops", ["TRANSPOSE", "ABS"])


def test_an_output_is_not_removed() -> None:
    net = Net()
    net.add("RESHAPE", np.array([2, 8, 9, 3], np.int32))
    check(net, "remove_no_ops", ["RESHAPE"])


def test_a_transpose_that_moves_data_stays() -> None:
    net = Net(2, 2, 2, 2)
    net.add("TRANSPOSE", np.array([0, 2, 1, 3], np.int32))
    net.add("ABS")
    check(net, "remove_no_ops", ["TRANSPOSE", "ABS"])


# ---- all of them


def test_together() -> None:
    net = Net()
    net.add("RESHAPE", np.array([2, 8, 9, 3], np.int32))
    net.add("PAD", pads(1, 1, 1, 1))
    conv(net)
    net.add("MUL", net.values(4), options=MulOptions())
    net.add("ADD", net.values(4), options=AddOptions(RELU6))
    content = net.content()
    (_, want), (names, got) = lowered(content, (), REWRITES)
    assert names == ["CONV_2D"]
    assert_close(got, want, accumulated=64)


def test_options_of_the_schema_are_left_to_the_schema() -> None:
    from jaxdelegate.op_lowering.options import ExplicitConv2DOptions

    fields = {f.name for f in dataclasses.fields(ExplicitConv2DOptions)}
    assert fields - {f.name for f in dataclasses.fields(Conv2DOptions)} == {"pads"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("all", ["CONV_2D"]),
        ("none", ["PAD", "CONV_2D", "MUL"]),
        ("pad_convolution", ["CONV_2D", "MUL"]),
        ("scale_convolution, remove_no_ops", ["PAD", "CONV_2D"]),
    ],
)
def test_the_option(text: str, left: list[str]) -> None:
    net = Net()
    net.add("PAD", pads(1, 1, 1, 1))
    conv(net)
    net.add("MUL", net.values(4), options=MulOptions())
    content, seen = net.content(), []
    x = net.random.normal(size=(2, 8, 9, 3)).astype(np.float32)
    outputs = []
    for delegates in ([jd.JaxDelegate(rewrites=text)], None):
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=delegates)
        outputs.append(run_once(interpreter, [x]))
        seen += [d.report() for d in delegates or ()]
    assert_close(*outputs, accumulated=27)
    assert [n.op for n in seen[0].delegated] == ["PAD", "CONV_2D", "MUL"]  # the file's operators
    assert lowered(content, enabled(text))[0][0] == left


def test_an_unknown_rewrite_is_an_error() -> None:
    with pytest.raises(jd.OptionError, match=r"expected .*scale_convolution, .*; got 'fuse'"):
        jd.JaxDelegate(rewrites="fuse")
