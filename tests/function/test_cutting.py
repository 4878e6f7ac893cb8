"""Models until some tensors, and from others on."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder, assert_close
from tests.function.graphs import classifier, halves, noisy
from tests.function.test_function import counter, lstm


@pytest.fixture
def image(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(1, 3, 3, 2)).astype(np.float32)


def test_tensors_are_listed_in_order() -> None:
    tensors = jd.load(classifier()).tensors
    assert list(tensors) == ["image", "features", "flat", "scores"]
    assert str(tensors["flat"]) == "flat float32 [1, 36]"


def test_two_halves_are_the_whole(image: np.ndarray) -> None:
    model = jd.load(classifier(signature=True))
    first, second = model.until("features"), model.from_(["features"])
    assert set(first.params) == {"filter", "bias"}
    assert set(second.params) == {"head"}
    assert str(first.signatures["classify"]).startswith("picture float32 [1, 3, 3, 2] -> features")
    assert repr(second).endswith(
        "'classify': features float32 [1, 3, 3, 4] -> logits float32 [1, 5]>"
    )
    assert_close(second(*first(image)), model(image), accumulated=36)
    assert_close(second(features=first(image)[0]).values(), model(image), accumulated=36)


def test_several_tensors_and_both_ends(image: np.ndarray) -> None:
    model = jd.load(classifier())
    scores, flat = model.until(["scores", "flat"])(image)
    assert_close([scores], model(image), accumulated=36)
    middle = model.from_("features").until("flat")
    assert middle.params == {}
    features = np.asarray(model.until("features")(image)[0])
    np.testing.assert_array_equal(middle(features)[0], features.reshape(1, 36))
    assert_close([flat], middle(features))
    batched = model.until("features").batched(2)
    assert batched(np.concatenate([image, image]))[0].shape == (2, 3, 3, 4)


def test_an_output_may_be_an_input(image: np.ndarray) -> None:
    (same,) = jd.load(classifier()).until("image")(image)
    np.testing.assert_array_equal(same, image)


def test_only_inputs_that_are_needed_stay() -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,), name="x"), builder.input((2,), name="y")
    a, b = builder.tensor((2,), name="a"), builder.tensor((2,), name="b")
    builder.operator("RELU", [x], [a])
    builder.operator("ADD", [a, y], [b])
    builder.outputs(b)
    model = jd.load(builder.build())
    np.testing.assert_array_equal(model.until("a")(np.float32([-1, 1]))[0], [0, 1])
    with pytest.raises(
        jd.TensorError, match=r"the given tensors are not sufficient: .* the model's input 'y'"
    ):
        model.from_("a")
    got = model.from_(["a", "y"])(np.float32([1, 2]), np.float32([3, 4]))[0]
    np.testing.assert_array_equal(got, [4, 6])


def test_one_of_an_operators_outputs_may_be_given() -> None:
    model = jd.load(halves()).from_(["a", "x"])
    got = model(np.float32([100, 200]), np.float32([1, 2, 3, 4]))[0]
    np.testing.assert_array_equal(got, [103, 204])


def test_states_go_on_in_a_cut_model() -> None:
    model = jd.load(counter()).until("value")  # what is read before it is assigned
    apply, params = model.function()
    state = model.initial_state()
    assert len(state) == 1
    whole, _ = jd.load(counter()).function()
    again = jd.load(counter()).initial_state()
    for step in range(3):
        (value,), state = apply(params, np.float32([1, 2]), state=state)
        np.testing.assert_array_equal(value, [10 + step, 20 + 2 * step])
        _, again = whole({}, np.float32([1, 2]), state=again)
    assert [np.asarray(v).tolist() for v in state.values()] == [
        np.asarray(v).tolist() for v in again.values()
    ]
    assert set(jd.load(lstm()).until("y").initial_state()) == {"h", "c"}
    assert jd.load(noisy()).until("noise").initial_state().keys() == {"RANDOM_UNIFORM.0/state"}


def test_wrong_tensors_are_refused() -> None:
    model = jd.load(classifier())
    with pytest.raises(
        jd.TensorError,
        match=r"computes no tensor 'feature'; did you mean 'features'.*model.tensors",
    ):
        model.until("feature")
    with pytest.raises(jd.TensorError, match="computes no tensor 'filter'"):
        model.from_("filter")
    with pytest.raises(jd.OptionError, match=r"outputs: this model already has \('flat',\); start"):
        model.until("flat").until("features")
