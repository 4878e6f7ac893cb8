"""A session: a text that grows, by prompts and by the model's answers."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.completions import BenchmarkInfo, FinishReason, Responses, Timing
from jaxdelegate.lm.configs import output_limit
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.interfaces import AbstractSession
from jaxdelegate.lm.messages import Content, Contents
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import Scheduler
from jaxdelegate.lm.text_processor import TextProcessor
from jaxdelegate.lm.text_stream import TextStream
from jaxdelegate.lm.thinking import ThinkingBudget


class Answer:
    """One answer while it is generated; its parts are yielded as they come.

    Attributes:
        tokens: without the stop.
        finish_reason: why it has ended.
        first_token_at: by time.perf_counter, like the next one.
        ended_at: when the last token came.
    """

    def __init__(
        self, text: TextProcessor, runner: ModelRunner, cancelled: threading.Event
    ) -> None:
        """`runner`: of one slot, which has the prompt."""
        self._text, self._runner, self._cancelled = text, runner, cancelled
        self.tokens: Sequence[int] = ()
        self.finish_reason: FinishReason | None = None
        self.first_token_at = self.ended_at = 0.0

    def parts(
        self,
        limit: int | None,
        params: SamplingParams,
        constraint: Constraint | None = None,
        thinking: ThinkingBudget | None = None,
    ) -> Iterator[str]:
        """Generate; yields text, of whole characters.

        Raises:
            GenerationError: the constraint gave up.
        """
        scheduler, ids = Scheduler(self._runner, self._text.stops), list(self._runner.ids(0))
        active = scheduler.join(
            Request(
                ids,
                limit,
                params,
                constraint=constraint,
                thinking=thinking,
                adapter=self._runner.adapters.of(0),
            )
        )
        stream, sent = TextStream(self._text.tokenizer, ids), 0
        try:
            while active.finish_reason is None and not self._cancelled.is_set():
                scheduler.step()
                if active.tokens or active.finish_reason is not None:
                    self.ended_at = time.perf_counter()
                    self.first_token_at = self.first_token_at or self.ended_at
                text = stream.add(active.tokens[sent : active.settled])
                sent = active.settled
                if text:
                    yield text
        finally:
            scheduler.leave(active)
        self.tokens, self.finish_reason = active.tokens, active.finish_reason
        if active.refusal is not None:
            raise GenerationError(f"no answer matches the grammar: {active.refusal}")
        if text := stream.add(active.tokens[sent:]) + stream.end():
            yield text


class Session(AbstractSession):
    """Text in, text out, without a chat template; `Engine.create_session` creates it.

    A session has caches of its own. Use it in one thread at a time; `cancel_process` may come from
    another one.
    """

    def __init__(
        self,
        text: TextProcessor,
        runner: ModelRunner,
        params: SamplingParams,
        max_output_tokens: int | None,
        *,
        has_affixes: bool,
        init_seconds: float,
        read: Callable[[Contents, str], list[int]],
    ) -> None:
        """Use `Engine.create_session`. `read`: makes tokens of contents, for a method."""
        self._text, self._params, self._limit = text, params, max_output_tokens
        self._read = read
        self._has_affixes, self._init_seconds = has_affixes, init_seconds
        self._runner: ModelRunner | None = runner
        self._ids: list[int] = []
        self._cancelled = threading.Event()
        self._prefilled = 0.0, 0.0, 0  # when prefill began and ended, and of how many tokens
        self._timing: Timing | None = None

    def run_prefill(self, contents: Sequence[str | Content]) -> None:
        """Append texts, images and sounds to the session.

        Raises:
            GenerationError: there is no text, the session gets too long, or a file is damaged.
            OptionError: the engine was opened without the backend of images or sounds.
        """
        if isinstance(contents, str):
            raise TypeError("run_prefill: expected a list of texts, got a str: pass [text]")
        if not contents:
            raise GenerationError("run_prefill: expected a text, got none")
        start = [] if self._ids else self._text.start_ids
        before, after = self._text.affixes if self._has_affixes else ("", "")
        if all(isinstance(each, str) for each in contents):
            new = self._text.tokenize(before + "".join(map(str, contents)) + after)
        else:
            new = self._read(Contents.of(before, *contents, after), "run_prefill")
        ids = [*self._ids, *start, *new]
        runner, began = self._open(), time.perf_counter()
        runner.graph.check(ids, has_answer=True)
        runner.load(len(ids), self._params.variant(runner.graph.vocabulary))
        reused = runner.prefill(0, ids)
        runner.cache.wait()
        self._prefilled = began, time.perf_counter(), len(ids) - reused
        self._ids = ids

    def run_decode(self) -> Responses:
        """Generate an answer, and return it whole; it is then part of the session.

        Raises:
            GenerationError: nothing was prefilled, or the session is full.
        """
        return Responses(["".join(self._parts())], [0.0])

    def run_decode_async(self) -> Iterator[Responses]:
        """Generate an answer, and yield its parts as they come. Errors as `run_decode`."""
        for text in self._parts():
            yield Responses([text])

    def _parts(self) -> Iterator[str]:
        runner = self._open()
        if not self._ids:
            raise GenerationError("run_decode: expected run_prefill before, got an empty session")
        runner.graph.check(self._ids, has_answer=True)
        self._cancelled.clear()
        answer = Answer(self._text, runner, self._cancelled)
        resumed = time.perf_counter()
        yield from answer.parts(output_limit(self._limit), self._params)
        began, read, count = self._prefilled
        waited = resumed - read  # between the two calls
        self._timing = Timing(
            began=began,
            reading=began,
            read=read,
            first=answer.first_token_at - waited,
            ended=answer.ended_at - waited,
            prompt=count,
            answer=len(answer.tokens),
        )
        self._ids = list(runner.ids(0))

    def run_text_scoring(
        self, target_text: Sequence[str], store_token_lengths: bool = False
    ) -> Responses:
        """The probabilities of texts that might follow; the session stays as it is.

        Args:
            target_text: the texts.
            store_token_lengths: whether `token_lengths` is filled.

        Raises:
            GenerationError: nothing was prefilled, or a text is too long.
        """
        runner, found = self._open(), Responses()
        if not self._ids:
            raise GenerationError(
                "run_text_scoring: expected run_prefill before, got an empty session"
            )
        for text in target_text:
            ids = self._text.tokenize(text)
            scores = runner.score(0, ids) if ids else []
            runner.truncate(0, len(self._ids))
            found.texts.append(text)
            found.scores.append(sum(scores))
            found.token_scores.append(scores)
            if store_token_lengths:
                found.token_lengths.append(len(ids))
        return found

    def get_benchmark_info(self) -> BenchmarkInfo:
        """How long the last prompt and its answer took, without the time between the two calls.

        Raises:
            GenerationError: there was none yet.
        """
        if self._timing is None:
            raise GenerationError("get_benchmark_info: expected run_decode before, got no answer")
        return self._timing.info(self._init_seconds)

    def cancel_process(self) -> None:
        """End the answer that is being generated, after the tokens that the device computes now."""
        self._cancelled.set()

    def close(self) -> None:
        """Free the caches."""
        self._runner = None

    def _open(self) -> ModelRunner:
        if self._runner is None:
            raise GenerationError("the session is closed")
        return self._runner
