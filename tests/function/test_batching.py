"""Batches of models whose graphs fix 1: as many single runs, whatever the graph does."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder, assert_close
from tests.function.graphs import anchors, classifier, integers, noisy, scaled, softmax_over_images
from tests.function.test_function import counter, lstm


def singly(model: jd.Model, x: np.ndarray) -> np.ndarray:
    """n single runs, one after the other."""
    return np.concatenate([np.asarray(model(x[i : i + 1])[0]) for i in range(len(x))])


@pytest.mark.parametrize(
    ("make", "options", "size", "how"),
    [
        (lambda: classifier(first=-1), {}, 3, "native"),
        (lambda: classifier(first=1), {}, 3, "vmap: Node number 1 (RESHAPE) failed to prepare"),
        (anchors, {}, "b", "vmap: output 'y' would be [1, 16, 3], of one [1, 8, 3]"),
        (softmax_over_images, {}, 3, "vmap: node 0 (TRANSPOSE) may mix the images of a batch"),
        (integers, {}, "b", "native"),
        (integers, {"quant_mode": "integer"}, 3, "native"),
    ],
)
def test_a_batch_is_as_many_single_runs(
    make: Callable[[], bytes],
    options: dict[str, Any],
    size: int | str,
    how: str,
    rng: np.random.Generator,
) -> None:
    model = jd.load(make(), options)
    batched = model.batched(size)
    tensor = model.graph.subgraphs[0].tensors[0]
    x = rng.normal(size=(3, *tensor.shape[1:]))
    x = (x * 40).astype(np.int8) if tensor.dtype == np.int8 else x.astype(np.float32)
    assert str(batched.batching).startswith(how)
    want = singly(model, x)
    assert_close(batched(x), [want], accumulated=36)
    apply, params = batched.function()
    assert_close(jax.jit(apply)(params, x), [want], accumulated=36)
    shapes = [s.shape for s in apply.inputs()]
    assert shapes == [(3, *tensor.shape[1:])] or str(shapes[0][0]) == "b"


def test_a_wrong_native_batch_is_what_batched_avoids() -> None:
    """The graph runs on a batch, but mixes the images, as in TFLite."""
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    model = jd.load(softmax_over_images())
    assert np.abs(np.asarray(model(x)[0]) - singly(model, x)).max() > 0.1
    assert_close(model.batched(2)(x), [singly(model, x)])


def test_gradients_of_a_batch() -> None:
    model, x = jd.load(anchors()), np.ones((2, 2, 2, 6), np.float32)
    apply, params = model.batched(2).function()
    slope = jax.grad(lambda x: apply(params, x)[0][1].sum())(x)
    np.testing.assert_array_equal(slope[0], np.zeros((2, 2, 6)))
    np.testing.assert_array_equal(slope[1], np.full((2, 2, 6), 2))


def test_inputs_without_images_are_the_same_for_all() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    model = jd.load(scaled()).batched(2)
    assert str(model.batching) == "vmap: an input is the same for all images"
    y, z = model(x, np.float32(3))
    np.testing.assert_array_equal(y, 3 * x)
    np.testing.assert_array_equal(z, [[0, 3, 6]] * 2)  # an output without images gets a new axis


def test_without_any_batch_axis_all_get_one() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    whole = jd.load(counter())  # x [2]
    y = whole.batched(3)(x[:, 0])[0]
    np.testing.assert_array_equal(y, x[:, 0] + [10, 20])


@pytest.mark.parametrize("make", [lstm, counter])
def test_every_image_has_a_state_of_its_own(make: Callable[[], bytes]) -> None:
    model = jd.load(make())
    shape = model.graph.subgraphs[0].tensors[0].shape
    x = np.random.default_rng(0).normal(size=(4, 3, *shape)).astype(np.float32)
    batched = model.batched(3)
    assert str(batched.batching) == "vmap: each image has its own state"
    apply, params = model.function()
    together, _ = batched.function()
    states, state = [model.initial_state() for _ in range(3)], batched.initial_state()
    for step in x:
        given = step.reshape(3, *shape[1:]) if shape[0] == 1 else step
        (y,), state = together(params, given, state=state)
        for i in range(3):
            (want,), states[i] = apply(params, step[i], state=states[i])
            assert_close([y[i]], [np.asarray(want).reshape(y[i].shape)], accumulated=8)
    for name, leaf in state.items():
        assert_close([leaf], [np.stack([s[name] for s in states])], accumulated=8)


def test_random_numbers_of_a_batch() -> None:
    model, x = jd.load(noisy()).batched(3), np.zeros((3, 5), np.float32)
    apply, params = model.function()
    by_seed = np.asarray(apply(params, x)[0])
    np.testing.assert_array_equal(by_seed[0], by_seed[1])  # as three single runs
    drawn = np.asarray(apply(params, x, key=jax.random.key(1))[0])
    assert len(np.unique(drawn)) == drawn.size
    np.testing.assert_array_equal(drawn, apply(params, x, key=jax.random.key(1))[0])
    assert not np.array_equal(drawn, apply(params, x, key=jax.random.key(2))[0])


def negative(*shape: int) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input(shape, name="x"), builder.tensor(shape)
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    return builder.build()


def test_wrong_batches_are_refused() -> None:
    model = jd.load(classifier())
    with pytest.raises(
        jd.TensorError, match=r"input 0 'image' of a batch wants \[4, 3, 3, 2\], got \[2, 3, 3, 2\]"
    ):
        model.batched(4)(np.zeros((2, 3, 3, 2), np.float32))
    fixed = jd.load(negative(2, 4))  # for the shape [2, 4] alone: a batch is [n, 2, 4]
    for size in (2, "b"):
        want = rf"input 0 'x' of a batch wants \[{size!r}, 2, 4\], got \[2, 4\]"
        with pytest.raises(jd.TensorError, match=want):
            fixed.batched(size)(np.zeros((2, 4), np.float32))
    with pytest.raises(jd.TensorError, match=r"input 0 'x' of a batch wants \['b'\], got \[\]"):
        jd.load(negative()).batched("b")(np.float32(1))
    for wrong in (0, -1, "2 b", True, 1.5):
        with pytest.raises(jd.OptionError, match="batched: expected a positive number, or a name"):
            model.batched(wrong)  # type: ignore[arg-type]
    with pytest.raises(jd.OptionError, match="batch: this model already has 2; start from"):
        model.batched(2).batched(2)
    with pytest.raises(jd.TensorError, match="a batch of any size \\('b'\\) has no initial state"):
        jd.load(lstm()).batched("b").initial_state()
