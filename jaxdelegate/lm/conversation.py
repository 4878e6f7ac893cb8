"""A conversation: messages in, messages out, by the bundle's chat template.

Source: LiteRT-LM 0.18 (runtime/conversation/conversation.cc).
"""

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.channels import ChannelReader, Found
from jaxdelegate.lm.completions import BenchmarkInfo, Timing
from jaxdelegate.lm.configs import (
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
    ThinkingConfig,
    output_limit,
)
from jaxdelegate.lm.messages import Contents, Message, sent, stated
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.session import Answer
from jaxdelegate.lm.templates import Renderer
from jaxdelegate.lm.text_processor import TextProcessor
from jaxdelegate.lm.unsupported import refuse

_REASONING = "reasoning_content"  # the key of LiteRT-LM and of many templates

AnyMessage = str | Contents | Message | Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `Engine.create_conversation`."""

    messages: Sequence[Mapping[str, Any]] = ()
    extra_context: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sampler: SamplerConfig | None = None
    max_output_tokens: int | None = None
    thinking: ThinkingConfig | None = None
    forgets_channels: bool = True
    chat_template: str | None = None


@dataclasses.dataclass(frozen=True)
class _Prompt:
    """The text of a conversation: before a message, and what the message adds."""

    before: str
    new: str
    is_continued: bool  # whether the tokens so far stay as they are


class Conversation:
    """Messages in, messages out; `Engine.create_conversation` creates it.

    A conversation has caches of its own. Use it in one thread at a time; `cancel_process` may come
    from another one.
    """

    # Of `litert_lm`, not supported.
    tools: Sequence[Any] = ()
    automatic_tool_calling = True
    tool_event_handler = lora_config = constrained_decoding_config = None

    def __init__(
        self,
        text: TextProcessor,
        runner: ModelRunner,
        renderer: Renderer,
        settings: Settings,
        init_seconds: float,
    ) -> None:
        """Use `Engine.create_conversation`."""
        self._text, self._renderer, self._settings = text, renderer, settings
        self._preface = [stated(m, "create_conversation") for m in settings.messages]
        self._history: list[dict[str, Any]] = []
        self._runner: ModelRunner | None = runner
        self._init_seconds = init_seconds
        self._ids: list[int] = []
        self._cancelled = threading.Event()
        self._info: BenchmarkInfo | None = None

    # ---- messages

    @property
    def messages(self) -> list[Message]:
        """All messages so far, those of `create_conversation` included."""
        return [Message.from_json(m) for m in (*self._preface, *self._history)]

    @property
    def chat_template(self) -> str | None:
        """In Jinja; None: the bundle's."""
        return self._settings.chat_template

    @property
    def extra_context(self) -> Mapping[str, Any]:
        """The variables that the template gets."""
        return self._settings.extra_context

    @property
    def thinking_config(self) -> ThinkingConfig | None:
        """Whether the template asks the model to think."""
        return self._settings.thinking

    @property
    def sampler_config(self) -> SamplerConfig | None:
        """How tokens are chosen; None: as the bundle says."""
        return self._settings.sampler

    @property
    def max_output_tokens(self) -> int | None:
        """The most tokens of an answer; None: as many as `Engine.max_num_tokens` leaves."""
        return self._settings.max_output_tokens

    @property
    def token_count(self) -> int:
        """How many tokens the conversation has, answers and the start token included."""
        self._open()
        return len(self._ids)

    def send_message(
        self,
        message: AnyMessage,
        *,
        repetition_penalty_config: RepetitionPenaltyConfig | None = None,
        no_repeat_ngram_config: NoRepeatNgramConfig | None = None,
        suppress_tokens_config: SuppressTokensConfig | None = None,
        max_output_tokens: int | None = None,
        thinking_config: ThinkingConfig | None = None,
        **unsupported: Any,
    ) -> Message:
        """Send a message, and return the model's answer.

        Args:
            message: a user's text; or Contents, a Message or a dictionary.
            repetition_penalty_config: lowers the logits of tokens that the answer has already.
            no_repeat_ngram_config: forbids repeated n-grams.
            suppress_tokens_config: forbids tokens.
            max_output_tokens: of this answer; None: as in `create_conversation`.
            thinking_config: for this answer; None: as in `create_conversation`.
            **unsupported: other arguments of `litert_lm`; None and False are accepted.

        Returns:
            The answer; what it said in channels, for example its reasoning, is in `channels`. An
            answer that `cancel_process` ended is the part so far.

        Raises:
            ModelError: the chat template is damaged, or refuses the message.
            OptionError: the message has something else than text.
            GenerationError: the conversation gets too long, or is closed.
        """
        parts = self.send_message_async(
            message,
            repetition_penalty_config=repetition_penalty_config,
            no_repeat_ngram_config=no_repeat_ngram_config,
            suppress_tokens_config=suppress_tokens_config,
            max_output_tokens=max_output_tokens,
            thinking_config=thinking_config,
            **unsupported,
        )
        return _joined(list(parts))

    def send_message_async(
        self,
        message: AnyMessage,
        *,
        repetition_penalty_config: RepetitionPenaltyConfig | None = None,
        no_repeat_ngram_config: NoRepeatNgramConfig | None = None,
        suppress_tokens_config: SuppressTokensConfig | None = None,
        max_output_tokens: int | None = None,
        thinking_config: ThinkingConfig | None = None,
        **unsupported: Any,
    ) -> Iterator[Message]:
        """Send a message, and yield the parts of the answer as they come.

        A part has text in `contents` or in one of `channels`. The message and its answer belong to
        the conversation when the answer has ended; if it is cancelled, or the iterator is closed,
        neither does. Arguments and errors as `send_message`.
        """
        refuse("send_message", unsupported)
        self._open()
        own, thinking = sent(message, "send_message"), self._thinking(thinking_config)
        params = self._text.sampling_params(
            self._settings.sampler,
            repetition_penalty_config,
            no_repeat_ngram_config,
            suppress_tokens_config,
        )
        if max_output_tokens is None:
            max_output_tokens = self._settings.max_output_tokens
        limit = output_limit(max_output_tokens)
        self._cancelled.clear()
        return self._answered(own, thinking, limit, params)

    def render_message_to_string(self, message: AnyMessage) -> str:
        """The text that a message would add to the conversation. Errors as `send_message`."""
        own = sent(message, "render_message_to_string")
        return self._prompt(own, self._thinking(None)).new

    def cancel_process(self) -> None:
        """End the answer that is being generated, after the tokens that the device computes now."""
        self._cancelled.set()

    def get_benchmark_info(self) -> BenchmarkInfo:
        """How long the last answer took.

        Raises:
            GenerationError: there was none yet.
        """
        if self._info is None:
            raise GenerationError("get_benchmark_info: expected send_message before, got no answer")
        return self._info

    def close(self) -> None:
        """Free the caches."""
        self._runner = None

    # ---- prompts

    def _thinking(self, config: ThinkingConfig | None) -> Mapping[str, Any]:
        config = config or self._settings.thinking
        if config is None:
            return {}
        if config.enable_thinking and config.thinking_token_budget >= 0:
            raise OptionError(
                "thinking_token_budget is not supported, got "
                f"{config.thinking_token_budget}: use -1, without a limit"
            )
        return {"enable_thinking": config.enable_thinking}

    def _prompt(self, message: dict[str, Any], thinking: Mapping[str, Any]) -> _Prompt:
        """What a message adds to the rendered conversation.

        A template may render earlier messages differently after another one, for example without
        their reasoning. Then the whole conversation is read again, where LiteRT-LM fails.
        """
        context = {**thinking, **self._settings.extra_context}
        so_far = [*self._preface, *self._history]
        whole = self._renderer.render([*so_far, message], context, ends=True)
        if not self._history:
            return _Prompt("", whole, is_continued=False)
        before = self._renderer.render(so_far, context, ends=False)
        if not whole.startswith(before):
            return _Prompt("", whole, is_continued=False)
        forgets = self._settings.forgets_channels and bool(self._history[-1].get("channels"))
        return _Prompt(before, whole[len(before) :], is_continued=not forgets)

    def _tokens(self, prompt: _Prompt) -> list[int]:
        """The tokens so far stay as the model chose them, unless something before changes."""
        new = self._text.tokenize(prompt.new)
        if prompt.is_continued:
            return [*self._ids, *new]
        return [*self._text.start_ids, *self._text.tokenize(prompt.before), *new]

    # ---- answers

    def _answered(
        self,
        message: dict[str, Any],
        thinking: Mapping[str, Any],
        limit: int | None,
        params: SamplingParams,
    ) -> Iterator[Message]:
        runner, began = self._open(), time.perf_counter()
        prompt = self._prompt(message, thinking)
        ids = self._tokens(prompt)
        reading = time.perf_counter()
        runner.graph.check(ids, has_answer=True)
        reused = runner.prefill(0, ids)
        runner.cache.wait()
        read = time.perf_counter()
        answer, parts = Answer(self._text, runner, self._cancelled), list[Message]()
        reader = ChannelReader(self._text.metadata.channels, prompt.new)
        for text in answer.parts(limit, params):
            for part in map(_part, reader.add(text)):
                parts.append(part)
                yield part
        for part in map(_part, reader.end()):
            parts.append(part)
            yield part
        timing = Timing(
            began=began,
            reading=reading,
            read=read,
            first=answer.first_token_at,
            ended=answer.ended_at,
            prompt=len(ids) - reused,
            answer=len(answer.tokens),
        )
        self._info = timing.info(self._init_seconds)
        if answer.finish_reason != "cancelled":
            self._ids = list(runner.ids(0))
            self._history += [message, stated(_joined(parts), "send_message")]

    def _open(self) -> ModelRunner:
        if self._runner is None:
            raise GenerationError("the conversation is closed")
        return self._runner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _part(found: Found) -> Message:
    channel, text = found
    if channel is None:
        return Message.model(Contents.of(text))
    message = Message.model(channels={channel.name: text})
    if channel.is_reasoning:
        message[_REASONING] = text
    return message


def _joined(parts: Sequence[Message]) -> Message:
    channels = dict[str, str]()
    for part in parts:
        for name, text in part.channels.items():
            channels[name] = channels.get(name, "") + text
    message = Message.model(Contents.of("".join(map(str, parts))), channels=channels)
    if reasoning := "".join(part.get(_REASONING, "") for part in parts):
        message[_REASONING] = reasoning
    return message
