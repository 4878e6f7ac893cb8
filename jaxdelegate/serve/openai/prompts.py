"""Requests with the tokens of their prompts, and the forms of their responses."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import GenerationError, ModelError, OptionError
from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.embedding_engine import normalized
from jaxdelegate.lm.embeddings import EmbeddingOptions
from jaxdelegate.lm.hidden_states import NO_HIDDEN_STATES
from jaxdelegate.lm.messages import text_of
from jaxdelegate.lm.soft_tokens import SoftToken
from jaxdelegate.lm.text_stream import TextStream
from jaxdelegate.lm.thinking import ThinkingBudget
from jaxdelegate.lm.tool_calls import ToolReader
from jaxdelegate.lm.tool_grammars import tool_grammar
from jaxdelegate.lm.tool_prompts import ToolRenderer
from jaxdelegate.serve.clients import Client, shown
from jaxdelegate.serve.openai.batching import Job
from jaxdelegate.serve.openai.fields import ApiError
from jaxdelegate.serve.openai.files import read_files
from jaxdelegate.serve.openai.language_model import LanguageModel
from jaxdelegate.serve.openai.messages import Chat
from jaxdelegate.serve.openai.requests import EmbeddingRequest, TextRequest
from jaxdelegate.serve.openai.response_events import ResponseForm
from jaxdelegate.serve.openai.responses import (
    AnswerReader,
    ChatForm,
    CompletionForm,
    Form,
    Usage,
    embeddings,
)
from jaxdelegate.serve.openai.scores import PromptForm, ScoreForm
from jaxdelegate.serve.openai.text_model import TextModel
from jaxdelegate.serve.openai.tools import Tools
from jaxdelegate.text import printable, shortened

_MOST_REASON = 1000  # characters of an error, which may have the whole grammar

_MOST_SCORES = 1 << 19  # of prompts in a response


class Prompts:
    """The prompts of a request for answers, and the form of its response."""

    def __init__(
        self,
        model: LanguageModel,
        request: TextRequest,
        client: Client,
        hosts: Collection[str] = (),
    ) -> None:
        """Read texts, images and sounds into tokens. An ApiError if they do not fit the model.

        `hosts`: of which images are loaded by URL.
        """
        self.model, self.request = model, request
        self._check_count()
        self._constraint: Constraint | None = None
        self._thinking: ThinkingBudget | None = None
        self.grammar = request.grammar
        text = "" if request.chat is None else self._rendered(request.chat)
        self.contents = (
            [] if request.chat is None else self._read_files(request.chat, client, hosts)
        )
        self._prompts = self._tokens(text)
        param = "prompt" if request.chat is None else "messages"
        most = model.max_model_len - (request.ends.max_tokens != 0)
        for ids in self._prompts:
            _check_ids(ids, most, model.vocabulary, param)
        self._check_tokens()
        self._check_scores()
        if request.chat is not None and request.chat.budget is not None:
            self._thinking = self._budget(request.chat, request.chat.budget, text)
        self.form = self._form(text)

    def _rendered(self, chat: Chat) -> str:
        renderer = self.model.tool_renderer(chat)
        self._syntax, tools = renderer.syntax, chat.tools
        if tools.is_required or (tools.shown and (tools.is_strict or self.grammar is not None)):
            try:
                self.grammar = tool_grammar(
                    self._syntax,
                    tools.callable,
                    self.model.engine.tokenizer,
                    has_text=not tools.is_required,
                    most=tools.most,
                    otherwise=self.grammar,
                )
            except OptionError as error:
                raise ApiError(str(error), param=self.request.grammar_field) from None
        return rendered(renderer, chat)

    def _budget(self, chat: Chat, budget: int, text: str) -> ThinkingBudget:
        try:
            return self.model.engine.text.thinking_budget(budget, text)
        except OptionError as error:
            problem = str(error).partition(": ")[2]
            raise ApiError(problem, param=chat.budget_field) from None

    def _read_files(
        self, chat: Chat, client: Client, hosts: Collection[str]
    ) -> list[EncodedContent]:
        if chat.files and self.request.scored_top is not None:
            raise ApiError("expected only without images and sounds", param="prompt_logprobs")
        owner = self.model.owner(client, self.request.cache_salt)
        return read_files(self.model, chat.files, owner, hosts)

    def _tokens(self, text: str) -> list[list[int]]:
        """The tokens of the prompts; `text`: of the chat, if it is one."""
        engine = self.model.engine
        if not self.contents:
            texts = self.request.prompts if self.request.chat is None else [text]
            return [engine.prompt_ids(prompt) for prompt in texts]
        try:
            ids = engine.contents.ids(text, self.contents)
        except GenerationError as error:
            raise ApiError(str(error), param="messages") from None
        if isinstance(ids[-1], SoftToken):
            raise ApiError("expected a text after the last image or sound", param="messages")
        return [[*engine.text.start_ids, *ids]]

    def encode(self) -> None:
        """Encode images and sounds, which takes long; those of other requests at once, too."""
        self.model.engine.contents.encode(self.contents)

    def _check_tokens(self) -> None:
        asked, most = self.request, self.model.vocabulary
        for param, ids in {
            "logit_bias": asked.sampling.get("logit_bias", ()),
            "stop_token_ids": asked.ends.stop_ids,
        }.items():
            _check_below(ids, most, param)

    def _check_scores(self) -> None:
        """The scores of a request's prompts are in memory until its response is sent."""
        asked, top = self.request, self.request.scored_top
        if top is None:
            return
        count = asked.n * sum(map(len, self._prompts)) * (1 + top)
        if count > _MOST_SCORES:
            raise ApiError(
                f"expected at most {_MOST_SCORES} log probabilities of prompts, got a request for "
                f"{count}: lower it or n, or send several requests",
                param="logprobs" if asked.prompt_top is None else "prompt_logprobs",
            )

    def _check_count(self) -> None:
        n, most = self.request.n, self.model.worker.most
        count = n * max(len(self.request.prompts), 1)
        if count > most:
            raise ApiError(
                f"expected at most {most} answers in a request (max_batch_size and "
                f"max_queue_size), got {count}: send several requests",
                param="n" if n > 1 else "prompt",
            )

    def _form(self, text: str) -> Form | ResponseForm:
        request, name = self.request, self.model.name
        usage = Usage([len(ids) for ids in self._prompts])
        texts = self.model.token_texts
        scores = ScoreForm(texts, request.top) if request.has_scores else None
        prompts = [self._prompt_form(number) for number in range(len(self._prompts))]
        prompts = [prompt for prompt in prompts for _ in range(request.n)]
        if request.chat is None:
            return CompletionForm(name, usage, scores=scores, prompts=prompts)
        tools = request.chat.tools
        is_text = self.grammar is None or (request.grammar is None and not tools.is_required)
        thinks = self._thinking is not None
        channels = self.model.engine.text.metadata.channels if is_text or thinks else ()
        readers = [
            AnswerReader(
                ChannelReader(channels, text, is_only_first=not is_text), self._tool_reader(tools)
            )
            for _ in range(request.n)
        ]
        if request.echo is not None:
            return ResponseForm(name, usage, readers[0], request.echo, scores)
        return ChatForm(
            name, usage, readers, scores=scores, prompts=prompts, is_named=tools.is_named
        )

    def _prompt_form(self, number: int) -> PromptForm:
        """What the response has of a prompt: a text as it came, or that of token ids."""
        asked, ids, text = self.request, self._prompts[number], None
        texts, has_start = self.model.token_texts, False
        if asked.has_echo:
            prompt = asked.prompts[number]
            stream = TextStream(texts.tokenizer, skips_special=asked.hides_special)
            text = prompt if isinstance(prompt, str) else stream.add(ids) + stream.end()
            has_start = isinstance(prompt, str) and bool(self.model.engine.text.start_ids)
        return PromptForm(ids, texts, text, has_start, asked.hides_special, asked.prompt_top)

    def _tool_reader(self, tools: Tools) -> ToolReader | None:
        if not tools.shown:
            return None
        return ToolReader(self._syntax, {f["name"] for f in tools.callable}, tools.most)

    def constrain(self) -> None:
        """Compile the grammar, which the request has; it may take seconds."""
        assert self.grammar is not None
        try:
            self._constraint = self.model.engine.text.constraint(self.grammar)
        except OptionError as error:
            param = self.request.grammar_field or "tools"
            raise ApiError(shortened(printable(str(error)), _MOST_REASON), param=param) from None
        if self._thinking is not None:
            text = self.model.engine.text
            self._constraint = text.after_thought(self._constraint, self._thinking)
            self._thinking = None

    def jobs(self, client: Client) -> list[Job]:
        prompts = [ids for ids in self._prompts for _ in range(self.request.n)]
        return [
            self.model.job(index, ids, self.request, client, self._constraint, self._thinking)
            for index, ids in enumerate(prompts)
        ]


class Texts:
    def __init__(self, model: TextModel, request: EmbeddingRequest) -> None:
        """Read texts into tokens. An ApiError if they do not fit the model."""
        self.model, self.request = model, request
        size, most = request.size, model.embedding_size
        if not most:
            what = f"has no embeddings, as {NO_HIDDEN_STATES}: serve one of a text encoder"
            raise ApiError(f"{shown(request.model)} {what}", param="model")
        self.ids = [model.engine.prompt_ids(text) for text in request.texts]
        for number, ids in enumerate(self.ids):
            _check_ids(ids, model.max_model_len, model.vocabulary, f"input[{number}]")
        if size is not None and size > most:
            raise ApiError(f"expected at most {most}, got {size}", param="dimensions")

    def response(self, rows: Sequence[np.ndarray]) -> dict[str, Any]:
        """The response with these embeddings, not normalized yet. It takes long for many."""
        options = EmbeddingOptions(output_size=self.request.size)
        vectors = [normalized(row, options).astype(np.float32) for row in rows]
        tokens, is_packed = sum(map(len, self.ids)), self.request.is_packed
        return embeddings(self.model.name, tokens, vectors, is_packed=is_packed)


def rendered(renderer: ToolRenderer, chat: Chat) -> str:
    """The prompt of a chat. An ApiError: the template refuses the messages."""
    try:
        text = renderer.render(chat.messages, chat.context, ends=chat.begins_answer)
    except ModelError as error:  # it begins with the bundle's path
        problem = str(error).rpartition("chat template: ")[2]
        raise ApiError(f"the chat template fails: {problem}", param="messages") from None
    return _before_end(text, text_of(chat.messages[-1])) if chat.continues else text


def _before_end(text: str, last: str) -> str:
    """A prompt up to the end of the last message's text, which the answer continues."""
    shown = last if last in text else last.strip()  # templates strip texts
    before, found, _ = text.rpartition(shown)
    if not (shown and found):
        expected = "expected a last message whose text the chat template shows"
        raise ApiError(expected, param="continue_final_message")
    return before + found


def _check_ids(ids: Sequence[int], most: int, vocabulary: int, param: str) -> None:
    if not ids:
        raise ApiError("expected at least one token, got an empty prompt", param=param)
    if len(ids) > most:
        raise ApiError(
            f"expected at most {most} tokens by the model's context length, got {len(ids)}",
            param=param,
            code="context_length_exceeded",
        )
    _check_below(ids, vocabulary, param)


def _check_below(ids: Collection[int], vocabulary: int, param: str) -> None:
    wrong = next((i for i in ids if i >= vocabulary), None)
    if wrong is not None:
        raise ApiError(f"expected token ids below {vocabulary}, got {wrong}", param=param)
