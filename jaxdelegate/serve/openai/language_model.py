"""A served bundle of a language model: its engine, and the worker that generates."""

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.lm.adapters import Adapter, rank_config
from jaxdelegate.lm.background_compiler import Work
from jaxdelegate.lm.configs import (
    LoraConfig,
    LoraRankConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
)
from jaxdelegate.lm.constraints import Constraint, Grammar
from jaxdelegate.lm.engine import Engine, engine_with_encoders
from jaxdelegate.lm.generation import hidden_state_request
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import Scheduler
from jaxdelegate.lm.stops import StopSequences
from jaxdelegate.lm.templates import Renderer
from jaxdelegate.lm.text_stream import StoppedStream, TextStream
from jaxdelegate.lm.thinking import ThinkingBudget
from jaxdelegate.lm.threads import in_thread
from jaxdelegate.lm.tool_prompts import ToolRenderer
from jaxdelegate.lm.warm_up import warm_programs, with_contents
from jaxdelegate.serve.clients import Client
from jaxdelegate.serve.metrics import TextRecorder
from jaxdelegate.serve.openai.answers import Answers
from jaxdelegate.serve.openai.batching import Job, TextBatcher
from jaxdelegate.serve.openai.messages import Chat
from jaxdelegate.serve.openai.requests import Ends, TextRequest
from jaxdelegate.serve.openai.scores import TokenTexts
from jaxdelegate.serve.openai.text_model import TextModel
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.waiting import waiting

_NEVER = (1 << 31) - 1  # tokens before a stop
_DEFAULT_K = 64  # a token is one of the most likely ones
_EMBEDDINGS = " embeddings"  # a key of their own for turns, so that a client's chats go on


class LanguageModel(TextModel):
    """A language model."""

    worker: TextBatcher
    engine: Engine
    renderer: Renderer  # makes a text of messages; only once it is ready, like the next ones
    token_texts: TokenTexts  # for tokens that were not chosen
    adapters: Mapping[str, Adapter | None]  # by the name that clients use

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: TextRecorder,
    ) -> None:
        """Open nothing yet, so that the process may fork."""
        super().__init__(path, name, settings)
        self.worker = TextBatcher(name, settings, recorder, self._prepare, self._new_scheduler)

    @property
    def adapter(self) -> Adapter | None:
        return None

    @property
    def max_model_len(self) -> int:
        return self.engine.max_num_tokens

    @property
    def vocabulary(self) -> int:
        return self.engine.graph.vocabulary

    @property
    def embedding_size(self) -> int:
        return self.engine.graph.hidden_size

    def job(
        self,
        number: int,
        ids: list[int],
        asked: TextRequest,
        client: Client,
        constraint: Constraint | None,
        thinking: ThinkingBudget | None = None,
    ) -> Job:
        ends = asked.ends
        request = Request(
            ids,
            ends.max_tokens,
            self._params(asked, number),
            asked.has_scores,
            constraint,
            owner=self.owner(client, asked.cache_salt),
            stops=self._stops(ends),
            top=asked.top,
            prompt_top=asked.scored_top,
            thinking=thinking,
            adapter=self.adapter,
        )
        text = TextStream(self.engine.tokenizer, ids, skips_special=asked.hides_special)
        stream = StoppedStream(text, ends.stops, ends.has_stop)
        field = asked.grammar_field or "tools"
        return Job(number, client, request, stream, grammar_field=field)

    def tool_renderer(self, chat: Chat) -> ToolRenderer:
        return ToolRenderer(self.renderer, self.engine.text.tool_syntax, chat.tools.shown)

    def _stops(self, ends: Ends) -> StopSequences | None:
        if not (ends.stop_ids or ends.ignores_stops):
            return None
        declared = [] if ends.ignores_stops else self.engine.text.stops.sequences
        return StopSequences([*declared, *([token] for token in ends.stop_ids)])

    def _params(self, asked: TextRequest, number: int) -> SamplingParams:
        sampling, ends = asked.sampling, asked.ends
        repetition = sampling.get("repetition_penalty", 1)
        penalties = RepetitionPenaltyConfig(
            None if repetition == 1 else repetition,
            sampling.get("presence_penalty") or None,
            sampling.get("frequency_penalty") or None,
        )
        params = self.engine.text.sampling_params(self._sampler(sampling, number), penalties)
        stops = sorted(self.engine.text.stops.tokens)
        return dataclasses.replace(
            params,
            bias=tuple(sampling.get("logit_bias", {}).items()),
            min_p=sampling.get("min_p", 0.0),
            late=tuple(stops) if ends.min_tokens or ends.ignores_stops else (),
            min_tokens=_NEVER if ends.ignores_stops else ends.min_tokens,
        )

    def _sampler(self, asked: Mapping[str, Any], number: int) -> SamplerConfig:
        """What a request leaves out is as the bundle declares."""
        declared = self.engine.text.sampling_params().sampler
        seed = asked["seed"] + number if "seed" in asked else secrets.randbits(32)
        if asked.keys().isdisjoint(("temperature", "top_p", "top_k")):
            return dataclasses.replace(declared, seed=seed)
        temperature = asked.get("temperature", declared.temperature)
        top_p = asked.get("top_p", declared.top_p)
        top_k = asked.get("top_k", declared.top_k)
        if "top_k" in asked and top_k <= 0:  # all tokens
            top_k = self.vocabulary
        return SamplerConfig(
            min(top_k or _DEFAULT_K, self.vocabulary),
            1.0 if top_p is None else top_p,
            1.0 if temperature is None else temperature,
            seed,
        )

    def owner(self, client: Client, salt: str = "") -> Hashable:
        """Who may use caches that a client's prompt has filled."""
        return None if self.settings.share_prefixes else client, salt

    def _texts_at_once(self) -> int:
        return self.settings.max_batch_size

    async def _embedding(self, tokens: Sequence[int], client: Client) -> np.ndarray:
        """The hidden state of a text's last token."""
        stream = StoppedStream(TextStream(self.engine.tokenizer, tokens), ())
        request = dataclasses.replace(
            hidden_state_request(tokens), owner=self.owner(client), adapter=self.adapter
        )
        turns = client._replace(key=client.key + _EMBEDDINGS)
        job = Job(0, turns, request, stream)
        answers = Answers(self.worker, [job])
        try:
            answers.submit()
            await answers.all()
        finally:
            await answers.release()
        assert job.running is not None
        assert job.running.hidden_state is not None
        return job.running.hidden_state

    # ---- in the thread

    def _prepare(self) -> None:
        settings, close = self.settings, self.worker.resources.callback
        self.engine = engine_with_encoders(
            self._path,
            max_num_tokens=settings.max_num_tokens,
            enable_speculative_decoding=settings.speculative_decoding,
            batch_invariant=settings.batch_invariant,
            kv_cache_dtype=settings.kv_cache_dtype,
            lora_rank_config=self._rank_config(),
            **self._engine_options(),
        )
        close(self.engine.close)
        reading = in_thread(self._read_grammar) if "json" in settings.warm else None
        configs = {name: LoraConfig(path) for name, path in settings.lora.items()}
        self.adapters = {name: self.engine.adapter(each) for name, each in configs.items()}
        self._compiler = self.engine.new_background_compiler()
        close(self._compiler.close)
        self.renderer = self.engine.text.renderer().without_lists()
        self.token_texts = TokenTexts(self.engine.tokenizer)
        with waiting(f"{self.name} is being compiled, and not ready before"):
            self._warm_up(self.engine)
        self.worker.memory = self._memory(self.engine)
        self._begin_warming(self.engine, [] if reading is None else [("json", reading.result)])

    def _rank_config(self) -> LoraRankConfig | None:
        """For the first adapter, whose rank the others have, too."""
        paths = [*self.settings.lora.values()]
        return rank_config(paths[0], "lora") if paths else None

    def _warm_up(self, engine: Engine) -> None:
        """Load or compile what most requests need; a thread does the rest when it is needed."""
        runner = engine.new_runner(self.settings.max_batch_size)
        prompts = [[0], *([n] * (length + 1) for n, length in enumerate(engine.graph.lengths, 1))]
        for ids in prompts:
            self.worker.check_open()
            runner.prefill(0, ids[: engine.max_num_tokens])
        if runner.slots > 1:
            runner.copy(0, 1, 0)
        usual = None, SamplerConfig(temperature=0), SamplerConfig(top_k=_DEFAULT_K)
        for params in map(engine.text.sampling_params, usual):
            self.worker.check_open()
            runner.prefill(0, [0])
            runner.begin(0, Request([0], 1, params))
            runner.decode()

    def _begin_warming(self, engine: Engine, grammar: Sequence[tuple[str, Work]]) -> None:
        """`grammar`: waits until the thread that reads grammars is ready."""
        kinds, runner = self.settings.warm, engine.new_runner(self.settings.max_batch_size)
        declared = engine.text.sampling_params().variant(self.vocabulary)
        programs = warm_programs(runner, declared, kinds)
        first = next((i for i, (kind, _) in enumerate(programs) if kind == "json"), len(programs))
        works: list[tuple[str, Work]] = [*programs[:first], *grammar, *programs[first:]]
        for kind, encoder in (("images", engine.images), ("sounds", engine.sounds)):
            if encoder is not None and kind in kinds:
                works = with_contents(works, kind, encoder)
        self._compiler.warm(works)
        self.worker.when_warm = self._when_warm

    def _read_grammar(self) -> None:
        """Start the process that checks grammars, and let llguidance read the tokenizer."""
        with contextlib.suppress(OptionError):  # the first request gets that error
            self.engine.text.constraint(Grammar.json({}))

    def _when_warm(self, timeout_s: float) -> str | None:
        seconds = self._compiler.wait_until_warm(timeout_s)
        if seconds is None:
            return None
        return ", ".join(f"{kind} {taken:.1f} s" for kind, taken in seconds.items())

    def _memory(self, engine: Engine) -> str:
        both = engine.weight_bytes, engine.cache_bytes
        weights, caches = (f"{count / 1e6:,.1f} MB" for count in both)
        slots = self.settings.max_batch_size
        return f"{weights} of weights, and up to {caches} of caches for each of {slots} slots"

    def _new_scheduler(self) -> Scheduler:
        return self.engine.new_scheduler(self.settings.max_batch_size, self._compiler)


class AdaptedModel(LanguageModel):
    """A LoRA adapter of a language model, under a name of its own; both have one engine."""

    def __init__(self, base: LanguageModel, name: str) -> None:
        """`name`: of `base.adapters`, once it is ready."""
        TextModel.__init__(self, base._path, name, base.settings)
        self.worker, self.parent, self._base = base.worker, base.name, base

    def __getattr__(self, name: str) -> Any:
        """What the base has once it is ready."""
        return getattr(self._base, name)

    @property
    def adapter(self) -> Adapter | None:
        return self.adapters[self.name]
