"""Reads requests of OpenAI's API, and says what is wrong with them."""

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.serve.datatypes import shown
from jaxdelegate.serve.json_text import Buffer, parsed_object
from jaxdelegate.serve.records import RequestError

MAX_JSON_BYTES = 4 << 20  # of a request; Python's objects may take 30 times as much
_MAX_N = 128
_MAX_STOPS = 4  # OpenAI's
_MAX_STOP_CHARACTERS = 1024
_MAX_MESSAGES = 4096
_MAX_PROMPTS = 128
_MAX_TEXTS = 2048  # OpenAI's, of embeddings
DEFAULT_K = 64  # a token is one of the most likely ones
_INT64 = 1 << 63
_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions

# Fields without a meaning here: accepted, so that clients need not leave them out.
_IGNORED = frozenset(
    (
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)
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
_COMMON = frozenset(
    (
        "frequency_penalty",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
    )
)
_CHAT = _COMMON | {
    "chat_template_kwargs",
    "max_completion_tokens",
    "messages",
    "response_format",
}
_COMPLETION = _COMMON | {"prompt"}
_EMBEDDING = frozenset(("dimensions", "encoding_format", "input", "model"))
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# Of messages; the others must be empty.
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

    def sampler(self, declared: SamplerConfig, vocabulary: int, number: int) -> SamplerConfig:
        """The configuration of one of several answers.

        Args:
            declared: by the model; what the request leaves out.
            vocabulary: how many tokens the model knows.
            number: of the answer.
        """
        seed = secrets.randbits(32) if self.seed is None else self.seed + number
        if self.temperature is None and self.top_p is None and self.top_k is None:
            return dataclasses.replace(declared, seed=seed)
        temperature = declared.temperature if self.temperature is None else self.temperature
        top_p = declared.top_p if self.top_p is None else self.top_p
        top_k = declared.top_k if self.top_k is None else self.top_k or vocabulary
        return SamplerConfig(
            min(top_k or DEFAULT_K, vocabulary),
            1.0 if top_p is None else top_p,
            1.0 if temperature is None else temperature,
            seed,
        )


@dataclasses.dataclass(frozen=True)
class TextRequest:
    """A request for answers.

    Attributes:
        model: its name.
        messages: of a chat, with text contents; None: `prompts`.
        prompts: texts or lists of token ids.
        context: variables of the chat template.
        n: how many answers to each prompt.
        max_tokens: of an answer; None: as many as fit.
        stops: texts that end an answer.
        sampling: how tokens are chosen.
        has_scores: whether tokens have log probabilities.
        is_stream: whether the answers are sent as they come.
        has_usage: whether a stream ends with the usage.
        schema: that answers match, JSON then; None: any text.
    """

    model: str
    messages: Sequence[Mapping[str, Any]] | None
    prompts: Sequence[str | list[int]]
    context: Mapping[str, Any]
    n: int
    max_tokens: int | None
    stops: tuple[str, ...]
    sampling: Sampling
    has_scores: bool
    is_stream: bool
    has_usage: bool
    schema: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class EmbeddingRequest:
    """A request for embeddings.

    Attributes:
        model: its name.
        texts: or lists of token ids.
        size: only the first elements of embeddings; None: all.
        is_packed: whether they are base64 of float32.
    """

    model: str
    texts: Sequence[str | list[int]]
    size: int | None
    is_packed: bool


def embedding_request(body: Buffer) -> EmbeddingRequest:
    """Read a request of /v1/embeddings. Errors as `chat_request`."""
    fields = _Fields(body, _EMBEDDING)
    form = fields.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise ApiError(f"expected float or base64, got {shown(form)}", param="encoding_format")
    return EmbeddingRequest(
        fields.model(),
        _prompts(fields.get("input"), "input", _MAX_TEXTS),
        fields.integer("dimensions", 1, _INT64 - 1),
        form == "base64",
    )


def chat_request(body: Buffer) -> TextRequest:
    """Read a request of /v1/chat/completions. An ApiError, or a RequestError of invalid JSON."""
    fields = _Fields(body, _CHAT)
    given = [n for n in ("max_completion_tokens", "max_tokens") if fields.get(n) is not None]
    if len(given) == 2 and fields.get(given[0]) != fields.get(given[1]):
        raise ApiError("give one of them, or the same number", param=" and ".join(given))
    return fields.request(
        messages=[_message(m, f"messages[{i}]") for i, m in enumerate(fields.messages())],
        context=fields.object("chat_template_kwargs"),
        max_tokens=fields.integer(given[0], 1, _INT64 - 1) if given else None,
        has_scores=fields.flag("logprobs"),
        schema=_schema(fields.object("response_format")),
    )


def completion_request(body: Buffer) -> TextRequest:
    """Read a request of /v1/completions. Errors as `chat_request`."""
    fields = _Fields(body, _COMPLETION)
    if (logprobs := fields.get("logprobs")) is not None and not _is_integer(logprobs):
        raise ApiError(f"expected 0 or null, got {shown(logprobs)}", param="logprobs")
    if logprobs:
        raise ApiError(
            "expected 0, which returns the log probabilities of the chosen tokens: those of "
            f"others are not computed; got {shown(logprobs)}",
            param="logprobs",
        )
    max_tokens = fields.integer("max_tokens", 1, _INT64 - 1)
    return fields.request(
        prompts=_prompts(fields.get("prompt"), "prompt", _MAX_PROMPTS),
        max_tokens=_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        has_scores=logprobs is not None,
    )


class _Fields:
    """The fields of a request."""

    def __init__(self, body: Buffer, known: frozenset[str]) -> None:
        self._fields = parsed_object(body)
        for name, value in self._fields.items():
            if name in known or name in _IGNORED:
                continue
            if name in _NEUTRAL:
                _check_neutral(name, value)
            else:
                raise ApiError(
                    f"unknown field; expected one of {', '.join(sorted(known))}",
                    param=shown(name).strip("'\""),
                    code="unknown_parameter",
                )

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def request(
        self,
        *,
        max_tokens: int | None,
        has_scores: bool,
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompts: Sequence[str | list[int]] = (),
        context: Mapping[str, Any] | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> TextRequest:
        """The request with the fields that both endpoints have."""
        n = self.integer("n", 1, _MAX_N)
        is_stream = self.flag("stream")
        return TextRequest(
            model=self.model(),
            messages=messages,
            prompts=prompts,
            context=context or {},
            n=1 if n is None else n,
            max_tokens=max_tokens,
            stops=self._stops(),
            sampling=self._sampling(),
            has_scores=has_scores,
            is_stream=is_stream,
            has_usage=self._has_usage(is_stream),
            schema=schema,
        )

    def messages(self) -> list[Any]:
        found = self._required("messages")
        if not isinstance(found, list) or not found:
            raise ApiError(f"expected a list of messages, got {shown(found)}", param="messages")
        if len(found) > _MAX_MESSAGES:
            raise ApiError(
                f"expected at most {_MAX_MESSAGES} messages, got {len(found)}", param="messages"
            )
        return found

    def object(self, name: str) -> Mapping[str, Any]:
        found = self.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise ApiError(f"expected an object, got {shown(found)}", param=name)
        _check_text(json.dumps(found, ensure_ascii=False), name)
        return found

    def integer(self, name: str, least: int, most: int) -> int | None:
        found = self.get(name)
        if found is None:
            return None
        if not _is_integer(found) or not least <= found <= most:
            expected = f"an integer from {least} to {most}"
            raise ApiError(f"expected {expected}, got {shown(found)}", param=name)
        return int(found)

    def number(self, name: str, least: float, most: float) -> float | None:
        found = self.get(name)
        if found is None:
            return None
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or not least <= found <= most:  # refuses NaN, too
            expected = f"a number from {least:g} to {most:g}"
            raise ApiError(f"expected {expected}, got {shown(found)}", param=name)
        return float(found)

    def flag(self, name: str) -> bool:
        found = self.get(name)
        if found is None:
            return False
        if not isinstance(found, bool):
            raise ApiError(f"expected true or false, got {shown(found)}", param=name)
        return found

    def _required(self, name: str) -> Any:
        if self.get(name) is None:
            raise ApiError("missing field", param=name, code="missing_required_parameter")
        return self.get(name)

    def model(self) -> str:
        found = self._required("model")
        if not isinstance(found, str):
            raise ApiError(f"expected a string, got {shown(found)}", param="model")
        return found

    def _sampling(self) -> Sampling:
        penalties = [self.number(f"{n}_penalty", -2, 2) for n in ("presence", "frequency")]
        return Sampling(
            self.number("temperature", 0, 2),
            self.number("top_p", 0, 1),
            self._top_k(),
            self.integer("seed", -_INT64, _INT64 - 1),
            *(penalty or 0.0 for penalty in penalties),
        )

    def _top_k(self) -> int | None:
        found = self.integer("top_k", -1, _INT64 - 1)  # vLLM's; -1 and 0: all
        return None if found is None else max(found, 0)

    def _stops(self) -> tuple[str, ...]:
        found = self.get("stop")
        if found is None:
            return ()
        stops = [found] if isinstance(found, str) else found
        is_list = isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)
        if not is_list or len(stops) > _MAX_STOPS:
            expected = f"a string, or a list of at most {_MAX_STOPS} strings"
            raise ApiError(f"expected {expected}, got {shown(found)}", param="stop")
        for stop in stops:
            _check_text(stop, "stop")
            if not 0 < len(stop) <= _MAX_STOP_CHARACTERS:
                raise ApiError(
                    f"expected texts of 1 to {_MAX_STOP_CHARACTERS} characters, got {len(stop)}",
                    param="stop",
                )
        return tuple(stops)

    def _has_usage(self, is_stream: bool) -> bool:
        options = self.get("stream_options")
        if options is None:
            return False
        if not is_stream:
            raise ApiError("expected only with stream: true", param="stream_options")
        if not isinstance(options, dict):
            raise ApiError(f"expected an object, got {shown(options)}", param="stream_options")
        found = options.get("include_usage", False)
        if not isinstance(found, bool):
            raise ApiError(
                f"expected true or false, got {shown(found)}", param="stream_options.include_usage"
            )
        return found


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
    kind = response_format.get("type", "text" if not response_format else None)
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    where = "response_format"
    if kind != "json_schema":
        expected = "expected one of text, json_object, json_schema"
        raise ApiError(f"{expected}, got {shown(kind)}", param=f"{where}.type")
    given = response_format.get("json_schema")
    if not isinstance(given, dict):
        raise ApiError(f"expected an object, got {shown(given)}", param=f"{where}.json_schema")
    schema = given.get("schema", {})  # without one any JSON matches
    if not isinstance(schema, dict):
        expected = f"expected an object, got {shown(schema)}"
        raise ApiError(expected, param=f"{where}.json_schema.schema")
    return schema


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_text(text: str, where: str) -> None:
    """JSON can name half of a character, which has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            f"expected Unicode text, got an unpaired surrogate at character {error.start}",
            param=where,
        ) from None


# ---- messages and prompts


def _message(message: Any, where: str) -> dict[str, Any]:
    """A message as chat templates see it."""
    if not isinstance(message, dict):
        raise ApiError(f"expected an object, got {shown(message)}", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ApiError(
            f"expected one of {', '.join(_ROLES)}, got {shown(role)}", param=f"{where}.role"
        )
    for name, value in message.items():
        if name not in _MESSAGE and value not in (None, [], ""):
            raise ApiError(
                f"not supported, got {shown(value)}", param=f"{where}.{shown(name)[1:-1]}"
            )
    parts = _parts(message.get("content"), role, f"{where}.content")
    found = {"role": _ROLES[role], "content": [{"type": "text", "text": text} for text in parts]}
    for name in ("name", "reasoning_content"):
        if (text := message.get(name)) is not None:
            found[name] = _text(text, f"{where}.{name}")
    return found


def _parts(content: Any, role: str, where: str) -> list[str]:
    if content is None and role == "assistant":
        return []
    if isinstance(content, str):
        return [_text(content, where)]
    if not isinstance(content, list) or not content:
        raise ApiError(f"expected a string or a list of parts, got {shown(content)}", param=where)
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise ApiError(f"expected an object, got {shown(part)}", param=where)
    if part.get("type") != "text":
        raise ApiError(
            f"expected 'text', got {shown(part.get('type'))}: this server reads text only",
            param=f"{where}.type",
        )
    return _text(part.get("text"), f"{where}.text")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ApiError(f"expected a string, got {shown(value)}", param=where)
    _check_text(value, where)
    return value


def _prompts(value: Any, name: str, most: int) -> list[str | list[int]]:
    """One text or several, each a text or a list of token ids."""
    if value is None:
        raise ApiError("missing field", param=name, code="missing_required_parameter")
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
        if isinstance(prompt, list):
            if not prompt or not all(_is_integer(i) and 0 <= i < 1 << 31 for i in prompt):
                raise ApiError(f"expected token ids, got {shown(prompt)}", param=where)
        else:
            _text(prompt, where)
    return prompts
