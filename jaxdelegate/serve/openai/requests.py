"""Reads requests of OpenAI's API, and says what is wrong with them."""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxdelegate.serve.clients import RequestError, shown
from jaxdelegate.serve.json_objects import Buffer, parsed_object
from jaxdelegate.text import shortened

MAX_JSON_BYTES = 4 << 20  # limits a request; Python's objects may take 30 times as much
_MAX_STOPS = 4  # OpenAI's
_MAX_STOP_CHARACTERS = 1024
_MAX_SALT_CHARACTERS = 256
_MAX_MESSAGES = 4096
_MAX_PLACE = 200  # characters of a place in an error
_MAX_PROMPTS = 128
_MAX_TEXTS = 2048  # OpenAI's, of embeddings
_INT64 = 1 << 63
_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


class _Kind(NamedTuple):
    """What values a field may have."""

    expected: str
    has: Callable[[Any], Any]  # whether it has a value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _integers(least: int, most: int = _INT64 - 1) -> _Kind:
    expected = f"an integer from {least} to {most}"
    return _Kind(expected, lambda value: _is_integer(value) and least <= value <= most)


def _numbers(least: float, most: float) -> _Kind:
    expected = f"a number from {least:g} to {most:g}"
    return _Kind(expected, lambda value: _is_number(value) and least <= value <= most)  # not NaN


def _are_stops(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return (
        isinstance(stops, list)
        and len(stops) <= _MAX_STOPS
        and all(isinstance(s, str) and 0 < len(s) <= _MAX_STOP_CHARACTERS for s in stops)
    )


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_STRING = _Kind("a string", lambda value: isinstance(value, str))
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_ROLE = _Kind(f"one of {', '.join(_ROLES)}", lambda value: value in [*_ROLES])
_CONTEXT = _Kind(
    "an object without the names messages and add_generation_prompt",
    lambda value: isinstance(value, dict) and not {"messages", "add_generation_prompt"} & {*value},
)
_STREAM_OPTIONS = _Kind(
    "an object with include_usage",
    lambda value: isinstance(value, dict) and {*value} <= {"include_usage", "include_obfuscation"},
)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_FORMAT = _Kind(
    "one of text, json_object, json_schema",
    lambda value: value in ("text", "json_object", "json_schema"),
)
_IDS = _Kind("token ids", lambda v: v and all(_is_integer(i) and 0 <= i < 1 << 31 for i in v))
_ANY = _Kind("", lambda _: True)  # it is checked elsewhere

_CONTENT = _Kind(
    "a string or a list of parts", lambda v: isinstance(v, str) or (isinstance(v, list) and v)
)
_TEXT = _Kind("'text', as this server reads text only", lambda value: value == "text")

# Fields and their values; null stands for a field that is left out.
_COMMON: Mapping[str, _Kind] = {
    "cache_salt": _Kind(  # vLLM's
        f"a string of 1 to {_MAX_SALT_CHARACTERS} characters",
        lambda value: isinstance(value, str) and 0 < len(value) <= _MAX_SALT_CHARACTERS,
    ),
    "frequency_penalty": _numbers(-2, 2),
    "max_tokens": _integers(1),
    "model": _STRING,
    "n": _integers(1, 128),
    "presence_penalty": _numbers(-2, 2),
    "seed": _integers(-_INT64),
    "stop": _Kind(
        f"a string, or a list of at most {_MAX_STOPS} strings, of 1 to {_MAX_STOP_CHARACTERS} "
        "characters each",
        _are_stops,
    ),
    "stream": _FLAG,
    "stream_options": _STREAM_OPTIONS,
    "temperature": _numbers(0, 2),
    "top_k": _integers(-1),  # vLLM's; -1 and 0: all
    "top_p": _numbers(0, 1),
}
_CHAT: Mapping[str, _Kind] = {
    **_COMMON,
    "chat_template_kwargs": _CONTEXT,
    "logprobs": _FLAG,
    "max_completion_tokens": _integers(1),
    "messages": _Kind(
        f"a list of messages, 1 to {_MAX_MESSAGES}",
        lambda value: isinstance(value, list) and 0 < len(value) <= _MAX_MESSAGES,
    ),
    "response_format": _OBJECT,
}
_COMPLETION: Mapping[str, _Kind] = {
    **_COMMON,
    "logprobs": _Kind(
        "0, which returns the log probabilities of the chosen tokens: those of others are not "
        "computed; or null",
        lambda value: _is_integer(value) and value == 0,
    ),
    "prompt": _ANY,
}
_EMBEDDING: Mapping[str, _Kind] = {
    "dimensions": _integers(1),
    "encoding_format": _Kind("float or base64", lambda value: value in ("float", "base64")),
    "input": _ANY,
    "model": _STRING,
}

# Fields without a meaning here: accepted, so that clients need not leave them out.
_IGNORED = {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
_IGNORED |= {"service_tier", "store", "user"}
# Fields that are accepted with these values only, and why.
_NO_TOOLS = "tools are not supported"
_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), "the model generates text only"),
    "best_of": ((1,), "use n"),
    "echo": ((False,), "answers do not have the prompt"),
    "function_call": (("none", "auto"), _NO_TOOLS),
    "functions": (([],), _NO_TOOLS),
    "logit_bias": (({},), "biases of tokens are not supported"),
    "modalities": ((["text"],), "the model generates text only"),
    "parallel_tool_calls": ((True, False), _NO_TOOLS),
    "prediction": ((), "predicted outputs are not supported"),
    "reasoning_effort": ((), "use chat_template_kwargs, if the model's template has a variable"),
    "response_format": (({"type": "text"},), "use /v1/chat/completions"),
    "suffix": (("",), "text before a suffix is not supported"),
    "tool_choice": (("none", "auto"), _NO_TOOLS),
    "tools": (([],), _NO_TOOLS),
    "top_logprobs": ((0,), "only the chosen tokens have log probabilities"),
    "verbosity": ((), "ask for it in a message"),
    "web_search_options": ((), "the server has no web search"),
}
# Fields of messages; the others must be empty.
_MESSAGE = frozenset(("role", "content", "name", "reasoning_content", "channels"))


class ApiError(RequestError):
    """A request is refused.

    Attributes:
        param: the field that is wrong, for example `messages[0].content`; None: none alone.
        code: a word for programs, for example `model_not_found`.
    """

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message if param is None else f"{param}: {message}", status)
        self.param, self.code = param, code


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; None: the model's default."""

    temperature: float | None
    top_p: float | None
    top_k: int | None  # 0: all tokens
    seed: int | None
    presence_penalty: float
    frequency_penalty: float


@dataclasses.dataclass(frozen=True)
class TextRequest:
    """A request for answers."""

    model: str
    n: int  # answers to each prompt
    max_tokens: int | None  # in an answer; None: as many as fit
    stops: tuple[str, ...]  # texts that end an answer
    sampling: Sampling
    has_scores: bool  # whether tokens have log probabilities
    is_stream: bool  # whether the answers are sent as they come
    has_usage: bool  # whether a stream ends with the usage
    messages: Sequence[Mapping[str, Any]] | None = None  # those of a chat; None: `prompts`
    prompts: Sequence[str | list[int]] = ()  # texts, or lists of token ids
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for the chat template
    schema: Mapping[str, Any] | None = None  # that answers match, JSON then; None: any text
    cache_salt: str = ""  # only requests with the same one share prefixes


@dataclasses.dataclass(frozen=True)
class EmbeddingRequest:
    """A request for embeddings."""

    model: str
    texts: Sequence[str | list[int]]  # or token ids
    size: int | None  # only the first elements of embeddings; None: all
    is_packed: bool  # whether they are base64 of float32


def embedding_request(body: Buffer) -> EmbeddingRequest:
    """Read a request of /v1/embeddings. Errors as `chat_request`."""
    fields = _checked(body, _EMBEDDING, {"input"})
    return EmbeddingRequest(
        fields["model"],
        _prompts(fields["input"], "input", _MAX_TEXTS),
        fields.get("dimensions"),
        fields.get("encoding_format") == "base64",
    )


def chat_request(body: Buffer) -> TextRequest:
    """Read a request of /v1/chat/completions. An ApiError, or a RequestError of invalid JSON."""
    fields = _checked(body, _CHAT, {"messages"})
    limits = {n: fields[n] for n in ("max_completion_tokens", "max_tokens") if n in fields}
    if len(set(limits.values())) > 1:
        raise ApiError("give one of them, or the same number", param=" and ".join(limits))
    return _text_request(
        fields,
        messages=[_message(m, f"messages[{i}]") for i, m in enumerate(fields["messages"])],
        context=fields.get("chat_template_kwargs", {}),
        max_tokens=next(iter(limits.values()), None),
        has_scores=fields.get("logprobs", False),
        schema=_schema(fields.get("response_format", {"type": "text"})),
    )


def completion_request(body: Buffer) -> TextRequest:
    """Read a request of /v1/completions. Errors as `chat_request`."""
    fields = _checked(body, _COMPLETION, {"prompt"})
    return _text_request(
        fields,
        prompts=_prompts(fields["prompt"], "prompt", _MAX_PROMPTS),
        max_tokens=fields.get("max_tokens", _COMPLETION_TOKENS),
        has_scores="logprobs" in fields,
    )


def _checked(
    body: Buffer, known: Mapping[str, _Kind], required: Collection[str]
) -> Mapping[str, Any]:
    """The fields of a request that are not null, besides `model` those that are required."""
    fields = {}
    for name, value in parsed_object(body).items():
        if name in known:
            if value is not None:
                fields[name] = value
        elif name in _NEUTRAL:
            _check_neutral(name, value)
        elif name not in _IGNORED:
            raise ApiError(
                f"unknown field; expected one of {', '.join(sorted(known))}",
                param=shown(name).strip("'\""),
                code="unknown_parameter",
            )
    for name, value in fields.items():
        _check(known[name], value, name)
    if b"\\u" in bytes(body):
        _check_texts(fields)
    for name in (*required, "model"):
        if name not in fields:
            raise ApiError("missing field", param=name, code="missing_required_parameter")
    return fields


def _text_request(fields: Mapping[str, Any], **more: Any) -> TextRequest:
    """The request with the fields that both endpoints have."""
    stops, top_k = fields.get("stop", ()), fields.get("top_k")
    is_stream, options = fields.get("stream", False), fields.get("stream_options")
    if options is not None and not is_stream:
        raise ApiError("expected only with stream: true", param="stream_options")
    has_usage = (options or {}).get("include_usage", False)
    return TextRequest(
        model=fields["model"],
        cache_salt=fields.get("cache_salt", ""),
        n=fields.get("n", 1),
        stops=(stops,) if isinstance(stops, str) else tuple(stops),
        sampling=Sampling(
            fields.get("temperature"),
            fields.get("top_p"),
            None if top_k is None else max(top_k, 0),
            fields.get("seed"),
            fields.get("presence_penalty", 0.0),
            fields.get("frequency_penalty", 0.0),
        ),
        is_stream=is_stream,
        has_usage=_check(_FLAG, has_usage, "stream_options.include_usage"),
        **more,
    )


def _check(kind: _Kind, value: Any, where: str) -> Any:
    if not kind.has(value):
        raise ApiError(f"expected {kind.expected}, got {shown(value)}", param=where)
    return value


def _check_neutral(name: str, value: Any) -> None:
    allowed, why = _NEUTRAL[name]
    # True == 1 in Python, but not in JSON.
    if value is None or any(value == a and type(value) is type(a) for a in allowed):
        return
    choices = " or ".join(json.dumps(choice) for choice in (*allowed, None))
    raise ApiError(
        f"{why}; expected {choices}, got {shown(value)}", param=name, code="unsupported_parameter"
    )


def _schema(response_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that answers match; None: any text."""
    kind = _check(_FORMAT, response_format.get("type"), "response_format.type")
    if kind != "json_schema":
        return {"type": "object"} if kind == "json_object" else None
    named = _check(_OBJECT, response_format.get("json_schema"), "response_format.json_schema")
    if named.get("schema") is None:
        return {}  # any JSON matches
    schema: dict[str, Any] = _check(_OBJECT, named["schema"], "response_format.json_schema.schema")
    return schema


def _check_texts(fields: Mapping[str, Any]) -> None:
    """JSON can name half of a character, which has no UTF-8.

    Only the place that is looked at is held: paths to all of them may take gigabytes.
    """
    place: list[str | int] = []
    left = [_entries(fields)]
    while left:
        for key, value in left[-1]:
            _check_text(key, place)
            if isinstance(value, str):
                _check_text(value, [*place, key])
            elif isinstance(value, list | dict):
                place.append(key)
                left.append(_entries(value))
                break
        else:
            left.pop()
            del place[-1:]


def _entries(value: Mapping[str, Any] | list[Any]) -> Iterator[tuple[str | int, Any]]:
    return iter(enumerate(value) if isinstance(value, list) else value.items())


def _check_text(text: str | int, place: Sequence[str | int]) -> None:
    try:
        str(text).encode()
    except UnicodeEncodeError as error:
        where = "".join(f".{key}" if isinstance(key, str) else f"[{key}]" for key in place)
        problem = f"got an unpaired surrogate at character {error.start}"
        raise ApiError(
            f"expected Unicode text, {problem}", param=shortened(where[1:], _MAX_PLACE)
        ) from None


# ---- messages and prompts


def _message(message: Any, where: str) -> dict[str, Any]:
    """A message as chat templates see it."""
    role = _check(_ROLE, _check(_OBJECT, message, where).get("role"), f"{where}.role")
    for name, value in message.items():
        if name not in _MESSAGE and value not in (None, [], ""):
            raise ApiError(
                f"not supported, got {shown(value)}", param=f"{where}.{shown(name)[1:-1]}"
            )
    parts = _parts(message.get("content"), role, f"{where}.content")
    checked = {"role": _ROLES[role], "content": [{"type": "text", "text": text} for text in parts]}
    for name in ("name", "reasoning_content"):
        if (text := message.get(name)) is not None:
            checked[name] = _check(_STRING, text, f"{where}.{name}")
    return checked


def _parts(content: Any, role: str, where: str) -> list[str]:
    if content is None and role == "assistant":
        return []
    if isinstance(_check(_CONTENT, content, where), str):
        return [content]
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, where: str) -> Any:
    _check(_TEXT, _check(_OBJECT, part, where).get("type"), f"{where}.type")
    return _check(_STRING, part.get("text"), f"{where}.text")


def _prompts(value: Any, name: str, most: int) -> list[str | list[int]]:
    """One text or several, each a text or a list of token ids."""
    is_one = isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(map(_is_integer, value))
    )
    prompts = [value] if is_one else value
    if not isinstance(prompts, list) or not 0 < len(prompts) <= most:
        raise ApiError(
            "expected a string, a list of token ids, or a list of at most "
            f"{most} of these, got {shown(value)}",
            param=name,
        )
    for number, prompt in enumerate(prompts):
        where = name if is_one else f"{name}[{number}]"
        _check(_IDS if isinstance(prompt, list) else _STRING, prompt, where)
    return prompts
