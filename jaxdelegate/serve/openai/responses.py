"""Responses of OpenAI's API, whole and in parts."""

import abc
import base64
import dataclasses
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.text_stream import Part
from jaxdelegate.lm.tool_calls import Call, ToolReader
from jaxdelegate.serve.openai.batching import Delta

DONE = b"data: [DONE]\n\n"
_UNLIKELY = -9999.0
_REASONING = "reasoning_content"  # as in DeepSeek's API and vLLM


def event(content: object) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def embeddings(
    model: str, tokens: int, rows: Sequence[np.ndarray], *, is_packed: bool
) -> dict[str, Any]:
    """The response of /v1/embeddings; `tokens`: of all texts."""
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
    """How many tokens a request has, by sequence."""

    prompts: Sequence[int]  # tokens of each prompt; the answers to one count it once
    tokens: dict[int, int] = dataclasses.field(default_factory=dict)
    reused: dict[int, int] = dataclasses.field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        """Take the numbers of a delta."""
        self.tokens[delta.index], self.reused[delta.index] = delta.tokens, delta.reused

    def json(self) -> dict[str, Any]:
        """The object `usage`."""
        prompt, answers = sum(self.prompts), sum(self.tokens.values())
        n = max(len(self.reused) // len(self.prompts), 1)
        cached = sum(self.reused.get(i * n, 0) for i in range(len(self.prompts)))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answers,
            "total_tokens": prompt + answers,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class Form(abc.ABC):
    """What both endpoints' responses have."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, model: str, usage: Usage, *, has_scores: bool) -> None:
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
        }
        self.usage, self._has_scores = usage, has_scores

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """The response with all deltas of all sequences."""
        by_index: dict[int, list[Delta]] = {}
        for delta in deltas:
            self.usage.add(delta)
            by_index.setdefault(delta.index, []).append(delta)
        choices = []
        for index in sorted(by_index):
            parts = [part for delta in by_index[index] for part in delta.parts]
            choices.append(self.choice(index, parts, by_index[index][-1].finish_reason))
        return {**self._head, "choices": choices, "usage": self.usage.json()}

    def chunks(self, delta: Delta, *, has_usage: bool) -> Iterator[dict[str, Any]]:
        """The chunks of a stream for one delta; `has_usage`: they have a field for it."""
        self.usage.add(delta)
        more = {"usage": None} if has_usage else {}
        for choice in self.chunk_choices(delta):
            yield {**self._head, "object": self.chunk_kind, "choices": [choice], **more}

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

    def add(self, text: str, *, is_last: bool) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """The new text of each field of a message, and its new calls, by what this text completes.

        What channels say is reasoning.
        """
        texts, calls = dict[str, str](), list[dict[str, Any]]()
        pieces = [*self._channels.add(text), *(self._channels.end() if is_last else ())]
        for channel, piece in pieces:
            if channel is not None:
                texts[_REASONING] = texts.get(_REASONING, "") + piece
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


class ChatForm(Form):
    """Responses of /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(
        self,
        model: str,
        usage: Usage,
        readers: Sequence[AnswerReader],
        *,
        has_scores: bool,
        is_named: bool = False,
    ) -> None:
        """`readers`: of each sequence; `is_named`: the request names the tool that is called."""
        super().__init__(model, usage, has_scores=has_scores)
        self._readers, self._is_named, self._begun = readers, is_named, set[int]()

    def choice(self, index: int, parts: Sequence[Part], reason: str | None) -> dict[str, Any]:
        """The message of a sequence."""
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
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": ""}, None)
        reason = delta.finish_reason
        texts, calls = self._read(index, delta.parts, is_last=reason is not None)
        if texts or (self._has_scores and delta.parts):
            yield self._chunk(index, texts, None, self._logprobs(delta.parts))
        for call in calls:
            yield self._chunk(index, {"tool_calls": [call]}, None)
        if reason is not None:
            yield self._chunk(index, {}, self._reason(index, reason))

    def _reason(self, index: int, reason: str | None) -> str | None:
        """Why a sequence ended; calls of tools are a reason of their own, but a named one's."""
        has_calls = reason == "stop" and self._readers[index].call_count
        return "tool_calls" if has_calls and not self._is_named else reason

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
        return self._readers[index].add(text, is_last=is_last)

    def _logprobs(self, parts: Sequence[Part]) -> dict[str, Any] | None:
        if not self._has_scores:
            return None
        return {"content": [_token(part) for part in parts], "refusal": None}


def _token(part: Part) -> dict[str, Any]:
    return {
        "token": part.text,
        "logprob": _finite(part.score),
        "bytes": list(part.text.encode()),
        "top_logprobs": [],
    }


def _finite(score: float | None) -> float:
    """JSON has no infinity; OpenAI's and vLLM's number for very unlikely tokens instead."""
    return _UNLIKELY if score is None or not score > _UNLIKELY else score


class CompletionForm(Form):
    """Responses of /v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(self, model: str, usage: Usage, *, has_scores: bool) -> None:
        super().__init__(model, usage, has_scores=has_scores)
        self._offsets: dict[int, int] = {}  # characters of each sequence so far

    def choice(self, index: int, parts: Sequence[Part], reason: str | None) -> dict[str, Any]:
        """The text of a sequence, or the next part of it."""
        return {
            "index": index,
            "text": "".join(part.text for part in parts),
            "logprobs": self._logprobs(index, parts),
            "finish_reason": reason,
        }

    def chunk_choices(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """One chunk."""
        yield self.choice(delta.index, delta.parts, delta.finish_reason)

    def _logprobs(self, index: int, parts: Sequence[Part]) -> dict[str, Any] | None:
        if not self._has_scores:
            return None
        offsets, at = [], self._offsets.get(index, 0)
        for part in parts:
            offsets.append(at)
            at += len(part.text)
        self._offsets[index] = at
        return {
            "tokens": [part.text for part in parts],
            "token_logprobs": [_finite(part.score) for part in parts],
            "top_logprobs": None,
            "text_offset": offsets,
        }
