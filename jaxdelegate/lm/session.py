"""A session: a text that grows, by prompts and by the model's answers."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.choices import Rules
from jaxdelegate.lm.completions import BenchmarkInfo, FinishReason, Responses, Timing
from jaxdelegate.lm.decoder import Decoder
from jaxdelegate.lm.host import Host
from jaxdelegate.lm.scheduler import Pace, Request, Scheduler
from jaxdelegate.lm.text_stream import TextStream


class Answer:
    """One answer while it is generated; its parts are yielded as they come.

    Attributes:
        tokens: without the stop.
        finish_reason: why it has ended.
        first_token_at: by time.perf_counter, like the next one.
        ended_at: when the last token came.
    """

    def __init__(self, engine: Host, decoder: Decoder, cancelled: threading.Event) -> None:
        """`decoder`: of one slot, which has the prompt."""
        self._engine, self._decoder, self._cancelled = engine, decoder, cancelled
        self.tokens: Sequence[int] = ()
        self.finish_reason: FinishReason | None = None
        self.first_token_at = self.ended_at = 0.0

    def parts(self, limit: int, rules: Rules) -> Iterator[str]:
        """Generate; yields text, of whole characters."""
        scheduler, ids = Scheduler(self._engine, self._decoder), list(self._decoder.ids(0))
        running = scheduler.join(Request(ids, limit, rules))
        stream, pace, sent = TextStream(self._engine.tokenizer, ids), Pace(), 0
        while scheduler.prefill():  # what caches cannot go back to
            pass
        try:
            while running.finish_reason is None and not self._cancelled.is_set():
                start = time.perf_counter()
                scheduler.run(pace.steps)
                self.ended_at = time.perf_counter()
                self.first_token_at = self.first_token_at or self.ended_at
                pace.took(self.ended_at - start)
                text = stream.add(running.tokens[sent : running.settled])
                sent = running.settled
                if text:
                    yield text
        finally:
            scheduler.leave(running)
        self.tokens, self.finish_reason = running.tokens, running.finish_reason
        if text := stream.add(running.tokens[sent:]) + stream.end():
            yield text


class Session:
    """Text in, text out, without a chat template; `Engine.create_session` creates it.

    A session has caches of its own. Use it in one thread at a time; `cancel_process` may come from
    another one.
    """

    def __init__(
        self,
        engine: Host,
        decoder: Decoder,
        rules: Rules,
        max_output_tokens: int | None,
        has_affixes: bool,
    ) -> None:
        """Use `Engine.create_session`."""
        self._engine, self._rules, self._limit = engine, rules, max_output_tokens
        self._has_affixes = has_affixes
        self._decoder: Decoder | None = decoder
        self._ids: list[int] = []
        self._cancelled = threading.Event()
        self._read = 0.0, 0.0, 0  # when the last prompt was read, and how many tokens
        self._timing: Timing | None = None

    def run_prefill(self, contents: Sequence[str]) -> None:
        """Append texts to the session.

        Raises:
            GenerationError: there is no text, or the session gets too long.
        """
        if isinstance(contents, str):
            raise TypeError("run_prefill: expected a list of texts, got a str: pass [text]")
        if not contents:
            raise GenerationError("run_prefill: expected a text, got none")
        new = [] if self._ids else self._engine.start_ids
        before, after = self._engine.affixes if self._has_affixes else ("", "")
        new = [*new, *self._engine.tokenize(before + "".join(contents) + after)]
        decoder, began = self._open(), time.perf_counter()
        decoder.check([*self._ids, *new])
        decoder.prepare(len(self._ids) + len(new), self._rules)
        known = decoder.prefill(0, [*self._ids, *new])
        decoder.wait()
        self._read = began, time.perf_counter(), len(self._ids) + len(new) - known
        self._ids = list(decoder.ids(0))

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
        decoder = self._open()
        if not self._ids:
            raise GenerationError("run_decode: expected run_prefill before, got an empty session")
        decoder.check(self._ids)
        self._cancelled.clear()
        answer = Answer(self._engine, decoder, self._cancelled)
        resumed = time.perf_counter()
        yield from answer.parts(self._engine.limit(self._limit), self._rules)
        began, read, count = self._read
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
        self._ids = list(decoder.ids(0))

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
        decoder, found = self._open(), Responses()
        if not self._ids:
            raise GenerationError(
                "run_text_scoring: expected run_prefill before, got an empty session"
            )
        for text in target_text:
            ids = self._engine.tokenize(text)
            scores = decoder.score(0, ids) if ids else []
            decoder.truncate(0, len(self._ids))
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
        return self._timing.info(self._engine.init_time_in_second)

    def cancel_process(self) -> None:
        """End the answer that is being generated, after the tokens that the device computes now."""
        self._cancelled.set()

    def close(self) -> None:
        """Free the caches."""
        self._decoder = None

    def _open(self) -> Decoder:
        if self._decoder is None:
            raise GenerationError("the session is closed")
        return self._decoder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
