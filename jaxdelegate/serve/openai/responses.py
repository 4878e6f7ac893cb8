"""Responses of OpenAI's API, whole and in parts."""

import abc
import base64
import dataclasses
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.scores import TokenScore
from jaxdelegate.lm.text_stream import Part
from jaxdelegate.lm.tool_calls import Call, ToolReader
from jaxdelegate.serve.openai.batching import Delta
from jaxdelegate.serve.openai.scores import PromptForm, ScoreForm

DONE = b"data: [DONE]\n\n"
REASONING = "reasoning_content"  # as in DeepSeek's API and vLLM


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def embeddings(
    model: str, tokens: int, rows: Sequence[np.ndarray], *, is_packed: bool
) -> dict[str, Any]:
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _packed(row) if is_packed else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _packed(row: np.ndarray) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


@dataclasses.dataclass
class Usage:
    prompts: Sequence[int]  # tokens of each prompt; the answers to one count it once
    tokens: dict[int, int] = dataclasses.field(default_factory=dict)
    reused: dict[int, int] = dataclasses.field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        self.tokens[delta.index], self.reused[delta.index] = delta.tokens, delta.reused

    def json(self) -> dict[str, Any]:
        prompt, answers = sum(self.prompts), sum(self.tokens.values())
        n = max(len(self.reused) // len(self.prompts), 1)
        cached = sum(self.reused.get(i * n, 0) for i in range(len(self.prompts)))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answers,
            "total_tokens": prompt + answers,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


@dataclasses.dataclass
class Form(abc.ABC):
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    prefix: ClassVar[str]

    model: str
    usage: Usage
    _: dataclasses.KW_ONLY
    scores: ScoreForm | None = None  # None: tokens have none
    prompts: Sequence[PromptForm] = ()  # of each sequence, if the response has anything of prompts

    def __post_init__(self) -> None:
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "object": self.kind,
            "created": int(time.time()),
            "model": self.model,
        }
        self._prompt_scores: dict[int, Sequence[TokenScore]] = {}

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        by_index: dict[int, list[Delta]] = {}
        for delta in deltas:
            self._take(delta)
            by_index.setdefault(delta.index, []).append(delta)
        choices = []
        for index in sorted(by_index):
            parts = [part for delta in by_index[index] for part in delta.parts]
            choices.append(self.choice(index, parts, by_index[index][-1].finish_reason))
        return {**self._head, "choices": choices, "usage": self.usage.json()}

    def chunks(self, delta: Delta, *, has_usage: bool) -> Iterator[dict[str, Any]]:
        self._take(delta)
        more = {"usage": None} if has_usage else {}
        for choice in self.chunk_choices(delta):
            yield {**self._head, "object": self.chunk_kind, "choices": [choice], **more}

    def _take(self, delta: Delta) -> None:
        self.usage.add(delta)
        if delta.prompt_scores:
            self._prompt_scores[delta.index] = delta.prompt_scores

    def _prompt_logprobs(self, index: int) -> dict[str, Any]:
        if not self.prompts or self.prompts[index].top is None:
            return {}
        scores = self._prompt_scores.get(index, ())
        return {"prompt_logprobs": self.prompts[index].logprobs(scores)}

    def events(self, delta: Delta, *, has_usage: bool) -> bytes:
        return b"".join(map(event, self.chunks(delta, has_usage=has_usage)))

    def last_events(self, *, has_usage: bool) -> bytes:
        return (event(self.usage_chunk()) if has_usage else b"") + DONE

    def error_events(self, error: Mapping[str, Any]) -> bytes:
        """The end of a stream that fails; `error`: with its message, param and code."""
        return event({"error": error}) + DONE

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream that has one."""
        chunk = {**self._head, "object": self.chunk_kind, "choices": []}
        return {**chunk, "usage": self.usage.json()}

    @abc.abstractmethod
    def choice(self, index: int, parts: Sequence[Part], reason: str | None) -> dict[str, Any]:
        """A sequence of a whole response."""

    @abc.abstractmethod
    def chunk_choices(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """The choices of a stream's chunks for one delta."""


class AnswerReader:
    """Splits an answer into its text, its reasoning and its calls of tools."""

    def __init__(self, channels: ChannelReader, tools: ToolReader | None = None) -> None:
        self._channels, self._tools = channels, tools
        self.call_count = 0

    @property
    def is_reasoning(self) -> bool:
        return self._channels.is_open

    def add(self, text: str, *, is_last: bool) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """The new text of each field of a message, and its new calls, by what this text completes.

        What channels say is reasoning.
        """
        texts, calls = dict[str, str](), list[dict[str, Any]]()
        pieces = [*self._channels.add(text), *(self._channels.end() if is_last else ())]
        for channel, piece in pieces:
            if channel is not None:
                texts[REASONING] = texts.get(REASONING, "") + piece
            else:
                self._take(piece, texts, calls, is_last=False)
        if is_last:
            self._take("", texts, calls, is_last=True)
        return texts, calls

    def _take(
        self, text: str, texts: dict[str, str], calls: list[dict[str, Any]], *, is_last: bool
    ) -> None:
        if self._tools is None:
            found: Iterable[str | Call] = (text,)
        else:
            found = self._tools.end() if is_last else self._tools.add(text)
        for piece in found:
            if isinstance(piece, Call):
                calls.append(self._call(piece))
            elif piece:
                texts["content"] = texts.get("content", "") + piece

    def _call(self, call: Call) -> dict[str, Any]:
        index, self.call_count = self.call_count, self.call_count + 1
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        identity = f"call_{uuid.uuid4().hex[:24]}"
        return {"index": index, "id": identity, "type": "function", "function": function}


@dataclasses.dataclass
class ChatForm(Form):
    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    readers: Sequence[AnswerReader]  # of each sequence
    _: dataclasses.KW_ONLY
    is_named: bool = False  # whether the request names the tool that is called
    begun: set[int] = dataclasses.field(default_factory=set)  # sequences that have a chunk

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """All answers have the same prompt."""
        return {**super().whole(deltas), **self._prompt_logprobs(0)}

    def choice(self, index: int, parts: Sequence[Part], reason: str | None) -> dict[str, Any]:
        texts, calls = self._read(index, parts, is_last=True)
        message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None, **texts}
        if calls:
            calls = [{name: call[name] for name in ("id", "type", "function")} for call in calls]
            message |= {"content": texts.get("content"), "tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(parts),
            "finish_reason": self._reason(index, reason),
        }

    def chunk_choices(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """The first chunk of a sequence has its role, the last one its end."""
        index = delta.index
        if index not in self.begun:
            self.begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": ""}, None)
        reason = delta.finish_reason
        texts, calls = self._read(index, delta.parts, is_last=reason is not None)
        if texts or (self.scores is not None and delta.parts):
            yield self._chunk(index, texts, None, self._logprobs(delta.parts))
        for call in calls:
            yield self._chunk(index, {"tool_calls": [call]}, None)
        if reason is not None:
            yield self._chunk(index, {}, self._reason(index, reason))

    def _reason(self, index: int, reason: str | None) -> str | None:
        """Why a sequence ended; calls of tools are a reason of their own, but a named one's."""
        has_calls = reason == "stop" and self.readers[index].call_count
        return "tool_calls" if has_calls and not self.is_named else reason

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        reason: str | None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _read(
        self, index: int, parts: Sequence[Part], *, is_last: bool
    ) -> tuple[dict[str, str], list[dict[str, Any]]]:
        text = "".join(part.text for part in parts)
        return self.readers[index].add(text, is_last=is_last)

    def _logprobs(self, parts: Sequence[Part]) -> dict[str, Any] | None:
        return None if self.scores is None else self.scores.chat(parts)


@dataclasses.dataclass
class CompletionForm(Form):
    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    offsets: dict[int, int] = dataclasses.field(default_factory=dict)  # characters so far

    def choice(self, index: int, parts: Sequence[Part], reason: str | None) -> dict[str, Any]:
        """The text of a sequence, or the next part of it; the first part has the prompt."""
        before, echoed = self._echoed(index) if index not in self.offsets else ("", [])
        return {
            "index": index,
            "text": before + "".join(part.text for part in parts),
            "logprobs": self._logprobs(index, [*echoed, *parts]),
            "finish_reason": reason,
            **self._prompt_logprobs(index),
        }

    def chunk_choices(self, delta: Delta) -> Iterator[dict[str, Any]]:
        yield self.choice(delta.index, delta.parts, delta.finish_reason)

    def _echoed(self, index: int) -> tuple[str, list[Part]]:
        prompt = self.prompts[index] if self.prompts else None
        if prompt is None or prompt.text is None:
            return "", []
        has_scores = self.scores is not None
        return prompt.text, prompt.parts(self._prompt_scores.get(index, ())) if has_scores else []

    def _logprobs(self, index: int, parts: Sequence[Part]) -> dict[str, Any] | None:
        offset = self.offsets.get(index, 0)
        self.offsets[index] = offset + sum(len(part.text) for part in parts)
        return None if self.scores is None else self.scores.completion(parts, offset)
