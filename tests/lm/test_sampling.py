"""The choice of tokens, compared with definitions in numpy."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.lm.configs import (
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
)
from jaxdelegate.lm.sampler import next_token
from jaxdelegate.lm.sampling_params import SamplingParams, common_variant

VOCABULARY, CAPACITY = 50, 32


@functools.cache
def compiled(variant: Any) -> Any:
    return jax.jit(functools.partial(next_token, variant))


def chosen(
    params: SamplingParams, logits: Any, answer: Any = (), *, scores: bool = False
) -> tuple[int, float]:
    variant = params.variant(VOCABULARY, scores)
    padded = np.full(CAPACITY, 7, np.int32)  # the rest must not count
    padded[: len(answer)] = answer
    arguments = np.float32(logits), padded, np.int32(len(answer))
    token, score, *_ = compiled(variant)(params.arrays(variant, VOCABULARY), *arguments)
    return int(token), float(score)


@pytest.fixture
def logits(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, 2, VOCABULARY).astype(np.float32)


@pytest.mark.parametrize(
    "config",
    [
        SamplerConfig(),
        SamplerConfig(top_k=1),
        SamplerConfig(top_k=40, temperature=0),
        SamplerConfig(top_k=40, top_p=0),
    ],
)
def test_the_most_likely_token(config: SamplerConfig, logits: np.ndarray) -> None:
    assert chosen(SamplingParams(config), logits)[0] == logits.argmax()
    logits[[3, 9]] = logits.max() + 1
    assert chosen(SamplingParams(config), logits)[0] == 3  # the first of equal ones


def test_scores_are_those_of_the_models_logits(logits: np.ndarray) -> None:
    suppressed = SamplingParams(suppressed=SuppressTokensConfig([int(logits.argmax())]))
    chances = logits - np.log(np.exp(np.float64(logits)).sum())
    for params in (SamplingParams(), suppressed):
        token, score = chosen(params, logits, scores=True)
        assert score == pytest.approx(chances[token], abs=1e-5)


def frequencies(config: SamplerConfig, logits: np.ndarray, count: int = 4000) -> np.ndarray:
    """How often each token is chosen, at as many places."""
    params = SamplingParams(config)
    variant = params.variant(VOCABULARY)
    sampling = params.arrays(variant, VOCABULARY)
    answer = np.zeros(CAPACITY, np.int32)
    run = jax.jit(
        jax.vmap(lambda n: next_token(variant, sampling, np.float32(logits), answer, n)[0])
    )
    return np.bincount(run(np.arange(count, dtype=np.int32)), minlength=VOCABULARY) / count


def definition(k: int, p: float, temperature: float, logits: np.ndarray) -> np.ndarray:
    """The probabilities after top k, temperature and top p."""
    order = np.argsort(-logits, kind="stable")[:k]
    scaled = np.float64(logits[order]) / temperature
    chances = np.exp(scaled - scaled.max())
    chances /= chances.sum()
    kept = np.cumsum(chances) - chances < p
    found = np.zeros(VOCABULARY)
    found[order[kept]] = chances[kept] / chances[kept].sum()
    return found


@pytest.mark.parametrize(
    ("k", "p", "temperature"),
    [(5, 1.0, 1.0), (50, 0.6, 1.0), (20, 0.9, 2.5), (3, 0.95, 0.3), (50, 1.0, 1.0)],
)
def test_random_tokens_have_their_probabilities(
    k: int, p: float, temperature: float, logits: np.ndarray
) -> None:
    got = frequencies(SamplerConfig(k, p, temperature, 11), logits)
    want = definition(k, p, temperature, logits)
    assert not got[want == 0].any()
    deviation = np.sqrt(want * (1 - want) / 4000)
    assert (np.abs(got - want) <= 5 * deviation + 1e-9).all()


def test_a_seed_and_a_place_decide(logits: np.ndarray) -> None:
    def tokens(seed: int) -> list[int]:
        params = SamplingParams(SamplerConfig(40, 1.0, 1.0, seed))
        return [chosen(params, logits, [1] * n)[0] for n in range(20)]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_penalties(logits: np.ndarray) -> None:
    answer = [4, 4, 9, 4, 30]
    logits[[4, 9, 30]] = 3, -0.1, 4
    for config in (
        RepetitionPenaltyConfig(1.7),
        RepetitionPenaltyConfig(presence_penalty=1.5),
        RepetitionPenaltyConfig(frequency_penalty=1.2),
        RepetitionPenaltyConfig(1.3, 0.5, 0.7),
        RepetitionPenaltyConfig(3.0, 5.0, window_size=2),
    ):
        counted = answer[-config.window_size :] if config.window_size else answer
        want = logits.copy()
        for token in set(counted):
            factor = config.repetition_penalty or 1
            want[token] = want[token] / factor if want[token] > 0 else want[token] * factor
            want[token] -= config.presence_penalty or 0
            want[token] -= (config.frequency_penalty or 0) * counted.count(token)
        order = np.argsort(-want)
        for better in range(0, 40, 3):  # each token may be the best of those that are left
            suppressed = SuppressTokensConfig(order[:better].tolist())
            params = SamplingParams(penalties=config, suppressed=suppressed)
            assert chosen(params, logits, answer)[0] == order[better]


def test_ngrams_do_not_repeat() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[3, 8]] = 2, 1
    answer = [1, 2, 3, 5, 1, 2]

    def token(size: int, window: int = 0) -> int:
        return chosen(SamplingParams(ngrams=NoRepeatNgramConfig(size, window)), logits, answer)[0]

    assert token(3) == 8  # 1 2 3 was there
    assert token(2) == 8
    assert token(4) == 3
    assert token(0) == 3
    assert token(3, window=5) == 3  # its 1 is too far back
    assert token(3, window=6) == 8
    assert token(1) == 8  # no token twice


def test_suppressed_tokens_are_not_chosen(logits: np.ndarray) -> None:
    order = np.argsort(-logits)
    params = SamplingParams(suppressed=SuppressTokensConfig([*order[:3].tolist(), 10**6]))
    assert chosen(params, logits)[0] == order[3]


def test_biases_are_added(logits: np.ndarray) -> None:
    order = np.argsort(-logits).tolist()
    gap = float(logits[order[0]] - logits[order[5]])
    for bias, expected in ((gap + 0.1, order[5]), (gap - 0.1, order[0])):
        assert chosen(SamplingParams(bias=((order[5], bias),)), logits)[0] == expected
    both = SamplingParams(bias=((order[0], 100.0),), suppressed=SuppressTokensConfig([order[0]]))
    assert chosen(both, logits)[0] == order[1]


@pytest.mark.parametrize("k", [20, VOCABULARY])
def test_min_p_leaves_out_what_is_unlikely(k: int, logits: np.ndarray) -> None:
    temperature = 2.0
    chances = np.exp((np.float64(logits) - logits.max()) / temperature)
    least = float(np.sort(chances)[-4] * 0.999)
    params = SamplingParams(SamplerConfig(k, 1.0, temperature, 1), min_p=least)
    tokens = {chosen(params, logits, [1] * n)[0] for n in range(30)}
    tokens |= {
        chosen(dataclasses.replace(params, sampler=SamplerConfig(k, 1.0, temperature, n)), logits)[
            0
        ]
        for n in range(200)
    }
    assert tokens == {*np.flatnonzero(chances >= least).tolist()}


def test_late_tokens_are_not_chosen_early(logits: np.ndarray) -> None:
    order = np.argsort(-logits).tolist()
    params = SamplingParams(late=(order[0], order[1], 10**6), min_tokens=3)
    tokens = [chosen(params, logits, [30] * n)[0] for n in range(5)]
    assert tokens == [order[2]] * 3 + [order[0]] * 2


def test_parameters_that_a_program_does_not_read() -> None:
    """Those of a slot that rests, while others run a program without logits processors."""
    params = SamplingParams(
        suppressed=SuppressTokensConfig([3]), bias=((4, 1.0),), late=(5,), min_tokens=2
    )
    arrays = params.arrays(SamplingParams().variant(VOCABULARY), VOCABULARY)
    assert arrays.suppressed.shape == arrays.late.shape == (0,)


def test_all_tokens_in_a_process_with_64_bits(logits: np.ndarray) -> None:
    params = SamplingParams(SamplerConfig(VOCABULARY, 0.9, 1.0, 3))
    expected = chosen(params, logits)
    variant = params.variant(VOCABULARY)
    with jax.enable_x64(True):
        arguments = params.arrays(variant, VOCABULARY), logits, np.zeros(CAPACITY, np.int32)
        token, *_ = jax.jit(functools.partial(next_token, variant))(*arguments, np.int32(0))
    assert int(token) == expected[0]


def test_one_program_serves_several_rules(logits: np.ndarray) -> None:
    """Sequences share a program: each follows its own parameters."""
    several = [
        SamplingParams(),
        SamplingParams(SamplerConfig(3, 1.0, 1.0, 5)),
        SamplingParams(SamplerConfig(40, 0.5, 2.0, 6), RepetitionPenaltyConfig(1.5)),
        SamplingParams(suppressed=SuppressTokensConfig([int(logits.argmax())])),
        SamplingParams(SamplerConfig(40, 0.9, 2.0, 3), bias=((3, 2.0),), min_p=0.2),
        SamplingParams(late=(int(logits.argmax()),), min_tokens=4),
    ]
    variant = common_variant([params.variant(VOCABULARY) for params in several])
    answer = np.zeros(CAPACITY, np.int32)
    for params in several:
        sampling = params.arrays(variant, VOCABULARY)
        for count in range(20):
            token, *_ = compiled(variant)(sampling, logits, answer, np.int32(count))
            assert int(token) == chosen(params, logits, [0] * count)[0]


@pytest.mark.parametrize("config", [SamplerConfig(20, 1.0), SamplerConfig(20, 0.6, 3.0)])
def test_a_sequence_that_needs_all_tokens_changes_no_other(
    config: SamplerConfig, logits: np.ndarray
) -> None:
    """The first of equal logits are kept."""
    own, everything = (
        SamplingParams(config).variant(VOCABULARY),
        SamplingParams(SamplerConfig(VOCABULARY)),
    )
    both = common_variant([own, everything.variant(VOCABULARY)])
    assert own.k < both.k == VOCABULARY
    tied = np.round(logits)
    assert len({*tied}) < 20
    answer = np.zeros(CAPACITY, np.int32)
    for count in range(100):
        alone, together = (
            compiled(v)(
                SamplingParams(config).arrays(v, VOCABULARY), tied, answer, np.int32(count)
            )[0]
            for v in (own, both)
        )
        assert alone == together


def test_how_many_tokens_are_sorted_decides_nothing() -> None:
    """Also where equal logits have together just `top_p`, which sums of floats miss or exceed."""
    rng, size = np.random.default_rng(0), 400
    sampler = SamplerConfig(top_k=40, top_p=0.95, temperature=1.0, seed=0)
    params, seeds = SamplingParams(sampler), np.arange(3000, dtype=np.uint32)
    logits = np.full((len(seeds), size), -20, np.float32)
    for row in logits:
        row[rng.choice(size, 40, replace=False)] = 0

    def tokens(k: int) -> list[int]:
        variant = dataclasses.replace(params.variant(size), k=k)
        sampling, none = params.arrays(variant, size), np.zeros(0, np.int32)

        def one(seed: Any, row: Any) -> Any:
            own = sampling._replace(seed=seed)
            return next_token(variant, own, row, none, np.int32(3)).token

        return np.asarray(jax.jit(jax.vmap(one))(seeds, logits)).tolist()

    assert tokens(64) == tokens(256) == tokens(size)


def test_ngrams_of_several_sizes_share_no_program() -> None:
    several = [SamplingParams(), SamplingParams(ngrams=NoRepeatNgramConfig(3))]
    with pytest.raises(ValueError, match="one no_repeat_ngram_size"):
        common_variant([params.variant(VOCABULARY) for params in several])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SamplerConfig(top_k=0), "top_k"),
        (lambda: SamplerConfig(top_p=1.5), "top_p"),
        (lambda: SamplerConfig(temperature=float("nan")), "temperature"),
        (lambda: RepetitionPenaltyConfig(0.5), "repetition_penalty"),
        (lambda: RepetitionPenaltyConfig(window_size=-1), "window_size"),
        (lambda: NoRepeatNgramConfig(-1), "no_repeat_ngram_size"),
        (lambda: SuppressTokensConfig([-3]), "suppress_tokens"),
    ],
)
def test_values_out_of_range(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
