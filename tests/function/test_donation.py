"""Weights that a caller donates to a jitted function: the model that gave them stays whole."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder
from tests.function.graphs import classifier, integers, shared_weights
from tests.function.test_states import X as STEP
from tests.function.test_states import trained

pytestmark = pytest.mark.usefixtures("compiled_once")
X = np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 3, 3, 2)
doubled = jax.jit(lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree), donate_argnums=0)


def is_gone(params: Any) -> bool:
    return all(leaf.is_deleted() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    "handed_out",
    [
        lambda model: model.function()[1],
        lambda model: model.params,
        lambda model: model,
        lambda model: model.batched(2).function()[1],
        lambda model: model.sharded(jax.make_mesh((1,), ("data",))).function()[1],
        copy.copy,
    ],
    ids=["function", "params", "model", "batched", "sharded", "copy"],
)
def test_a_model_makes_donated_weights_again(handed_out: Callable[[jd.Model], Any]) -> None:
    model, fresh = jd.load(classifier()), jd.load(classifier())
    apply, params = fresh.function()
    want = np.asarray(apply(params, X)[0])
    given = handed_out(model)
    leaves = jax.tree.leaves(given)
    new = doubled(given)
    assert is_gone(leaves)
    for params in (model.params, model.function()[1], model.batched(2).params):
        for name, leaf in params.items():
            np.testing.assert_array_equal(leaf, fresh.params[name])
        np.testing.assert_array_equal(apply(params, X)[0], want)
    np.testing.assert_array_equal(model(X)[0], fresh(X)[0])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((new, model)))


def test_a_sharded_model_makes_donated_weights_again() -> None:
    sharded = jd.load(classifier()).sharded(jax.make_mesh((1,), ("data",)))
    apply, params = sharded.function()
    want = np.asarray(apply(params, X)[0])
    doubled(params)
    assert is_gone(params)
    np.testing.assert_array_equal(apply(sharded.function()[1], X)[0], want)
    np.testing.assert_array_equal(apply(sharded.params, X)[0], want)


def test_other_leaves_stay_the_arrays_that_they_were() -> None:
    model = jd.load(classifier())
    before = model.params
    doubled(before["head"])
    after = model.params
    assert after["filter"] is before["filter"]
    assert not after["head"].is_deleted()


def test_each_signature_makes_its_own_again() -> None:
    model = jd.load(shared_weights())
    doubled(model.function("tanh")[1])
    for key in ("relu", "tanh"):
        apply, params = model.function(key)
        assert np.isfinite(apply(params, np.ones((1, 4), np.float32))[0]).all()


def test_trained_scales_and_states_are_the_callers() -> None:
    model = jd.load(integers())
    for _ in range(2):
        doubled(model.function(ranges="learned", weights="fake_quantized")[1])
    model = jd.load(trained())
    for _ in range(2):
        doubled(model.initial_state())
    np.testing.assert_array_equal(model(x=STEP)["y"], jd.load(trained())(x=STEP)["y"])


@pytest.mark.parametrize(
    "use",
    [
        lambda model, _: model(X),
        lambda model, _: model.params,
        lambda model, _: model.function(),
        lambda model, _: jax.tree.map(np.asarray, model),
        lambda model, _: model.batched(2),
        lambda model, _: copy.deepcopy(model),
        lambda model, _: pickle.dumps(model),
        lambda model, folder: model.save(folder / "saved.tflite"),
        lambda model, _: model.sharded(jax.make_mesh((1,), ("data",))),
    ],
)
def test_weights_in_place_of_the_files_are_gone(
    use: Callable[[jd.Model, Path], Any], tmp_path: Path
) -> None:
    model = jd.load(classifier())
    other = model.with_params(jax.tree.map(lambda leaf: 1 * leaf, model.params))
    doubled(other.function()[1])
    with pytest.raises(
        jd.TensorError, match=r"params\['bias'\] has been deleted, .*\(donate_argnums\): use the"
    ):
        use(other, tmp_path)
    assert not list(tmp_path.iterdir())


def test_apply_refuses_what_is_gone() -> None:
    model = jd.load(classifier())
    apply, params = model.function()
    doubled(params)
    with pytest.raises(jd.TensorError, match=r"apply: params\['filter'\] has been deleted"):
        apply(params, X)
    model = jd.load(trained())
    infer, state = model.function("infer")[0], model.initial_state()
    doubled(state)
    with pytest.raises(jd.TensorError, match=r"apply: state\['w'\] has been deleted"):
        infer({}, STEP, state=state)


def test_a_loop_that_donates_trains_as_one_that_does_not() -> None:
    """The idiom of flax and optax, starting from the params of `function`."""
    builder = ModelBuilder()
    x, w = builder.input((2,), name="x"), builder.constant(np.float32([1, 2]), "w")
    y = builder.tensor((2,), name="y")
    builder.operator("MUL", [x, w], [y])
    builder.outputs(y)
    model = jd.load(builder.build())

    def step(params: Any) -> Any:
        slopes = jax.grad(lambda p: (apply(p, STEP)[0] ** 2).sum())(params)
        return jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, slopes)

    results = []
    for donated in ((), (0,)):
        apply, params = model.function()
        run = jax.jit(step, donate_argnums=donated)
        for _ in range(3):
            params = run(params)
        results.append(params["w"])
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(model.params["w"], [1, 2])
