"""A conversation: messages in, messages out, by the bundle's chat template.

Source: LiteRT-LM 0.18 (runtime/conversation/conversation.cc).
"""

import collections
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.channels import ChannelReader, Found
from jaxdelegate.lm.completions import BenchmarkInfo, Timing
from jaxdelegate.lm.configs import (
    ConstrainedDecodingConfig,
    LoraConfig,
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    ResponseFormat,
    SamplerConfig,
    SuppressTokensConfig,
    ThinkingConfig,
    output_limit,
)
from jaxdelegate.lm.constraints import Constraint, Grammar
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.contents.message_contents import read_contents, without_files
from jaxdelegate.lm.contents.prompt_contents import PromptContents
from jaxdelegate.lm.interfaces import AbstractConversation
from jaxdelegate.lm.messages import AnyMessage, Contents, Message, ToolCall, sent, stated
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.session import Answer
from jaxdelegate.lm.templates import Renderer
from jaxdelegate.lm.text_processor import TextProcessor
from jaxdelegate.lm.tool_calls import Call, ToolReader, syntax_of
from jaxdelegate.lm.tool_grammars import tool_grammar
from jaxdelegate.lm.tool_prompts import ToolRenderer
from jaxdelegate.lm.tools import Tool, ToolEventHandler
from jaxdelegate.lm.unsupported import refuse

LOGGER = logging.getLogger("jaxdelegate")

_REASONING = "reasoning_content"  # the key of LiteRT-LM and of many templates


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
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    tool_event_handler: ToolEventHandler | None = None
    automatic_tool_calling: bool = True
    constrained_decoding_config: ConstrainedDecodingConfig | None = None
    lora_config: LoraConfig | None = None


@dataclasses.dataclass(frozen=True)
class _Prompt:
    """The text of a conversation: before a message, and what the message adds."""

    before: str
    new: str
    is_continued: bool  # whether the tokens so far stay as they are


class _Asked(NamedTuple):
    """How a message is answered."""

    thinking: Mapping[str, Any]
    budget: int | None  # of tokens of reasoning; None: any number
    limit: int | None
    params: SamplingParams
    grammar: Grammar | None


class Conversation(AbstractConversation):
    """Messages in, messages out; `Engine.create_conversation` creates it.

    A conversation has caches of its own. Use it in one thread at a time; `cancel_process` may come
    from another one. Attributes that are changed hold for the next message, except `tools` and
    `chat_template`.
    """

    tools: list[Tool]

    def __init__(
        self,
        text: TextProcessor,
        runner: ModelRunner,
        renderer: Renderer,
        settings: Settings,
        init_seconds: float,
        contents: PromptContents,
        max_num_images: int | None = None,
    ) -> None:
        """Use `Engine.create_conversation`."""
        super().__init__(
            tools=[*settings.tools.values()],
            tool_event_handler=settings.tool_event_handler,
            automatic_tool_calling=settings.automatic_tool_calling,
            extra_context=settings.extra_context,
            thinking_config=settings.thinking,
            sampler_config=settings.sampler,
            lora_config=settings.lora_config,
            max_output_tokens=settings.max_output_tokens,
            chat_template=settings.chat_template,
        )
        self.constrained_decoding_config = settings.constrained_decoding_config
        self._text, self._settings = text, settings
        self._encoders, self._most_images = contents, max_num_images
        template = (
            text.metadata.template if settings.chat_template is None else settings.chat_template
        )
        self._tools = [tool.get_tool_description() for tool in settings.tools.values()]
        self._renderer = ToolRenderer(renderer, syntax_of(text.metadata, template), self._tools)
        self._preface = [self._checked(m, "create_conversation") for m in settings.messages]
        self._contents = self._read(self._preface)
        self._history: list[dict[str, Any]] = []
        self._runner: ModelRunner | None = runner
        self._init_seconds = init_seconds
        self._ids: list[int] = []
        self._cancelled = threading.Event()
        self._info: BenchmarkInfo | None = None
        self._last = Message.model()  # the last answer, also one that was cancelled

    # ---- messages

    @property
    def messages(self) -> list[Message]:
        """All messages so far, those of `create_conversation` included."""
        return [Message.from_json(m) for m in (*self._preface, *self._history)]

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
        response_format: ResponseFormat | None = None,
        **unsupported: Any,
    ) -> Message:
        """Send a message, and return the model's answer.

        Args:
            message: a user's text; or Contents with texts, images and sounds, a Message or a
                dictionary.
            repetition_penalty_config: lowers the logits of tokens that the answer has already.
            no_repeat_ngram_config: forbids repeated n-grams.
            suppress_tokens_config: forbids tokens.
            max_output_tokens: of this answer; None: as in `create_conversation`.
            thinking_config: for this answer; None: as in `create_conversation`.
            response_format: what the answer matches. While tools are called automatically, it is
                for the answers to their results only, as in LiteRT-LM.
            **unsupported: other arguments of `litert_lm`; None and False are accepted.

        Returns:
            The answer; what it said in channels, for example its reasoning, is in `channels`. An
            answer that `cancel_process` ended is the part so far.

        Raises:
            ModelError: the chat template is damaged, or refuses the message.
            OptionError: the message has something else than texts, results of tools and, if the
                engine takes them, images and sounds; llguidance refuses the format; or the bundle
                declares no channel for a thinking budget.
            GenerationError: the conversation gets too long, or is closed; no answer matches the
                format; an image or a sound is damaged or of an unknown format.
        """
        parts = self.send_message_async(
            message,
            repetition_penalty_config=repetition_penalty_config,
            no_repeat_ngram_config=no_repeat_ngram_config,
            suppress_tokens_config=suppress_tokens_config,
            max_output_tokens=max_output_tokens,
            thinking_config=thinking_config,
            response_format=response_format,
            **unsupported,
        )
        collections.deque(parts, maxlen=0)
        return self._last

    def send_message_async(
        self,
        message: AnyMessage,
        *,
        repetition_penalty_config: RepetitionPenaltyConfig | None = None,
        no_repeat_ngram_config: NoRepeatNgramConfig | None = None,
        suppress_tokens_config: SuppressTokensConfig | None = None,
        max_output_tokens: int | None = None,
        thinking_config: ThinkingConfig | None = None,
        response_format: ResponseFormat | None = None,
        **unsupported: Any,
    ) -> Iterator[Message]:
        """Send a message, and yield the parts of the answer as they come.

        A part has text in `contents` or in one of `channels`, or `tool_calls` if tools are not
        called automatically; if they are, the text of all answers comes. A message and its answer
        belong to the conversation when the answer has ended; if it is cancelled, or the iterator is
        closed, neither does. Arguments and errors as `send_message`.
        """
        refuse("send_message", unsupported)
        self._open()
        own = sent(message, "send_message", self._encoders.encoders)
        config = thinking_config or self.thinking_config
        params = self._text.sampling_params(
            self.sampler_config,
            repetition_penalty_config,
            no_repeat_ngram_config,
            suppress_tokens_config,
        )
        if max_output_tokens is None:
            max_output_tokens = self.max_output_tokens
        limit = output_limit(max_output_tokens)
        self._cancelled.clear()
        asked = _Asked(
            _variables(config), self._budget(config), limit, params, Grammar.of(response_format)
        )
        return self._exchanged([own], asked)

    def render_message_to_string(self, message: AnyMessage) -> str:
        """The text that a message would add to the conversation. Errors as `send_message`."""
        own = sent(message, "render_message_to_string", self._encoders.encoders)
        return self._prompt([own], _variables(self.thinking_config)).new

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

    def _budget(self, config: ThinkingConfig | None) -> int | None:
        if config is None or not config.enable_thinking or config.thinking_token_budget < 0:
            return None
        self._text.thinking_budget(config.thinking_token_budget, "")  # an OptionError if it cannot
        return config.thinking_token_budget

    def _prompt(self, new: Sequence[dict[str, Any]], thinking: Mapping[str, Any]) -> _Prompt:
        """What messages add to the rendered conversation.

        A template may render earlier messages differently after another one, for example without
        their reasoning. Then the whole conversation is read again, where LiteRT-LM fails.
        """
        context = {**thinking, **self.extra_context}
        so_far = [*map(without_files, (*self._preface, *self._history))]
        whole = self._renderer.render([*so_far, *map(without_files, new)], context, ends=True)
        if not self._history:
            return _Prompt("", whole, is_continued=False)
        before = self._renderer.render(so_far, context, ends=False)
        if not whole.startswith(before):
            return _Prompt("", whole, is_continued=False)
        forgets = self._settings.forgets_channels and bool(self._history[-1].get("channels"))
        return _Prompt(before, whole[len(before) :], is_continued=not forgets)

    def _tokens(self, prompt: _Prompt, contents: Sequence[EncodedContent]) -> list[int]:
        """The tokens so far stay as the model chose them, unless something before changes.

        `contents`: of the new messages.
        """
        ids, before = self._encoders.ids, prompt.before
        if prompt.is_continued:
            return [*self._ids, *ids(prompt.new, contents)]
        if not before:  # the new text is the whole one
            return [*self._text.start_ids, *ids(prompt.new, [*self._contents, *contents])]
        return [*self._text.start_ids, *ids(before, self._contents), *ids(prompt.new, contents)]

    def _read(self, messages: Sequence[Mapping[str, Any]]) -> list[EncodedContent]:
        return read_contents(messages, self._encoders, self._most_images)

    # ---- answers

    def _exchanged(self, messages: list[dict[str, Any]], asked: "_Asked") -> Iterator[Message]:
        """Answers, until one calls no tool that runs."""
        is_automatic = self.automatic_tool_calling and bool(self._tools)
        while messages:
            is_result = messages[0]["role"] == "tool"
            grammar = asked.grammar if is_result or not is_automatic else None
            yield from self._answered(messages, asked, self._constraint(grammar))
            calls = self._last.tool_calls
            messages = []
            if is_automatic and not self._cancelled.is_set():
                messages = self._results(calls)

    def _constraint(self, grammar: Grammar | None) -> Constraint | None:
        config = self.constrained_decoding_config
        if self._tools and config is not None and config.enable:
            functions = [tool["function"] for tool in self._tools]
            syntax, tokenizer = self._renderer.syntax, self._text.tokenizer
            grammar = tool_grammar(syntax, functions, tokenizer, has_text=True, otherwise=grammar)
        return None if grammar is None else self._text.constraint(grammar)

    def _results(self, calls: Sequence[Any]) -> list[dict[str, Any]]:
        """Run tools; a message with the result of each call that is approved."""
        results, handler = [], self.tool_event_handler
        for call in calls:
            if handler is not None and not handler.approve_tool_call(call):
                continue
            name = call["function"]["name"]
            result = self._result(name, call["function"]["arguments"])
            if handler is not None:
                result = handler.process_tool_response(result)
            response = {"type": "tool_response", "name": name, "response": result}
            results.append({"role": "tool", "content": [response]})
        return results

    def _result(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What a tool returns; the model reads its errors, too, as in LiteRT-LM."""
        try:
            return self._settings.tools[name].execute(arguments)
        except Exception as error:
            LOGGER.exception("the tool %s failed", name)
            return f"Error: {error}"

    def _answered(
        self, messages: list[dict[str, Any]], asked: "_Asked", constraint: Constraint | None
    ) -> Iterator[Message]:
        runner, began = self._open(), time.perf_counter()
        prompt, contents = self._prompt(messages, asked.thinking), self._read(messages)
        ids = self._tokens(prompt, contents)
        runner.graph.check(ids, has_answer=True)
        self._encoders.encode([*self._contents, *contents])
        reading = time.perf_counter()
        reused = runner.prefill(0, ids)
        runner.cache.wait()
        read = time.perf_counter()
        answer, parts = Answer(self._text, runner, self._cancelled), list[Message]()
        thinking = None
        if asked.budget is not None:
            thinking = self._text.thinking_budget(asked.budget, prompt.new)
        if constraint is not None and thinking is not None:
            constraint, thinking = self._text.after_thought(constraint, thinking), None
        texts = answer.parts(asked.limit, asked.params, constraint, thinking)
        for part in self._parts(texts, prompt.new):
            parts.append(part)
            if not (part.tool_calls and self.automatic_tool_calling):
                yield part
        self._last = _joined(parts)
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
            self._history += [*messages, stated(self._last, "send_message")]
            self._contents += contents

    def _checked(self, message: Mapping[str, Any], method: str) -> dict[str, Any]:
        return stated(message, method, self._encoders.encoders)

    def _parts(self, texts: Iterator[str], prompt: str) -> Iterator[Message]:
        """The parts of an answer: its text, what channels say, and calls of tools."""
        channels = ChannelReader(self._text.metadata.channels, prompt)
        tools = ToolReader(self._renderer.syntax, self._settings.tools) if self._tools else None
        for channel, text in itertools.chain(
            itertools.chain.from_iterable(map(channels.add, texts)), _at_end(channels)
        ):
            if tools is None or channel is not None:
                yield _part((channel, text))
            else:
                yield from map(_tool_part, tools.add(text))
        if tools is not None:
            yield from map(_tool_part, tools.end())

    def _open(self) -> ModelRunner:
        if self._runner is None:
            raise GenerationError("the conversation is closed")
        return self._runner


def _variables(config: ThinkingConfig | None) -> Mapping[str, Any]:
    return {} if config is None else {"enable_thinking": config.enable_thinking}


def _part(found: Found) -> Message:
    channel, text = found
    if channel is None:
        return Message.model(Contents.of(text))
    message = Message.model(channels={channel.name: text})
    if channel.is_reasoning:
        message[_REASONING] = text
    return message


def _at_end(reader: ChannelReader) -> Iterator[Found]:
    yield from reader.end()  # not before it has all parts


def _tool_part(found: str | Call) -> Message:
    if isinstance(found, str):
        return _part((None, found))
    return Message.model(tool_calls=[ToolCall(found.name, found.arguments)])


def _joined(parts: Sequence[Message]) -> Message:
    channels = dict[str, str]()
    for part in parts:
        for name, text in part.channels.items():
            channels[name] = channels.get(name, "") + text
    calls = [call for part in parts for call in part.tool_calls]
    text = "".join(map(str, parts))
    contents = Contents.of(text) if text or not calls else None
    message = Message.model(contents, calls, channels)
    if reasoning := "".join(part.get(_REASONING, "") for part in parts):
        message[_REASONING] = reasoning
    return message
