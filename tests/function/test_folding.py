"""`save(fold_normalizations=True)`: what is folded, what stays, and that stock LiteRT agrees."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import interpreter as litert

import jaxdelegate as jd
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    AddOptions,
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    DivOptions,
    FullyConnectedOptions,
    MulOptions,
    Padding,
    SubOptions,
    TransposeConvOptions,
)
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once

OPTIONS = {"MUL": MulOptions, "ADD": AddOptions, "SUB": SubOptions, "DIV": DivOptions}
Array = np.ndarray


class Chain:
    """Operators, each of which reads the result of the one before; outputs 6 channels."""

    def __init__(self, *shape: int) -> None:
        self.builder, self.rng = ModelBuilder(), np.random.default_rng(1)
        self.shape = shape or (1, 5, 6, 4)
        self.last = self.builder.input(self.shape, name="x")

    def values(self, *shape: int) -> Array:
        """Between 0.5 and 2, some of them negative: they can divide."""
        signs = self.rng.choice([-1, 1, 1], shape)
        return (self.rng.uniform(0.5, 2, shape) * signs).astype(np.float32)

    def constant(self, name: str, *shape: int) -> int:
        return self.builder.constant(self.values(*shape), name)

    def add(
        self, name: str, inputs: list[int | None], shape: tuple[int, ...], options: Any, **how: Any
    ) -> int:
        """Add an operator; its result has its name."""
        self.last, self.shape = self.builder.tensor(shape, name=name.lower()), shape
        self.builder.operator(name, inputs, [self.last], options, **how)
        return self.last

    def arithmetic(
        self, name: str, c: Array, act: Act = Act.NONE, *, first: bool = False, cname: str = "c"
    ) -> None:
        """Add an operator with a constant."""
        constant = self.builder.constant(c, cname)
        inputs: list[int | None] = [constant, self.last] if first else [self.last, constant]
        self.add(name, inputs, self.shape, OPTIONS[name](act))

    def content(self, *more: int) -> bytes:
        self.builder.outputs(self.last, *more)
        return self.builder.build()


def conv(chain: Chain, padding: Padding = Padding.SAME, act: Act = Act.NONE, size: int = 3) -> None:
    height, width = (n if padding is Padding.SAME else n - size + 1 for n in chain.shape[1:3])
    inputs = [chain.last, chain.constant("w", 6, size, size, 4), chain.constant("b", 6)]
    chain.add("CONV_2D", inputs, (1, height, width, 6), Conv2DOptions(padding, 1, 1, act))


def conv_valid(chain: Chain) -> None:
    conv(chain, Padding.VALID)


def conv_1x1(chain: Chain) -> None:
    conv(chain, size=1)


def grouped(chain: Chain) -> None:
    inputs = [chain.last, chain.constant("w", 6, 2, 2, 2), chain.constant("b", 6)]
    o = Conv2DOptions(Padding.VALID, 1, 1)
    chain.add("CONV_2D", inputs, (1, 4, 5, 6), o, version=6)


def depthwise(chain: Chain) -> None:
    inputs = [chain.last, chain.constant("w", 1, 3, 2, 8), chain.constant("b", 8)]
    o = DepthwiseConv2DOptions(Padding.VALID, 1, 1, 2)
    chain.add("DEPTHWISE_CONV_2D", inputs, (1, 3, 5, 8), o)


def dense(chain: Chain) -> None:
    inputs = [chain.last, chain.constant("w", 6, 4)]
    chain.add("FULLY_CONNECTED", inputs, (30, 6), FullyConnectedOptions(), version=6)


def dense_by_place(chain: Chain) -> None:
    inputs = [chain.last, chain.constant("w", 6, 4), chain.constant("b", 6)]
    o = FullyConnectedOptions(keep_num_dims=True)
    chain.add("FULLY_CONNECTED", inputs, (1, 5, 6, 6), o, version=5)


def transposed(chain: Chain) -> None:
    shape = chain.builder.constant(np.array([1, 7, 8, 6], np.int32))
    inputs = [shape, chain.constant("w", 6, 3, 3, 4), chain.last]
    o = TransposeConvOptions(Padding.VALID, 1, 1)
    chain.add("TRANSPOSE_CONV", inputs, (1, 7, 8, 6), o)


def conv_3d(chain: Chain) -> None:
    inputs = [chain.last, chain.constant("w", 2, 2, 2, 4, 6)]
    o = Conv3DOptions(Padding.VALID, 1, 1, 1)
    chain.add("CONV_3D", inputs, (1, 2, 4, 5, 6), o)


PRODUCTS = [conv, conv_valid, grouped, depthwise, dense, dense_by_place, transposed, conv_3d]
Build = Callable[[Chain], None]


def chain_for(product: Build) -> Chain:
    return Chain(1, 3, 5, 6, 4) if product is conv_3d else Chain()


def stock(content: bytes) -> list[Array]:
    interpreter = litert.Interpreter(
        model_content=content, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    return run_once(interpreter, random_inputs(interpreter.get_input_details()))


def names(model: Model, subgraph: int = 0) -> list[str]:
    return [operator.name for operator in model.subgraphs[subgraph].operators]


def folded(content: bytes, path: Path, *expected: str, **how: Any) -> Model:
    """The saved model, checked to have only these operators and equal results in stock LiteRT."""
    jd.save(content, path / "m", fold_normalizations=True, **how)
    new = (path / "m").read_bytes()
    model = read_model(new)
    assert names(model) == list(expected)
    for before, after in zip(stock(content), stock(new), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())
    return model


def kept(content: bytes, path: Path) -> None:
    """Check that nothing is folded: the file does not change."""
    jd.save(content, path / "m", fold_normalizations=True)
    assert (path / "m").read_bytes() == content


# ---- what is folded


@pytest.mark.parametrize("product", PRODUCTS)
def test_behind_every_product(product: Build, tmp_path: Path) -> None:
    chain = chain_for(product)
    product(chain)
    name, units = names(read_model(chain.content()))[0], chain.shape[-1]
    chain.arithmetic("MUL", chain.values(units))
    chain.arithmetic(
        "ADD", chain.values(*[1] * (len(chain.shape) - 1), units), Act.RELU, first=True
    )
    model = folded(chain.content(), tmp_path, name)
    left = {t.name for t in model.subgraphs[0].tensors}
    assert left <= {"x", "t1", "w", "b", "w_bias", "add"}  # t1: the shape that TRANSPOSE_CONV reads
    assert model.subgraphs[0].operators[0].options.fused_activation_function is Act.RELU


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_operator(name: str, first: bool, tmp_path: Path) -> None:
    for shape in ((6,), (1, 1, 1, 6), (), (1,)):
        for act in (Act.NONE, Act.RELU6, Act.RELU_N1_TO_1):
            chain = Chain()
            conv(chain)
            chain.arithmetic(name, chain.values(*shape), act, first=first)
            left = ["CONV_2D", "DIV"] if name == "DIV" and first else ["CONV_2D"]
            folded(chain.content(), tmp_path, *left)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_factor_before_every_product(product: Build, tmp_path: Path) -> None:
    chain = chain_for(product)
    chain.arithmetic("DIV", chain.values(4))
    chain.arithmetic("MUL", chain.values())
    product(chain)
    folded(chain.content(), tmp_path, names(read_model(chain.content()))[-1])


@pytest.mark.parametrize(
    "product", [conv_valid, conv_1x1, grouped, depthwise, dense, dense_by_place, conv_3d]
)
def test_a_sum_before_what_pads_nothing(product: Build, tmp_path: Path) -> None:
    chain = chain_for(product)
    chain.arithmetic("SUB", chain.values(4), first=True)
    chain.arithmetic("ADD", chain.values(1))
    product(chain)
    folded(chain.content(), tmp_path, names(read_model(chain.content()))[-1])


@pytest.mark.parametrize("product", [conv, transposed])
def test_a_sum_before_what_pads_stays(product: Build, tmp_path: Path) -> None:
    chain = Chain()
    chain.arithmetic("MUL", chain.values(4))
    chain.arithmetic("ADD", chain.values(4))
    product(chain)
    kept(chain.content(), tmp_path)


def test_between_two_products_each_operator_joins_one(tmp_path: Path) -> None:
    chain = Chain()
    chain.arithmetic("MUL", chain.values(4))
    conv(chain, act=Act.RELU)
    chain.arithmetic("MUL", chain.values(6))
    inputs = [chain.last, chain.constant("v", 4, 1, 1, 6), chain.constant("d", 4)]
    chain.add("CONV_2D", inputs, (1, 5, 6, 4), Conv2DOptions(Padding.SAME, 1, 1))
    chain.arithmetic("SUB", chain.values(4))
    dense(chain)
    model = folded(chain.content(), tmp_path, "CONV_2D", "CONV_2D", "FULLY_CONNECTED")
    clamps = [op.options.fused_activation_function for op in model.subgraphs[0].operators]
    assert clamps == [Act.RELU, Act.NONE, Act.NONE]


def test_versions_follow(tmp_path: Path) -> None:
    for activation, version in ((Act.NONE, 3), (Act.RELU, 4)):
        chain = Chain()
        transposed(chain)
        chain.arithmetic("ADD", chain.values(6), activation)
        model = folded(chain.content(), tmp_path, "TRANSPOSE_CONV")
        assert model.subgraphs[0].operators[0].version == version
    chain = Chain()
    transposed(chain)
    chain.arithmetic("MUL", chain.values(6))
    operator = folded(chain.content(), tmp_path, "TRANSPOSE_CONV").subgraphs[0].operators[0]
    assert (operator.version, len(operator.inputs)) == (1, 3)


def test_an_options_table_that_the_file_leaves_out(tmp_path: Path) -> None:
    chain = Chain()
    dense(chain)
    chain.arithmetic("MUL", chain.values(6), Act.RELU)
    chain.builder.outputs(chain.last)

    def strip(t: Any) -> None:
        t.subgraphs[0].operators[0].builtinOptions = None
        t.subgraphs[0].operators[0].builtinOptionsType = 0

    folded(chain.builder.build(edit=strip), tmp_path, "FULLY_CONNECTED")


def test_shared_weights_are_copied(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input((2, 3), name="x")
    values = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    w, c = builder.constant(values, "w"), builder.constant(np.float32([2, 3, 4]), "c")
    results = []
    for i in range(3):  # one reads the weights as they are
        y = builder.tensor((2, 3), name=f"y{i}")
        builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions())
        if i:
            scaled = builder.tensor((2, 3), name=f"z{i}")
            builder.operator("MUL", [y, c], [scaled], MulOptions())
        results.append(scaled if i else y)
    builder.outputs(*results)
    model = folded(builder.build(), tmp_path, *["FULLY_CONNECTED"] * 3)
    tensors = model.subgraphs[0].tensors
    assert [t.name for t in tensors if t.stored is not None] == ["w", "w_folded", "w_folded"]
    np.testing.assert_array_equal(tensors[1].data, values)


def test_a_shared_buffer_keeps_its_values(tmp_path: Path) -> None:
    chain = Chain()
    dense(chain)
    chain.arithmetic("MUL", chain.values(6))
    other = chain.constant("other", 6, 4)
    tensors = chain.builder._t.tensors
    tensors[other].buffer = next(t.buffer for t in tensors if t.name == "w")
    model = folded(chain.content(other), tmp_path, "FULLY_CONNECTED")
    before = read_model(chain.content(other)).subgraphs[0].tensors[other].data
    again = next(t for t in model.subgraphs[0].tensors if t.name == "other")
    np.testing.assert_array_equal(again.data, before)


def test_tensors_are_numbered_anew_everywhere(tmp_path: Path) -> None:
    chain = Chain()
    x = chain.last
    dense(chain)
    chain.arithmetic("MUL", chain.values(6))
    stored = Blockwise(-1, -1, 2, scale=np.float16([[0.5, 1, 2]]))
    blocks = Quantization(np.empty(0, np.float32), np.empty(0, np.int64), 0, blockwise=stored)
    w = chain.builder.constant(np.ones((1, 6), np.int8), "blocks", quantization=blocks)
    scales = read_model(chain.content()).subgraphs[0].tensors[w].quantization.blockwise.scales
    chain.builder.signature("run", {"in": x}, {"out": chain.last})
    chain.builder.outputs(chain.last)
    jd.save(chain.builder.build(), tmp_path / "m", fold_normalizations=True)
    model = read_model(tmp_path / "m")
    tensors, signature = model.subgraphs[0].tensors, model.signatures[0]
    assert tensors[signature.inputs["in"]].name == "x"
    assert tensors[signature.outputs["out"]].name == "mul"
    again = next(t for t in tensors if t.name == "blocks").quantization.blockwise
    assert again.scales == scales - 2  # less dense's result and the factors
    np.testing.assert_array_equal(again.scale, stored.scale)


def test_with_new_values_and_float16(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chain = Chain()
    conv(chain)
    chain.arithmetic("MUL", chain.values(6))
    content, c = chain.content(), np.arange(1, 7, dtype=np.float32)
    with caplog.at_level(logging.INFO, logger="jaxdelegate"):
        jd.save(content, tmp_path / "m", {"c": c}, fold_normalizations=True, dtype="float16")
    assert "folded MUL.1 into CONV_2D.0" in caplog.text
    model = read_model(tmp_path / "m")
    assert names(model) == ["DEQUANTIZE", "DEQUANTIZE", "CONV_2D"]
    w = read_model(content).subgraphs[0].tensors[1].data
    half = next(t for t in model.subgraphs[0].tensors if t.name == "w")
    np.testing.assert_array_equal(half.data, (w * c.reshape(6, 1, 1, 1)).astype(np.float16))
    jd.save(content, tmp_path / "wide", {"c": c})
    before, after = (stock((tmp_path / n).read_bytes())[0] for n in ("wide", "m"))
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-3 * np.abs(before).max())


# ---- what stays


def _with(*steps: Callable[[Chain], object]) -> bytes:
    chain = Chain()
    for step in steps:
        step(chain)
    return chain.content()


def mul(*shape: int, act: Act = Act.NONE) -> Callable[[Chain], None]:
    return lambda chain: chain.arithmetic("MUL", chain.values(*shape), act)


def weights_of(dtype: Any, **details: Any) -> Callable[[Chain], object]:
    """FULLY_CONNECTED with int8 weights, or whose float32 ones a DEQUANTIZE makes."""

    def add(chain: Chain) -> None:
        w = chain.builder.constant(np.ones((6, 4), dtype), "w", **details)
        if dtype is np.float16:
            wide = chain.builder.tensor((6, 4), name="wide")
            chain.builder.operator("DEQUANTIZE", [w], [wide], version=3)
            w = wide
        chain.add("FULLY_CONNECTED", [chain.last, w, None], (30, 6), FullyConnectedOptions())

    return add


ONE_SCALE = Quantization(np.float32([0.5]), np.array([0]))


@pytest.mark.parametrize(
    "content",
    [
        _with(lambda chain: conv(chain, act=Act.RELU), mul(6)),
        _with(conv, mul(6, act=Act.TANH)),
        _with(conv, mul(5, 6, 6)),
        _with(conv, mul(6, 1)),
        _with(mul(4, act=Act.RELU), conv),
        _with(mul(6, 1), conv),
        _with(dense, mul(30, 6)),
        _with(weights_of(np.int8, quantization=ONE_SCALE), mul(6)),
        _with(weights_of(np.float16), mul(6)),
        _with(lambda chain: chain.arithmetic("MUL", np.float32([1, np.inf, 2, 3])), conv),
    ],
)
def test_what_cannot_be_folded_stays(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(content, tmp_path)
    assert "no operator can be folded" in caplog.text


def test_what_others_see_stays(tmp_path: Path) -> None:
    for seen in ("output", "signature", "reader"):
        chain = Chain()
        conv(chain)
        y = chain.last
        chain.arithmetic("MUL", chain.values(6))
        if seen == "signature":
            chain.builder.signature("run", {"x": 0}, {"y": y})
        if seen == "reader":
            chain.add("ADD", [chain.last, y], chain.shape, AddOptions())
        kept(chain.content(*([y] if seen == "output" else [])), tmp_path)


def test_a_broadcast_result_stays(tmp_path: Path) -> None:
    chain = Chain(1, 4)
    inputs = [chain.last, chain.constant("w", 6, 4), None]
    chain.add("FULLY_CONNECTED", inputs, (1, 6), FullyConnectedOptions())
    c = chain.constant("c", 3, 1, 6)
    chain.add("MUL", [chain.last, c], (3, 1, 6), MulOptions())
    kept(chain.content(), tmp_path)


def test_a_variable_is_read_where_it_was(tmp_path: Path) -> None:
    chain = Chain()
    chain.last = chain.builder.tensor((1, 5, 6, 4), is_variable=True)
    chain.arithmetic("MUL", chain.values(4))
    conv(chain)
    kept(chain.content(), tmp_path)


# ---- what cannot be written


@pytest.mark.parametrize(("name", "c"), [("DIV", [1, 0, 2, 3, 4, 5]), ("MUL", [3e38] * 6)])
def test_weights_beyond_float32(name: str, c: list[float], tmp_path: Path) -> None:
    chain = Chain()
    conv(chain)
    chain.arithmetic(name, np.float32(c))
    with pytest.raises(jd.TensorError, match=rf"folding {name}\.1 into CONV_2D\.0: .*'w'.*'c'"):
        jd.save(chain.content(), tmp_path / "m", fold_normalizations=True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_would_lose_something(tmp_path: Path) -> None:
    chain = Chain()
    conv(chain)
    chain.arithmetic("MUL", chain.values(6))
    chain.builder.metadata("model_control_dependencies", b"0")
    with pytest.raises(
        jd.ModelError, match=r"folding: its metadata .* refers to operators by index"
    ):
        jd.save(chain.content(), tmp_path / "m", fold_normalizations=True)


def test_float16_and_folding_keep_metadata_that_shares_a_buffer(tmp_path: Path) -> None:
    chain = Chain()
    conv(chain)
    chain.arithmetic("MUL", chain.values(6))
    chain.builder.metadata("notes", b"")
    w = next(t for t in chain.builder._t.tensors if t.name == "w")
    chain.builder._metadata[-1].buffer = w.buffer
    content = chain.content()
    notes = bytes(read_model(content).metadata["notes"])
    for how in ({"fold_normalizations": True}, {"dtype": "float16"}):
        jd.save(content, tmp_path / "m", **how)
        assert bytes(read_model(tmp_path / "m").metadata["notes"]) == notes != b""
