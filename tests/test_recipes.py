"""The recipes of docs/jax_recipes.md compute what the page says."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate import Interpreter
from jaxdelegate.testing import assert_close
from sample_tasks import sounds

PAGE = Path(__file__).parents[1] / "docs" / "jax_recipes.md"
SECTION = re.compile(r"^## (.*)\n((?:(?!^## ).*\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = PAGE.read_text()
NEEDS = {
    "Distillation": ("optax",),
    "A Flax module": ("flax", "optax"),
    "An Equinox module": ("equinox",),
}


def run(text: str, names: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in BLOCK.findall(text):
            exec(compile(block, str(PAGE), "exec"), names)


@pytest.fixture(autouse=True, scope="module")
def _defaults() -> Iterator[None]:
    """Pages run with JAX's defaults, as for readers, not with the settings of these tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def beginning(_defaults: None) -> dict[str, Any]:
    names: dict[str, Any] = {}
    run(TEXT.partition("\n## ")[0], names)
    return names


@pytest.fixture
def recipe(beginning: dict[str, Any], request: pytest.FixtureRequest) -> SimpleNamespace:
    """The variables of a section that runs after the page's first code block."""
    for package in NEEDS.get(request.param, ()):
        pytest.importorskip(package)
    names = dict(beginning)
    run(dict(SECTION.findall(TEXT))[request.param], names)
    return SimpleNamespace(**names)


def for_(title: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("recipe", [title], indirect=True)


def test_every_section_is_tested() -> None:
    tested = re.findall(r'^@for_\("(.*)"\)', Path(__file__).read_text(), re.MULTILINE)
    assert tested == [title for title, _ in SECTION.findall(TEXT)]


@pytest.mark.slow
@for_("Saliency")
def test_saliency(recipe: SimpleNamespace) -> None:
    """The gradient equals finite differences along it."""
    image, *classes = recipe.images[3], recipe.best[3], recipe.other[3]
    slope = np.asarray(recipe.slopes[3])
    step = 1e-3 * slope / np.abs(slope).max()
    above, below = (float(recipe.margin(image + s, *classes)) for s in (step, -step))
    assert above - below == pytest.approx(2 * float((slope * step).sum()), rel=0.02)
    assert recipe.saliency.shape == (8, 64, 64)


@for_("Ensembles")
def test_ensembles(recipe: SimpleNamespace) -> None:
    one_by_one = [recipe.apply(member, recipe.images)[0] for member in recipe.members]
    assert_close([recipe.each], [np.stack(one_by_one)], accumulated=1000)
    assert recipe.spread.max() > 1e-3  # the members differ
    assert recipe.mean.shape == (8, 6)


@for_("A stream under scan")
def test_a_stream(recipe: SimpleNamespace) -> None:
    """The scores equal those of the interpreter, frame by frame, and the words are right."""
    interpreter = Interpreter(model_content=sounds.network())
    interpreter.allocate_tensors()
    (given,), (scores,) = interpreter.get_input_details(), interpreter.get_output_details()
    want = []
    for frame in recipe.frames:
        interpreter.set_tensor(given["index"], frame[None])
        interpreter.invoke()
        want.append(interpreter.get_tensor(scores["index"])[0])
    assert_close([np.concatenate(recipe.found)], [np.stack(want)], accumulated=1000)
    assert_close([recipe.stream_scores[1]], [np.stack(want)], accumulated=1000)
    spoken = [word.name for word in sounds.sound(seed=1).spoken]
    assert [word.name for word in recipe.words] == spoken


@pytest.mark.slow
@for_("Distillation")
def test_distillation(recipe: SimpleNamespace) -> None:
    assert recipe.distances[-1] < 0.8 * recipe.distances[0]
    assert set(recipe.biases) < set(recipe.weights)
    changed = {n for n, b in recipe.biases.items() if np.abs(b - recipe.weights[n]).max() > 0}
    assert changed == set(recipe.biases) - {"logits/bias"}  # the features come before it


@pytest.mark.slow
@for_("A Flax module")
def test_a_flax_module(recipe: SimpleNamespace) -> None:
    assert recipe.losses == sorted(recipe.losses, reverse=True)
    trained = recipe.network.params.get_value()
    assert np.abs(trained["logits/bias"] - recipe.params["logits/bias"]).max() > 0
    fresh = recipe.Network(recipe.model)
    assert_close(fresh(recipe.images), [recipe.scores, recipe.features])


@pytest.mark.slow
@for_("An Equinox module")
def test_an_equinox_module(recipe: SimpleNamespace) -> None:
    assert float(recipe.value) == pytest.approx(float(np.square(recipe.features).mean()), rel=1e-5)
    assert len(jax.tree.leaves(recipe.backbone)) == len(recipe.params)
    assert recipe.less < recipe.value
