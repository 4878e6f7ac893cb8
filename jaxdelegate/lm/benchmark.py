"""How fast a bundle's language model reads and generates tokens, as `litert_lm.Benchmark`.

And how fast it does that for many prompts at once, each part apart.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.lm.completions import BenchmarkInfo
from jaxdelegate.lm.configs import ActivationDataType, SamplerConfig
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.interfaces import AbstractBenchmark, AnyBackend
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import Scheduler
from jaxdelegate.lm.stops import StopSequences
from jaxdelegate.lm.unsupported import refuse


class Benchmark(AbstractBenchmark):
    """Reads a prompt of some length, and generates tokens after it, whatever they are."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        backend: AnyBackend = None,
        prefill_tokens: int = 256,
        decode_tokens: int = 256,
        max_num_tokens: int | None = None,
        cache_dir: str | None = None,
        enable_speculative_decoding: bool | None = None,
        prompt: str = "How are you",
        *,
        options: Mapping[str, Any] | None = None,
        activation_data_type: ActivationDataType | None = None,
        kv_cache_dtype: str = "auto",
        **unsupported: Any,
    ) -> None:
        """Nothing is opened yet.

        Args:
            model_path: as in `Engine`, also the next one and `options`.
            backend: where it runs.
            prefill_tokens: of the prompt, at least 1.
            decode_tokens: to generate, at least 1.
            max_num_tokens: of the engine; None: `prefill_tokens` and `decode_tokens`.
            cache_dir: as in `Engine`.
            enable_speculative_decoding: how many proposals are right depends on the prompt.
            prompt: cut or filled with zeros to `prefill_tokens`.
            options: of JaxDelegate.
            activation_data_type: as in `Engine`.
            kv_cache_dtype: as in `Engine`.
            **unsupported: other arguments of `litert_lm`; None and False are accepted.

        Raises:
            OptionError: an argument is not supported.
        """
        refuse("Benchmark", unsupported)
        if min(prefill_tokens, decode_tokens) < 1:
            raise OptionError(
                "prefill_tokens, decode_tokens: expected at least 1, got "
                f"{prefill_tokens}, {decode_tokens}"
            )
        super().__init__(
            model_path=model_path,
            backend=backend,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            max_num_tokens=max_num_tokens,
            cache_dir=cache_dir,
            enable_speculative_decoding=enable_speculative_decoding,
            prompt=prompt,
            activation_data_type=activation_data_type,
            **unsupported,
        )
        self._open = functools.partial(
            Engine,
            model_path,
            backend,
            max_num_tokens=max_num_tokens or prefill_tokens + decode_tokens,
            options=options,
            cache_dir=cache_dir,
            enable_speculative_decoding=enable_speculative_decoding,
            activation_data_type=activation_data_type,
            kv_cache_dtype=kv_cache_dtype,
        )
        self._init_seconds = 0.0

    @functools.cached_property
    def engine(self) -> Engine:
        """The open engine, with its programs compiled. Errors as in `run`."""
        began = time.perf_counter()
        engine = self._open()
        needed = self.prefill_tokens + self.decode_tokens
        if needed > engine.max_num_tokens:
            raise OptionError(
                "prefill_tokens and decode_tokens: expected at most "
                f"{engine.max_num_tokens} tokens together (max_num_tokens), got {needed}"
            )
        self._measured(engine, 1)
        self._init_seconds = time.perf_counter() - began
        return engine

    def run(self) -> BenchmarkInfo:
        """Measure once; the first run opens the bundle and compiles its programs before.

        Raises:
            ModelError: as in `Engine`.
            OptionError: as in `Engine`, or the model's caches are too short.
        """
        return self._measured(self.engine, self.decode_tokens)

    def _measured(self, engine: Engine, count: int) -> BenchmarkInfo:
        runner = engine.new_runner(1, has_stops=False)
        ids = engine.tokenize(self.prompt)[: self.prefill_tokens]
        ids += [0] * (self.prefill_tokens - len(ids))
        runner.cache.wait()
        began = time.perf_counter()
        runner.prefill(0, ids)
        runner.cache.wait()
        read = time.perf_counter()
        runner.begin(0, Request(ids, count, SamplingParams(SamplerConfig(top_k=1))))
        runner.decode(1)
        first = time.perf_counter()
        while not runner.is_resting(0):
            runner.decode()
        ended = time.perf_counter()
        return BenchmarkInfo(
            init_time_in_second=self._init_seconds,
            time_to_first_token_in_second=first - began,
            last_prefill_token_count=len(ids),
            last_prefill_tokens_per_second=len(ids) / (read - began),
            last_decode_token_count=count,
            last_decode_tokens_per_second=count / (ended - read),
        )


@dataclasses.dataclass(frozen=True)
class BatchTimes:
    """Many prompts at once, as in `Engine.generate`, which does all three parts.

    Attributes:
        caches_s: seconds until their caches were there.
        prompts_s: then until all prompts were read, but their last tokens.
        answers_s: then until all answers had ended.
        prompt_tokens: that were read; those of a beginning that prompts share count once.
        answer_tokens: that were generated.
    """

    caches_s: float
    prompts_s: float
    answers_s: float
    prompt_tokens: int
    answer_tokens: int

    @property
    def prompt_tokens_per_s(self) -> float:
        """Without caches and answers."""
        return self.prompt_tokens / self.prompts_s

    @property
    def answer_tokens_per_s(self) -> float:
        """Without caches and prompts."""
        return self.answer_tokens / self.answers_s


def batch_times(
    engine: Engine, prompts: Sequence[Sequence[int]], count: int, *, shares: bool = False
) -> BatchTimes:
    """Continue prompts greedily by `count` tokens each, whatever these are, all at once.

    The first run of an engine also compiles or loads its programs. Errors as `Engine.generate`.
    If it `shares`, prompts use what caches have of each other.
    """
    began = time.perf_counter()
    runner = engine.new_runner(len(prompts), has_stops=False)
    runner.cache.wait()
    made = time.perf_counter()
    scheduler = Scheduler(runner, StopSequences(()), is_streamed=False)
    greedy = SamplingParams(SamplerConfig(top_k=1))
    joined = [
        scheduler.join(Request(ids, count, greedy, owner=None if shares else number))
        for number, ids in enumerate(prompts)
    ]
    while scheduler.prefill():
        pass
    runner.cache.wait()
    read = time.perf_counter()
    while scheduler.free < scheduler.slots:
        scheduler.decode()
    ended = time.perf_counter()
    return BatchTimes(
        made - began,
        read - made,
        ended - read,
        sum(len(active.request.ids) - 1 - active.reused for active in joined),
        sum(len(active.tokens) for active in joined),
    )
