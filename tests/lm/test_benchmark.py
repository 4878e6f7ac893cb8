"""`lm.Benchmark`, as `litert_lm.Benchmark`."""

import time
from pathlib import Path

import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.lm import Backend, Benchmark, Engine
from jaxdelegate.lm.benchmark import batch_times
from tests.support.language_models import VOCABULARY, language_bundle


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A bundle in which every token ends an answer."""
    found = tmp_path / "tiny.litertlm"

    def stops(m: object) -> None:
        for i in range(VOCABULARY):
            m.stop_tokens.add().token_ids.ids.append(i)  # type: ignore[attr-defined]

    found.write_bytes(language_bundle(edit=stops))
    return str(found)


def test_all_tokens_are_generated_in_every_run(path: str) -> None:
    benchmark = Benchmark(path, Backend.CPU(), 24, 40, prompt="a prompt")
    infos = [benchmark.run() for _ in range(2)]
    assert infos[0].init_time_in_second == infos[1].init_time_in_second > 0
    for info in infos:
        assert (info.last_prefill_token_count, info.last_decode_token_count) == (24, 40)
        prefill = 24 / info.last_prefill_tokens_per_second
        decode = 40 / info.last_decode_tokens_per_second
        # Nothing is compiled in a run, and no run has the caches of another one.
        assert 0 < prefill < info.time_to_first_token_in_second < prefill + decode
        assert prefill + decode < info.init_time_in_second


def test_parts_of_many_prompts(path: str) -> None:
    with Engine(path, Backend.CPU(), max_batch=3, cache_dir=":nocache") as engine:
        prompts = [[5] * n for n in (3, 20, 30)]
        batch_times(engine, prompts, 12)
        began = time.perf_counter()
        times = batch_times(engine, prompts, 12)
        whole = time.perf_counter() - began
        shared = batch_times(engine, prompts, 12, shares=True)
    assert (times.prompt_tokens, times.answer_tokens) == (50, 36)
    assert (shared.prompt_tokens, shared.answer_tokens) == (31, 36)  # 19, then 10 and 2
    parts = times.caches_s, times.prompts_s, times.answers_s
    assert min(parts) > 0
    assert sum(parts) <= whole
    assert times.prompt_tokens_per_s == 50 / times.prompts_s
    assert times.answer_tokens_per_s == 36 / times.answers_s


def test_mistakes_are_named(path: str) -> None:
    with pytest.raises(OptionError, match=r"expected at most 128 tokens .*, got 512"):
        Benchmark(path).run()
    with pytest.raises(OptionError, match="expected at least 1, got 0, 5"):
        Benchmark(path, prefill_tokens=0, decode_tokens=5)
    with pytest.raises(OptionError, match=r"enable_speculative_decoding: .* 'mtp_drafter', which"):
        Benchmark(path, enable_speculative_decoding=True).run()
