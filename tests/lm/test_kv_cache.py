"""Whose tokens the entries of a KV cache are, and how its arrays grow."""

import dataclasses
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.kv_cache import KVCache, _resized
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.pjrt import client
from tests.support.language_models import language_model

CAPACITY = 1024


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    content = language_model(capacity=CAPACITY)
    return LanguageModel(content, "model", {}, {"platform": "cpu"}, None, ":nocache")


def new_cache(model: LanguageModel) -> KVCache:
    return KVCache(model.graph, 2, model.runtime)


def test_a_new_prompt_reuses_the_common_prefix(model: LanguageModel) -> None:
    cache = new_cache(model)
    cache.set(0, [5, 6, 7, 8])
    assert cache.ids(0) == [5, 6, 7, 8]
    assert cache.entries == 3  # the last token has none yet
    assert cache.prefix(0, [5, 6, 7, 8]) == 3
    assert cache.prefix(0, [5, 6, 9, 8]) == 2
    assert cache.prefix(0, [9]) == cache.prefix(1, [5, 6, 7]) == 0
    assert cache.prefix(0, [5, 6]) == 1  # the last token of a prompt is processed again
    cache.hold(0, [5, 6, 9, 8], 2)
    assert cache.ids(0) == [5, 6, 9]


def test_a_full_sequence_gives_its_last_entry_up(model: LanguageModel) -> None:
    """It goes on writing that one while it rests."""
    cache, ids = new_cache(model), [5] * (CAPACITY + 1)
    cache.set(0, ids)
    assert cache.prefix(0, ids) == CAPACITY - 1


@pytest.mark.parametrize(("most", "kept"), [(None, 6), (4, 6), (3, 0), (0, 0)])
def test_entries_that_later_tokens_have_overwritten(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, most: int | None, kept: int
) -> None:
    """A window forgets old entries, and a recurrent state goes back nowhere."""
    monkeypatch.setattr(LanguageGraph, "max_rewind", most)
    cache, ids = new_cache(model), [*range(5, 12)]
    cache.set(0, ids)  # 6 entries
    cache.append(0, [20, 21], rejected=2)  # 8, and 2 of rejected tokens
    assert cache.prefix(0, [*ids[:-1], 99]) == kept
    cache.truncate(0, len(ids))
    assert cache.is_intact(0) == bool(kept)
    cache.hold(0, ids, 0)
    cache.set(0, ids)
    assert cache.is_intact(0)


def test_what_resting_slots_write(model: LanguageModel) -> None:
    """An entry that no one reads: the next one, or where there is no room the last one again."""
    cache = new_cache(model)
    cache.set(0, [5] * 256 + [6])
    cache.set(1, [7, 8])
    for length, active, place in ((256, (1,), 255), (256, (0, 1), 256), (512, (1,), 256)):
        token, position = cache.last_tokens(length, active)
        assert position.tolist() == [place, 1]
        assert token.tolist() == [5 if place == 255 else 6, 8]


def test_growing_keeps_the_entries(model: LanguageModel) -> None:
    cache = new_cache(model)
    assert cache.length == 256
    filled = [np.random.default_rng(0).random(a.shape).astype(a.dtype) for a in cache.arrays]
    cache.replace(model.runtime, 256, [model.runtime.put(a) for a in filled])
    assert cache.on(model.runtime, 256) is cache.arrays
    for length in (512, 256):  # longer, and short again
        arrays = cache.on(model.runtime, length)
        cache.replace(model.runtime, length, arrays)
        for array, before in zip(map(client.viewed, arrays), filled, strict=True):
            kept = tuple(map(slice, before.shape))
            np.testing.assert_array_equal(array[kept], before)
            assert array.sum() == pytest.approx(before.sum())  # zeros after them


def test_other_devices_grow_without_the_host(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their arrays are jax's; numpy never sees them."""
    cache, array = new_cache(model), jnp.arange(6.0).reshape(2, 3)
    grown: Any = _resized(jnp, array, (2, 5))
    assert not isinstance(grown, np.ndarray)
    np.testing.assert_array_equal(grown, [[0, 1, 2, 0, 0], [3, 4, 5, 0, 0]])

    @dataclasses.dataclass
    class Elsewhere:
        platform = "gpu"

    runtime: Any = mock.Mock(device=Elsewhere())
    cache.replace(runtime, 256, [jnp.asarray(client.viewed(a)) for a in cache.arrays])
    monkeypatch.setattr("jaxdelegate.lm.kv_cache.viewed", mock.Mock(side_effect=AssertionError))
    shapes = {a.shape for a in cache.on(runtime, 512)}
    assert shapes == {tuple(2 * n if n == 256 else n for n in a.shape) for a in cache.arrays}
    assert not runtime.put.called
