"""Whose tokens the entries of a KV cache are, and how its arrays grow."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import DeviceMemoryError
from jaxdelegate.lm import cache_memory
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.kv_cache import KVCache, common_length
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.program_spec import Array, ProgramSpec, host_inputs, host_outputs
from jaxdelegate.pjrt import client
from tests.support.language_models import language_bundle, language_model

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


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_common_beginning(kind: type) -> None:
    ids = [*range(100)]
    for count in (0, 1, 31, 32, 33, 64, 99, 100):
        for other in (ids[:count], [*ids[:count], -1], [*ids[:count], -1, *ids[count + 1 :]]):
            assert common_length(ids, kind(other)) == common_length(kind(other), ids) == count


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


@pytest.mark.parametrize("on_device", [False, True])
def test_growing_keeps_the_entries(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, *, on_device: bool
) -> None:
    monkeypatch.setattr(cache_memory, "is_on_device", lambda _: on_device)
    runtime = client.of_jax(jax.devices("cpu")[0])
    cache = KVCache(model.graph, 2, runtime)
    assert cache.length == 256
    filled = [np.random.default_rng(0).random(a.shape).astype(a.dtype) for a in cache.arrays]
    cache.replace(runtime, 256, [runtime.put(a) for a in filled])
    cache.set(0, [5] * 200)
    assert cache.on(runtime, 256) is cache.arrays
    for length in (512, 256):  # longer, and short again
        arrays = cache.on(runtime, length)
        cache.replace(runtime, length, arrays)
        for array, before in zip(map(client.viewed, arrays), filled, strict=True):
            kept = tuple(map(slice, before.shape))
            np.testing.assert_array_equal(array[kept], before)
            assert array.sum() == pytest.approx(before.sum())  # zeros after them


def test_caches_that_cannot_grow(model: LanguageModel) -> None:
    cache = new_cache(model)
    cache.set(0, [5] * 200)
    full = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")
    with (
        mock.patch("jaxdelegate.lm.kv_cache.resized", side_effect=full),
        pytest.raises(DeviceMemoryError, match=r"caches of 512 tokens .* take 0\.1 MB"),
    ):
        cache.on(model.runtime, 512)
    assert cache.length == 256


def test_caches_without_entries_are_not_copied(model: LanguageModel) -> None:
    cache = new_cache(model)
    with mock.patch("jaxdelegate.lm.kv_cache.resized", side_effect=AssertionError):
        assert not any(client.viewed(array).any() for array in cache.on(model.runtime, 512))


class Transfers:
    """What is copied between host and device: bytes and arrays."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.put, self.fetched = [0, 0], [0, 0]

    def count(self, total: list[int], array: Any) -> None:
        total[0] += array.nbytes
        total[1] += 1


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Transfers:
    """Those of a CPU whose caches are made as on other devices."""
    found = Transfers()
    own_put, own_viewed, own_run = client.Runtime.put, client.viewed, LanguageModel.run

    def put(runtime: client.Runtime, array: Any) -> Any:
        found.count(found.put, array)
        return own_put(runtime, array)

    def viewed(array: Any) -> np.ndarray:
        found.count(found.fetched, array)
        return own_viewed(array)

    def run(model: LanguageModel, spec: ProgramSpec, arguments: Any) -> Any:
        def counted(runtime: client.Runtime) -> Any:
            values = arguments(runtime)
            for value in values:
                if isinstance(value, np.ndarray):
                    found.count(found.put, value)
            return values

        return own_run(model, spec, counted)

    monkeypatch.setattr(client.Runtime, "put", put)
    monkeypatch.setattr(cache_memory, "viewed", viewed)
    monkeypatch.setattr(LanguageModel, "run", run)
    monkeypatch.setattr(cache_memory, "is_on_device", lambda runtime: runtime.has_jax)
    return found


def test_only_one_array_of_a_run_is_copied_each_way(transfers: Transfers, tmp_path: Path) -> None:
    """No caches pass through the host, neither when they are made nor when they grow."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(capacity=CAPACITY, prefill=(64,))))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache") as engine:
        prompts = [[5] * 240, [6] * 250]
        first = engine.generate(prompts, max_output_tokens=40)
        assert {s.length for s in engine._model._programs._entries} == {256, 512}  # they grew
        runs = list[ProgramSpec]()
        own_started = ModelRunner._started

        def started(runner: ModelRunner, spec: ProgramSpec, values: Any) -> Any:
            runs.append(spec)
            return own_started(runner, spec, values)

        transfers.reset()
        with mock.patch.object(ModelRunner, "_started", started):
            again = engine.generate(prompts, max_output_tokens=40)
        graph = engine.graph
        taken = [host_inputs(graph, spec, graph.step(spec.step)) for spec in runs]
        read = [r for spec in runs if (r := host_outputs(graph, spec))]
    assert [c.token_ids for c in again] == [c.token_ids for c in first]
    assert {spec.kind for spec in runs} == {"prefill", "decode"}
    assert transfers.put == [sum(map(packed_bytes, taken)), len(taken)]
    assert transfers.fetched == [sum(map(packed_bytes, read)), len(read)]


def packed_bytes(arrays: Sequence[Array]) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
