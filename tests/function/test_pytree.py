"""A model as a pytree, copied, compared and pickled."""

import copy
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import assert_close
from tests.function.graphs import classifier, shared_weights

X = np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 3, 3, 2)


def test_the_leaves_are_the_weights() -> None:
    model = jd.load(classifier())
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    assert paths == [".params['bias']", ".params['filter']", ".params['head']"]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, model)
    assert isinstance(doubled, jd.Model)
    np.testing.assert_array_equal(doubled.params["head"], 2 * model.params["head"])


def test_a_model_is_an_argument_of_transformations() -> None:
    model = jd.load(classifier())
    traces = []

    @jax.jit
    def run(model: jd.Model, x: jax.Array) -> jax.Array:
        traces.append(model)
        y: jax.Array = model(x)[0]
        return y

    want = np.asarray(model(X)[0])
    assert_close([run(model, X)], [want], accumulated=36)
    assert_close([run(jax.tree.map(lambda w: 1 * w, model), X)], [want], accumulated=36)
    run(jd.load(classifier()), X)  # the same file, read again
    assert len(traces) == 1
    slopes = jax.grad(lambda m: m(X)[0].sum())(model)
    assert isinstance(slopes, jd.Model)
    moved = jax.tree.map(lambda w, g: w - 0.1 * g, model, slopes)
    assert jnp.sum(moved(X)[0]) < want.sum()
    ensemble = jax.tree.map(lambda *leaves: jnp.stack(leaves), model, moved)
    both = jax.vmap(lambda m: m(X)[0])(ensemble)
    assert_close([both[0], both[1]], [want, moved(X)[0]], accumulated=36)


def test_models_and_functions_are_equal_by_content(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(classifier())
    (a, _), (b, _) = (jd.load(source).function() for source in (path, classifier()))
    assert a == b
    assert hash(a) == hash(b)
    assert a != jd.load(shared_weights()).function("relu")[0]
    assert a != jd.load(path).function(platform="tpu")[0]
    assert a != jd.load(path, quant_mode="integer").function()[0]
    assert a != jd.load(path).until("flat").function()[0]


def test_pickle_keeps_the_file_and_what_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(classifier(signature=True))
    model = jd.load(path)
    want = np.asarray(model(X)[0])
    changed = model.with_params({**model.params, "head": 2 * model.params["head"]})
    stored = pickle.dumps([model, changed, model.batched(2).until("flat"), *model.function()])
    path.unlink()  # another machine does not have it
    again, doubled, cut, apply, params = pickle.loads(stored)
    np.testing.assert_array_equal(again(X)[0], want)
    assert_close(doubled(X), [2 * want], accumulated=36)
    assert cut(np.concatenate([X, X]))[0].shape == (2, 36)
    assert_close(apply(params, X), [want], accumulated=36)
    assert_close(
        apply(params, picture=X).values() if apply.signature else apply(params, X),
        [want],
        accumulated=36,
    )
    assert repr(again) == repr(model)
    assert jax.tree.structure(again) == jax.tree.structure(model)


def test_copies_are_their_own() -> None:
    model = jd.load(classifier())
    for other in (copy.copy(model), copy.deepcopy(model)):
        assert_close(other(X), model(X))
        assert other is not model
    apply, params = model.function()
    assert copy.deepcopy(apply) == apply
    assert_close(copy.copy(apply)(params, X), model(X), accumulated=36)


def test_a_delegate_is_pickled_as_its_options() -> None:
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = jd.Interpreter(model_content=classifier(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    again = pickle.loads(pickle.dumps(delegate))
    assert again.options == delegate.options
    other = jd.Interpreter(model_content=classifier(), experimental_delegates=[again])
    other.allocate_tensors()
    assert len(again.partitions()) == 1


def test_what_cannot_be_pickled_says_what_can() -> None:
    interpreter = jd.Interpreter(model_content=classifier(signature=True))
    sharded = jd.load(classifier()).sharded(jax.make_mesh((1,), ("data",)))
    for value, says in (
        (interpreter, "create one in each process"),
        (interpreter.get_signature_runner(), "create one in each process"),
        (sharded, "pickle the model, and call its `sharded` in each process"),
        (sharded.function()[0], "pickle the model, and call its `sharded` in each process"),
    ):
        with pytest.raises(TypeError, match=says):
            pickle.dumps(value)
        with pytest.raises(TypeError, match=says):
            copy.deepcopy(value)
