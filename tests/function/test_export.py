"""Exports for platforms that need not be there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing import assert_close
from tests.function.graphs import anchors, classifier, integers
from tests.function.test_function import lstm

COUNTED = "stablehlo.convolution", "stablehlo.dot_general", "stablehlo.slice "


def counts(exported: export.Exported) -> dict[str, int]:
    """How many of the operations of interest a module holds."""
    text = exported.mlir_module()
    return {name: text.count(name) for name in COUNTED}


def test_each_platform_has_its_own_lowering() -> None:
    """28 convolutions for devices with a library of them; a CPU expands most of them."""
    model = jd.load(mobilenet_v1(size=32, width=0.25, classes=10))
    exported = model.export()
    assert list(exported) == ["cpu", "cuda", "tpu"]
    for platform in ("cuda", "tpu"):
        assert counts(exported[platform]) == dict(zip(COUNTED, (28, 0, 0), strict=True))
        assert exported[platform].platforms == (platform,)
    assert counts(exported["cpu"])["stablehlo.convolution"] == 0


def test_what_users_export_themselves_has_it_too() -> None:
    apply, params = jd.load(mobilenet_v1(size=32, width=0.25, classes=10)).function()
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    for platform, convolutions in (("cpu", 0), ("cuda", 28), ("tpu", 28)):
        exported = export.export(jax.jit(apply), platforms=[platform])(params, x)
        assert counts(exported)["stablehlo.convolution"] == convolutions


@pytest.mark.parametrize("batch", [None, 3, "b"])
@pytest.mark.parametrize("make", [classifier, anchors, integers])
def test_a_stored_export_computes_the_same(make: object, batch: int | str | None) -> None:
    model = jd.load(make())  # type: ignore[operator]
    apply, params = model.function()
    shape, dtype = apply.inputs()[0].shape, apply.inputs()[0].dtype
    x = (10 * np.random.default_rng(0).normal(size=(3, *shape[1:]))).astype(dtype)
    stored = model.export("cpu", batch)["cpu"].serialize()
    again = export.deserialize(stored)
    if batch is None:
        assert_close(again.call(params, x[:1]), model(x[:1]), accumulated=36)
        return
    want = np.concatenate([model(x[i : i + 1])[0] for i in range(3)])
    assert_close(again.call(params, x), [want], accumulated=36)
    if batch == "b":
        assert_close(again.call(params, x[1:]), [want[1:]], accumulated=36)
        assert str(again.in_avals[-1].shape[0]) == "b"


def test_state_and_signatures_are_exported() -> None:
    model = jd.load(lstm())
    exported = model.export("cpu", state=True)["cpu"]
    apply, params = model.function()
    state, x = model.initial_state(), np.array([[1, -1]], np.float32)
    for _ in range(2):
        want, new = apply(params, x, state=state)
        got, state = exported.call(params, x, state=state)
        assert_close(got, want, accumulated=6)
        assert_close(state.values(), new.values(), accumulated=6)
    named = jd.load(classifier(signature=True))
    x = np.ones((1, 3, 3, 2), np.float32)
    exported = named.export("cpu", signature="classify")["cpu"]
    assert_close(exported.call(named.params, x), named(x), accumulated=36)


def test_a_function_of_a_model_is_stored_without_the_file() -> None:
    content = classifier()
    model, x = jd.load(content), np.ones((1, 3, 3, 2), np.float32)

    def slopes(model: jd.Model, x: jax.Array) -> tuple[jax.Array, jd.Model]:
        return model(x)[0], jax.grad(lambda m: m(x)[0].sum())(model)

    exported = export.export(jax.jit(slopes))(model, x)
    stored = exported.serialize()
    assert np.asarray(model.params["head"]).tobytes() not in stored
    again, same = export.deserialize(stored), jd.load(content)
    y, gradient = again.call(same, x)
    assert_close([y], model(x), accumulated=36)
    moved = jax.tree.map(lambda w, g: w - 0.1 * g, same, gradient)
    assert moved(x)[0].sum() < y.sum()
    assert again.call(moved, x)[0].sum() < y.sum()
    with pytest.raises(AttributeError, match=r"use jaxdelegate\.load\(path\)\.with_params"):
        gradient(x)
    for other in (jd.load(integers()), jd.load(content).until("flat"), same.batched(2)):
        with pytest.raises(ValueError, match="same pytree structure"):
            again.call(other, x)


def test_float_io_is_exported() -> None:
    model = jd.load(integers())
    exported = model.export("tpu", io="float")["tpu"]
    assert [str(a) for a in exported.in_avals[-1:]] == ["float32[1,4]"]
    assert [str(a) for a in exported.out_avals] == ["float32[1,3]"]


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(
        jd.OptionError, match="platforms: expected some of cpu, cuda, rocm, tpu, got"
    ):
        jd.load(classifier()).export("vulkan")
    with pytest.raises(jd.OptionError, match="platform: expected one of cpu, cuda"):
        jd.load(classifier()).function(platform="vulkan")
