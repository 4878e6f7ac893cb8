"""The programs of a language model: caches are updated in place, and nothing is compiled twice."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import lm
from jaxdelegate.lm.graph import language_graph
from jaxdelegate.lm.programs import Programs
from jaxdelegate.lm.sampling import Rules
from tests.support.language_models import language_bundle, language_model


@pytest.mark.parametrize("slots", [1, 3])
def test_caches_are_updated_in_place(slots: int) -> None:
    """A step copies none of them, however long they are."""
    model = jd.load(language_model(hidden=64, capacity=256), platform="cpu")
    graph = language_graph(model.signatures, "model")
    programs = Programs(model, graph, slots, (2,))
    rules = Rules()
    variant = rules.variant(graph.vocabulary)
    choice = jax.tree.map(lambda a: np.stack([a] * slots), rules.choice(variant, graph.vocabulary))
    empty = programs.new_slots()
    placed = programs.begin(empty, slots - 1, 5, 3, 4)
    assert all(cache.is_deleted() for cache in empty.caches.values())  # donated
    run = programs.compiled(variant, placed, choice)
    text = run.as_text()
    ahead = "" if slots == 1 else f"{slots},"
    shapes = [f"{ahead}1,1,256,64", f"{ahead}1,1,64,256"]
    for shape in shapes:
        assert f"f32[{shape}]" in text
        assert not re.search(rf"= f32\[{shape}\][^=]* copy\(", text)
    aliased = re.search(r"input_output_alias=\{([^\n]*?)\}, entry", text)
    assert aliased is not None
    assert aliased[1].count("alias)") >= 2  # the caches, and what else has its type


def test_nothing_is_compiled_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle())
    engine = lm.Engine(path, lm.Backend.CPU(), max_batch=2)
    engine.generate(["a long prompt", "b", "c"], max_output_tokens=40)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        engine.generate(["another long prompt", "b", "c", "d"], max_output_tokens=50)
    assert not [r.message for r in caplog.records if "Compiling" in r.message]
