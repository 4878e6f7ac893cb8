"""With `batch_invariant` an answer is bit for bit that of its request alone."""

import collections
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.kv_cache import KVCache, ReadStep
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.program_spec import ProgramSpecs
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from tests.support.decoder_families import FAMILIES, decoder
from tests.support.language_models import VOCABULARY, drafter_bundle, language_bundle

SLOTS, STEP = 8, 32
Answer = tuple[Any, ...]
OpenScheduler = Callable[[], Scheduler]


def engine_of(path: Path, model: bytes) -> lm.Engine:
    path.write_bytes(language_bundle(model=model))
    more: dict[str, Any] = {"cache_dir": ":nocache", "batch_invariant": True}
    return lm.Engine(path, lm.Backend.CPU(), max_batch=SLOTS, **more)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    content = decoder(FAMILIES["gemma3"], capacity=128, prefill=(8, STEP))
    with engine_of(tmp_path_factory.mktemp("lm") / "model.litertlm", content) as engine:
        yield engine


_GREEDY = SamplingParams()


def mixed_requests(count: int, longest: int, seed: int = 0) -> list[Request]:
    """Greedy and seeded ones, with scores or without, with beginnings in common and repeated."""
    rng = random.Random(seed)

    def words(most: int) -> list[int]:
        return [rng.randrange(5, VOCABULARY) for _ in range(rng.randrange(1, most))]

    begins = [[1, *words(longest)] for _ in range(4)] + [[1] * STEP, [1] * (STEP + 1)]
    found = list[Request]()
    for number in range(count):
        ids = [*rng.choice(begins), *(words(40) if number % 5 else ())][: 2 * longest]
        begins += [ids] if number % 8 == 0 else []
        found.append(_request(ids, number, rng))
    return found


def _request(ids: list[int], number: int, rng: random.Random) -> Request:
    sampler = lm.SamplerConfig(
        rng.choice([5, 8]), rng.choice([0.8, 1.0]), rng.choice([0.7, 1.5]), rng.randrange(99)
    )
    return Request(
        ids,
        rng.randrange(1, 16),
        SamplingParams(sampler) if number % 2 else _GREEDY,
        has_scores=number % 3 == 0,
        top=3 if number % 3 == 0 else 0,
        prompt_top=2 if number % 29 == 13 else None,
    )


def answer_of(active: ActiveRequest) -> Answer:
    """What must be equal, also the bits of log probabilities."""
    scores = np.array(active.scores, np.float32).tobytes()
    more = repr(active.tops), repr(active.prompt_scores), active.finish_reason
    return active.tokens, scores, *more


def alone(open_scheduler: OpenScheduler, requests: Sequence[Request]) -> list[Answer]:
    """Each by a scheduler that has had no other one."""
    return [among(open_scheduler(), [request])[0] for request in requests]


def among(scheduler: Scheduler, requests: Sequence[Request], seed: int = 0) -> list[Answer]:
    """All in random order; each joins when a slot is free, or later."""
    rng, active = random.Random(seed), dict[int, ActiveRequest]()
    order = rng.sample(range(len(requests)), len(requests))
    waiting = collections.deque(order)
    while waiting or scheduler.free < scheduler.slots:
        while waiting and scheduler.free and rng.random() < 0.7:
            number = waiting.popleft()
            active[number] = scheduler.join(requests[number])
        scheduler.step()
    return [answer_of(active[number]) for number in range(len(requests))]


def test_answers_are_those_of_requests_alone(engine: lm.Engine) -> None:
    requests = mixed_requests(200, 48)
    open_scheduler = functools.partial(engine.new_scheduler, SLOTS)
    assert among(open_scheduler(), requests) == alone(open_scheduler, requests)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_thousand_requests_twice(tmp_path: Path) -> None:
    """With caches that grow, and programs that a thread compiles meanwhile."""
    requests = mixed_requests(1000, 140)
    content = decoder(FAMILIES["gemma2"], capacity=300, prefill=(8, STEP))
    with engine_of(tmp_path / "model.litertlm", content) as engine:
        open_scheduler = functools.partial(engine.new_scheduler, SLOTS)
        wanted = alone(open_scheduler, requests)
        compiler = engine.new_background_compiler()
        for seed in range(2):
            assert among(engine.new_scheduler(SLOTS, compiler), requests, seed) == wanted
        compiler.close()


def test_generate_has_the_programs_of_all_slots(engine: lm.Engine) -> None:
    prompts = [[1, 70 + n, *[90 - n] * 20 * n] for n in range(5)]
    generate = functools.partial(engine.generate, max_output_tokens=9, log_probabilities=True)
    together = generate(prompts)
    found = [generate([prompt])[0] for prompt in prompts]
    for one, other in zip(found, together, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probabilities == other.log_probabilities
    if engine.graph.hidden_size:
        states = engine.hidden_states(prompts)
        np.testing.assert_array_equal(engine.hidden_states(prompts[:1]), states[:1])


def test_a_message_after_an_answer_reads_the_answer(engine: lm.Engine) -> None:
    """Decode steps wrote its entries: only whole steps before it are reused, in the same slot."""
    scheduler = engine.new_scheduler(SLOTS)
    first = Request([1, *range(70, 110)], 30, SamplingParams())
    (before,) = joined = [scheduler.join(first)]
    finish(scheduler, joined)
    ids = [*first.ids, *before.tokens, 80, 81, 82]
    again = scheduler.join(dataclasses.replace(first, ids=ids))
    finish(scheduler, [again])
    assert (again.slot, again.reused) == (before.slot, STEP)
    assert [answer_of(again)] == alone(lambda: engine.new_scheduler(SLOTS), [again.request])


def finish(scheduler: Scheduler, active: Sequence[ActiveRequest]) -> None:
    while any(one.finish_reason is None for one in active):
        scheduler.step()


# ---- what is reused


@pytest.fixture
def cache(engine: lm.Engine) -> KVCache:
    """That of a runner, in whose first slot three steps have read 85 tokens."""
    runner = engine.new_runner(2)
    steps = runner.prefill_steps(0, IDS[:86])
    assert [step.length for step in steps] == [STEP] * 3
    for step in steps:
        runner.cache.read(step.slot, step.ids, step.length)
    return runner.cache


IDS = [1, *range(100, 220)]


@pytest.mark.parametrize(
    ("ids", "reused"),
    [
        (IDS[:86], 85),  # the same prompt
        (IDS[:106], 2 * STEP),  # its third step would read more
        ([*IDS[:85], 7, 7], 2 * STEP),
        (IDS[:81], 80),  # its last step would read a part of that
        ([*IDS[:63], 7], 63),
        ([*IDS[:62], 7, 7], STEP),
        ([*IDS[:70], 7, 7, 7], 2 * STEP),  # steps of 8 would follow
        ([*IDS[:40], 7], STEP),
        (IDS[:8], 0),  # a step of 8
        ([*IDS[:31], 7, 7], 0),
    ],
)
def test_only_what_the_same_steps_have_written_is_reused(
    ids: list[int], reused: int, cache: KVCache
) -> None:
    assert cache.prefix(0, ids) == reused
    cache.copy(0, 1, reused)
    assert cache.prefix(1, ids) == reused


def test_what_decode_steps_write_is_not_reused(cache: KVCache) -> None:
    cache.append(0, IDS[86:110])
    assert cache.prefix(0, IDS[:120]) == 2 * STEP
    cache.truncate(0, 50)
    cache.append(0, IDS[50:110])
    assert cache.prefix(0, IDS[:86]) == STEP
    cache.hold(0, IDS, STEP)
    cache.append(0, IDS[STEP + 1 : 110])
    assert cache.prefix(0, IDS[:86]) == STEP


def test_what_later_steps_will_write(cache: KVCache) -> None:
    cache.hold(0, IDS, STEP)
    more = [ReadStep(STEP, 2 * STEP), ReadStep(STEP, 85)]
    assert [cache.reusable(0, 85, 85, more[:n]) for n in range(3)] == [STEP, 2 * STEP, 85]
    assert cache.reusable(0, 85, 85, [ReadStep(8, 40)]) == STEP


def test_caches_hold_what_a_resting_slot_writes(engine: lm.Engine) -> None:
    """Otherwise it would write its last entry again, as a decode step computes it."""
    graph = engine.graph
    plain = KVCache(graph, 1, engine._model.runtime)
    cache = KVCache(graph, 1, engine._model.runtime, lambda _: [])
    for length, more in ((0, 0), (1, 1), (100, 1), (graph.capacity, 1), (graph.capacity + 1, 0)):
        for each in (plain, cache):
            each.set(0, [5] * length)
        assert cache.entries - plain.entries == more


# ---- which programs run


def test_steps_are_short_and_prompts_read_one_by_one() -> None:
    content = decoder(FAMILIES["llama"], capacity=256, prefill=(8, 64, 128, 256))
    graph = LanguageModel(content, "model", {}, {"platform": "cpu"}, None, ":nocache").graph
    for is_invariant, steps, prompts in ((False, [256], 8), (True, [128, 64], 1)):
        specs = ProgramSpecs(graph, SLOTS, (), "gpu", is_invariant=is_invariant)
        assert specs.plan(190) == steps
        assert specs.prompts(8) == prompts
        lengths = {specs.prefill(n, 256).step for n in specs.lengths}
        assert {s.step for s in specs.needed(256, None) if s.kind == "prefill"} == lengths


def test_steps_that_are_all_long() -> None:
    content = decoder(FAMILIES["llama"], capacity=512, prefill=(256, 512))
    graph = LanguageModel(content, "model", {}, {"platform": "cpu"}, None, ":nocache").graph
    assert ProgramSpecs(graph, SLOTS, (), is_invariant=True).lengths == (256,)


def test_one_request_has_the_program_of_all(engine: lm.Engine) -> None:
    assert not engine.new_runner(SLOTS).gains_alone


def test_a_drafter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(drafter_bundle())
    with pytest.raises(OptionError, match=r"enable_speculative_decoding.*batch_invariant"):
        lm.Engine(path, batch_invariant=True, enable_speculative_decoding=True)
    with (
        lm.Engine(path, batch_invariant=True) as engine,
        pytest.raises(OptionError, match=r"enable_speculative_decoding.*batch_invariant"),
    ):
        engine.create_session(enable_speculative_decoding=True)
