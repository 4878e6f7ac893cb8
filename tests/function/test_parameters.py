"""The weights of a model: names, records, sharing, subsets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder, assert_close
from tests.function.graphs import classifier, integers, shared_weights


def test_one_leaf_for_a_buffer_that_signatures_share() -> None:
    model = jd.load(shared_weights())
    assert set(model.params) == {"kernel"}
    record = model.parameters["kernel"]
    assert record.tensors == ((0, 0), (1, 0))
    assert (record.stored_dtype, record.dtype, record.shape) == (np.float16, np.float32, (3, 4))
    assert record.buffer > 0
    x = np.ones((1, 4), np.float32)
    wide = np.asarray(model.params["kernel"])
    for key, activation in (("relu", lambda y: np.maximum(y, 0)), ("tanh", np.tanh)):
        apply, params = model.function(key)
        assert set(params) == {"kernel"}
        assert_close(apply(params, x), [activation(x @ wide.T)], accumulated=4)
        doubled = {**model.params, "kernel": 2 * wide, "more": 1}  # others are passed over
        assert_close(apply(doubled, x), [activation(2 * x @ wide.T)], accumulated=4)


def test_integers_are_leaves_of_floats_with_their_scales() -> None:
    model = jd.load(integers())
    w, b = model.parameters["w"], model.parameters["b"]
    assert (w.dtype, w.stored_dtype, w.axis) == (np.float32, np.int8, 0)
    np.testing.assert_array_equal(w.scale, np.float32([0.01, 0.02, 0.03]))
    np.testing.assert_array_equal(w.zero_point, [0, 0, 0])
    assert b.stored_dtype == np.int32
    stored = model.graph.subgraphs[0].tensors[1].data
    assert stored is not None
    assert w.scale is not None
    assert_close([model.params["w"]], [stored * w.scale[:, None]])


def test_integers_as_they_are_in_integer_mode() -> None:
    model = jd.load(integers(), quant_mode="integer")
    assert {n: p.dtype for n, p in model.parameters.items()} == {"w": np.int8, "b": np.int32}
    x = np.array([[10, -20, 30, 40]], np.int8)
    apply, params = model.function()
    np.testing.assert_array_equal(apply(params, x)[0], model(x)[0])
    half = {**params, "w": params["w"] // 2}
    assert not np.array_equal(apply(half, x)[0], model(x)[0])


def test_some_weights_and_the_others() -> None:
    model = jd.load(classifier())
    head, backbone = model.partition(lambda parameter: parameter.name == "head")
    assert set(head) == {"head"}
    assert set(backbone) == {"filter", "bias"}
    matrices, _ = model.partition(lambda parameter: len(parameter.shape) > 1)
    assert set(matrices) == {"filter", "head"}
    apply, _ = model.function()
    x = jnp.ones((1, 3, 3, 2))
    slopes = jax.grad(lambda head: apply({**head, **backbone}, x)[0].sum())(head)
    assert set(slopes) == {"head"}
    assert np.abs(slopes["head"]).max() > 0


def test_other_weights() -> None:
    model, x = jd.load(classifier()), np.ones((1, 3, 3, 2), np.float32)
    doubled = model.with_params({**model.params, "head": 2 * model.params["head"]})
    assert_close(doubled(x), [2 * np.asarray(model(x)[0])], accumulated=36)
    assert_close(doubled.batched(1)(x), doubled(x), accumulated=36)
    apply, params = doubled.function()
    assert_close(apply(params, x), doubled(x), accumulated=36)


def test_weights_that_do_not_fit_are_named() -> None:
    model, x = jd.load(classifier()), np.ones((1, 3, 3, 2), np.float32)
    params = model.params
    with pytest.raises(
        jd.TensorError, match=r"'head': expected an array of the shape \[5, 36\], got no"
    ):
        model.with_params({"filter": params["filter"], "bias": params["bias"]})
    with pytest.raises(
        jd.TensorError, match="'heads': expected nothing, got an array of the shape"
    ):
        model.with_params({**params, "heads": params["head"]})
    quantized = jd.load(integers())
    with pytest.raises(jd.TensorError, match="'x/scale' is a scale, but only weights can be"):
        quantized.with_params({**quantized.params, "x/scale": np.ones(1, np.float32)})
    apply, _ = model.function()
    with pytest.raises(
        jd.TensorError, match=r"params\['head'\]: expected the shape \[5, 36\], got \[36, 5\]"
    ):
        apply({**params, "head": params["head"].T}, x)


def test_weights_of_another_float_type_are_converted() -> None:
    model, x = jd.load(classifier()), np.ones((1, 3, 3, 2), np.float32)
    apply, params = model.function()
    short = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    (y,) = apply(short, x)
    assert y.dtype == np.float32
    assert np.abs(np.asarray(y) - np.asarray(model(x)[0])).max() < 0.1


def test_a_constant_that_a_rule_builds_in_is_no_parameter() -> None:
    builder = ModelBuilder()
    x, y, z = builder.input((3,), name="x"), builder.tensor((3,)), builder.tensor((3,))
    two, half = (builder.constant(np.float32(n), name) for n, name in ((2, "two"), (0.5, "half")))
    builder.operator("POW", [x, two], [y])
    builder.operator("MUL", [y, half], [z])
    builder.outputs(z)
    apply, params = jd.load(builder.build()).function()
    assert set(params) == {"half"}  # another exponent would have no effect
    x = np.float32([-1, 0, 3])
    np.testing.assert_array_equal(apply(params, x)[0], x * x / 2)
    np.testing.assert_array_equal(jax.grad(lambda x: apply(params, x)[0].sum())(x), x)
