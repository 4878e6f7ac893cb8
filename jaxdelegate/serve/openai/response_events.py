"""Responses of /v1/responses, and the events of their streams."""

import itertools
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdelegate.lm.text_stream import Part
from jaxdelegate.serve.openai.batching import Delta
from jaxdelegate.serve.openai.responses import REASONING, AnswerReader, Usage
from jaxdelegate.serve.openai.scores import ScoreForm

Event = dict[str, Any]


class ResponseForm:
    """A response, which grows with an answer; each change of it is an event."""

    def __init__(
        self,
        model: str,
        usage: Usage,
        reader: AnswerReader,
        echo: Mapping[str, Any],
        scores: ScoreForm | None = None,
    ) -> None:
        """`echo`: the fields of the request that the response shows."""
        self._usage, self._reader, self._scores = usage, reader, scores
        self._response: dict[str, Any] = {
            "id": _identity("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **echo,
        }
        self._numbers = itertools.count()
        self._item: dict[str, Any] | None = None  # the one that gets text
        self._part: dict[str, Any] = {}  # its content
        self._pieces: list[str] = []  # the text of that
        self._unread: list[Part] = []  # tokens of which no item has the text yet
        self._reasoning_tokens = 0
        self._is_begun = False

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        for delta in deltas:
            for _ in self._changes(delta):
                pass
        return self._response

    def events(self, delta: Delta, *, has_usage: bool = False) -> bytes:
        """Server-sent events for one delta; the last one has the usage, asked for or not."""
        del has_usage
        return b"".join(map(_sent, self._changes(delta)))

    def last_events(self, *, has_usage: bool = False) -> bytes:
        """Nothing: the event of the response's end was the last one."""
        del has_usage
        return b""

    def error_events(self, error: Mapping[str, Any]) -> bytes:
        words = {name: error[name] for name in ("code", "message", "param")}
        self._response["status"] = "failed"
        self._response["error"] = {"code": "server_error", "message": error["message"]}
        failed = self._event("error", **words), self._event("response.failed", **self._shown())
        return b"".join(map(_sent, failed))

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _shown(self) -> dict[str, Any]:
        return {"response": self._response}

    def _changes(self, delta: Delta) -> Iterator[Event]:
        """Events, each to be used before the next one: they have parts of the response."""
        if not self._is_begun:
            self._is_begun = True
            yield self._event("response.created", **self._shown())
            yield self._event("response.in_progress", **self._shown())
        self._usage.add(delta)
        for part in delta.parts:
            self._unread.append(part)
            yield from self._read(part.text)
        if delta.finish_reason is not None:
            yield from self._read("", is_last=True)
            yield from self._end(delta.finish_reason)

    def _read(self, text: str, *, is_last: bool = False) -> Iterator[Event]:
        was_reasoning = self._reader.is_reasoning
        texts, calls = self._reader.add(text, is_last=is_last)
        if "content" not in texts and (was_reasoning or self._reader.is_reasoning):
            self._reasoning_tokens += len(self._unread)  # with the marks around it
            self._unread.clear()
        for field, piece in texts.items():
            yield from self._text(field, piece)
        for call in calls:
            yield from self._call(call)

    def _text(self, field: str, piece: str) -> Iterator[Event]:
        item, part = _items(field)
        if self._item is None or self._item["type"] != item["type"]:
            yield from self._close()
            yield from self._open(item, part)
        self._pieces.append(piece)
        more = {}
        if field == "content":
            read = self._scores.chat(self._unread)["content"] if self._scores else []
            scores = [_score(entry) for entry in read]
            self._part["logprobs"] += scores
            self._unread.clear()
            more["logprobs"] = scores
        yield self._in_part(f"response.{part['type']}.delta", delta=piece, **more)

    def _open(self, item: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
        yield self._added(item)
        self._item, self._part, self._pieces = item, part, []
        yield self._in_part("response.content_part.added", part=part)

    def _added(self, item: dict[str, Any]) -> Event:
        output = self._response["output"]
        output.append(item)
        return self._event("response.output_item.added", output_index=len(output) - 1, item=item)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        item, part = self._item, self._part
        if item is None:
            return
        part["text"] = text = "".join(self._pieces)
        scores = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        yield self._in_part(f"response.{part['type']}.done", text=text, **scores)
        yield self._in_part("response.content_part.done", part=part)
        item |= {"status": status, "content": [part]}
        self._item = None
        yield self._done(item)

    def _done(self, item: dict[str, Any]) -> Event:
        last = len(self._response["output"]) - 1
        return self._event("response.output_item.done", output_index=last, item=item)

    def _in_part(self, kind: str, **fields: Any) -> Event:
        return self._in_item(kind, content_index=0, **fields)

    def _in_item(self, kind: str, **fields: Any) -> Event:
        output = self._response["output"]
        place = {"item_id": output[-1]["id"], "output_index": len(output) - 1}
        return self._event(kind, **place, **fields)

    def _call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        """A call, which comes whole."""
        yield from self._close()
        self._unread.clear()
        function = call["function"]
        item = {
            "id": _identity("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": "",
        }
        yield self._added(item)
        arguments = function["arguments"]
        kind = "response.function_call_arguments"
        yield self._in_item(f"{kind}.delta", delta=arguments)
        yield self._in_item(f"{kind}.done", name=item["name"], arguments=arguments)
        item |= {"status": "completed", "arguments": arguments}
        yield self._done(item)

    def _end(self, reason: str) -> Iterator[Event]:
        """The response has at least an empty message."""
        response = self._response
        if not response["output"]:
            yield from self._open(*_items("content"))
        status = "incomplete" if reason == "length" else "completed"
        yield from self._close(status)
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        now = int(time.time()) if status == "completed" else None
        response |= {"status": status, "completed_at": now, "usage": self._usage_json()}
        yield self._event(f"response.{status}", **self._shown())

    def _usage_json(self) -> dict[str, Any]:
        counted = self._usage.json()
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": counted["total_tokens"],
        }


def _items(field: str) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {"status": "in_progress", "content": []}
    if field == REASONING:
        item = {"id": _identity("rs"), "type": "reasoning", "summary": [], **common}
        return item, {"type": "reasoning_text", "text": ""}
    item = {"id": _identity("msg"), "type": "message", "role": "assistant", **common}
    return item, {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _score(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A log probability of a chat; here the bytes are a list also where they are unknown."""
    others = [{**other, "bytes": other["bytes"] or []} for other in entry["top_logprobs"]]
    return {**entry, "bytes": entry["bytes"] or [], "top_logprobs": others}


def _identity(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _sent(content: Event) -> bytes:
    text = json.dumps(content, separators=(",", ":"))
    return f"event: {content['type']}\ndata: {text}\n\n".encode()
