"""Reads requests of OpenAI's API, and says what is wrong with them."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jaxdelegate.lm.constraints import Grammar
from jaxdelegate.lm.scores import MOST_TOP
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.json_objects import Buffer, parsed_object
from jaxdelegate.serve.openai import grammars, messages, tools
from jaxdelegate.serve.openai.fields import (
    ANY,
    BIASES,
    FLAG,
    IDS,
    STRING,
    ApiError,
    Kind,
    integers,
    is_integer,
    numbers,
    one_of,
    texts,
)
from jaxdelegate.serve.openai.messages import Chat
from jaxdelegate.text import shortened

MAX_JSON_BYTES = 4 << 20  # limits a request; Python's objects may take 30 times as much
_MAX_STOPS = 4  # OpenAI's
_MAX_STOP_CHARACTERS = 1024
_MAX_SALT_CHARACTERS = 256
_MAX_PLACE = 200  # characters of a place in an error
_MAX_PROMPTS = 128
_MAX_TEXTS = 2048  # OpenAI's, of embeddings
_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions

_STREAM_OPTIONS = Kind(
    "an object with include_usage",
    lambda value: isinstance(value, dict) and {*value} <= {"include_usage", "include_obfuscation"},
)
_PROMPT_IDS = IDS._replace(has=lambda value: value and IDS.has(value))
_TOP = integers(0, MOST_TOP)

# Fields and their values; null stands for a field that is left out.
_COMMON: Mapping[str, Kind] = {
    **grammars.FIELDS,
    "cache_salt": Kind(  # vLLM's
        f"a string of 1 to {_MAX_SALT_CHARACTERS} characters",
        lambda value: isinstance(value, str) and 0 < len(value) <= _MAX_SALT_CHARACTERS,
    ),
    "frequency_penalty": numbers(-2, 2),
    "ignore_eos": FLAG,  # vLLM's, like the next ones
    "include_stop_str_in_output": FLAG,
    "logit_bias": BIASES,
    "max_tokens": integers(1),
    "min_p": numbers(0, 1),
    "min_tokens": integers(0),
    "model": STRING,
    "n": integers(1, 128),
    "presence_penalty": numbers(-2, 2),
    "repetition_penalty": numbers(1, 1e6),
    "seed": integers(-(1 << 63)),
    "skip_special_tokens": FLAG,
    "stop": texts(_MAX_STOPS, _MAX_STOP_CHARACTERS),
    "stop_token_ids": IDS,
    "stream": FLAG,
    "stream_options": _STREAM_OPTIONS,
    "temperature": numbers(0, 2),
    "top_k": integers(-1),  # -1 and 0: all
    "top_p": numbers(0, 1),
}
_SAMPLING = {"frequency_penalty", "logit_bias", "min_p", "presence_penalty", "repetition_penalty"}
_SAMPLING |= {"seed", "temperature", "top_k", "top_p"}
CHAT: Mapping[str, Kind] = {
    **_COMMON,
    **messages.FIELDS,
    **tools.FIELDS,
    "logprobs": FLAG,
    "max_completion_tokens": integers(1),
    "prompt_logprobs": _TOP,
    "top_logprobs": _TOP,
}
_COMPLETION: Mapping[str, Kind] = {
    **_COMMON,
    "echo": FLAG,
    "logprobs": _TOP,
    "max_tokens": integers(0),
    "prompt": ANY,
    "prompt_logprobs": _TOP,
}
_EMBEDDING: Mapping[str, Kind] = {
    "dimensions": integers(1),
    "encoding_format": one_of("float", "base64"),
    "input": ANY,
    "model": STRING,
}
TOKENIZE: Mapping[str, Kind] = {
    "add_special_tokens": FLAG,
    "model": STRING,
    "prompt": STRING,
    **{name: CHAT[name] for name in ("add_generation_prompt", "chat_template_kwargs")},
    **{name: CHAT[name] for name in ("continue_final_message", "messages", "tools")},
}
DETOKENIZE: Mapping[str, Kind] = {"model": STRING, "tokens": IDS}

Neutral = tuple[tuple[Any, ...], str]  # values that are accepted, and why no others are
# Fields without a meaning here: accepted, so that clients need not leave them out.
IGNORED = {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
IGNORED |= {"service_tier", "store", "user"}
# Fields that are accepted with these values only, and why.
NEUTRAL: Mapping[str, Neutral] = {
    "audio": ((), "the model generates text only"),
    "allowed_token_ids": ((), "use structured_outputs"),
    "bad_words": (([],), "use logit_bias"),
    "best_of": ((1,), "use n"),
    "echo": ((False,), "use /v1/completions"),
    "function_call": (("none", "auto"), "use tool_choice"),
    "functions": (([],), "use tools"),
    "length_penalty": ((1, 1.0), "beam search is not supported"),
    "modalities": ((["text"],), "the model generates text only"),
    "prediction": ((), "predicted outputs are not supported"),
    "suffix": (("",), "text before a suffix is not supported"),
    "top_logprobs": ((0,), "use logprobs"),
    "truncate_prompt_tokens": ((), "prompts are not cut"),
    "use_beam_search": ((False,), "beam search is not supported"),
    "verbosity": (("medium",), "ask for it in a message"),
    "web_search_options": ((), "the server has no web search"),
}


@dataclasses.dataclass(frozen=True)
class Ends:
    """Where answers end."""

    max_tokens: int | None  # the most tokens of an answer; None: as many as fit
    min_tokens: int  # before these the bundle's stop tokens are not chosen
    stops: tuple[str, ...]  # texts that end an answer
    stop_ids: tuple[int, ...]  # tokens that end it, besides the bundle's
    ignores_stops: bool  # the bundle's stop tokens are never chosen
    has_stop: bool  # whether the answer has the text that ends it


@dataclasses.dataclass(frozen=True)
class TextRequest:
    model: str  # "": the only one
    n: int  # answers to each prompt
    ends: Ends
    sampling: Mapping[str, Any]  # the fields that say how tokens are chosen
    has_scores: bool  # whether tokens have log probabilities
    top: int  # of how many most likely tokens, too
    prompt_top: int | None  # the same for the prompt's tokens, apart; None: without
    is_stream: bool  # whether the answers are sent as they come
    has_usage: bool  # whether a stream ends with the usage
    skips_special: bool  # whether answers are without the text of special tokens
    chat: Chat | None = None  # None: `prompts`
    prompts: Sequence[str | list[int]] = ()  # texts, or lists of token ids
    grammar: Grammar | None = None  # that answers match; None: any text
    grammar_field: str = ""  # which has it
    cache_salt: str = ""  # only requests with the same one share prefixes
    has_echo: bool = False  # whether answers begin with the prompt
    echo: Mapping[str, Any] | None = None  # what /v1/responses shows of it; None: another endpoint
    ignored: tuple[str, ...] = ()  # unknown fields

    @property
    def hides_special(self) -> bool:
        """Whether the texts have no special tokens; calls of tools need theirs."""
        return self.skips_special and not (self.chat is not None and self.chat.tools.shown)

    @property
    def scored_top(self) -> int | None:
        """How many most likely tokens the prompt's tokens need; None: they are not scored."""
        echoed = self.top if self.has_echo and self.has_scores else None
        return max((n for n in (self.prompt_top, echoed) if n is not None), default=None)


@dataclasses.dataclass(frozen=True)
class EmbeddingRequest:
    model: str
    texts: Sequence[str | list[int]]  # or token ids
    size: int | None  # only the first elements of embeddings; None: all
    is_packed: bool  # whether they are base64 of float32
    ignored: tuple[str, ...] = ()  # unknown fields


def embedding_request(body: Buffer) -> EmbeddingRequest:
    fields, ignored = checked(body, _EMBEDDING, {"input"})
    return EmbeddingRequest(
        fields.get("model", ""),
        _prompts(fields["input"], "input", _MAX_TEXTS),
        fields.get("dimensions"),
        fields.get("encoding_format") == "base64",
        ignored,
    )


def chat_request(body: Buffer) -> TextRequest:
    """Read a request of /v1/chat/completions. An ApiError, or a RequestError of invalid JSON."""
    fields, ignored = checked(body, CHAT, {"messages"})
    limits = {n: fields[n] for n in ("max_completion_tokens", "max_tokens") if n in fields}
    if len(set(limits.values())) > 1:
        raise ApiError("give one of them, or the same number", param=" and ".join(limits))
    has_scores, top = fields.get("logprobs", False), fields.get("top_logprobs", 0)
    if top and not has_scores:
        raise ApiError("expected only with logprobs: true", param="top_logprobs")
    return text_request(
        fields,
        next(iter(limits.values()), None),
        chat=messages.chat(fields),
        has_scores=has_scores,
        top=top,
        ignored=(*ignored, *messages.unknown(fields["messages"])),
    )


def completion_request(body: Buffer) -> TextRequest:
    fields, ignored = checked(body, _COMPLETION, {"prompt"})
    return text_request(
        fields,
        fields.get("max_tokens", _COMPLETION_TOKENS),
        prompts=_prompts(fields["prompt"], "prompt", _MAX_PROMPTS),
        has_scores="logprobs" in fields,
        top=fields.get("logprobs", 0),
        has_echo=fields.get("echo", False),
        ignored=ignored,
    )


def checked(
    body: Buffer,
    known: Mapping[str, Kind],
    required: Collection[str] = (),
    neutral: Mapping[str, Neutral] = NEUTRAL,
    ignored: Collection[str] = IGNORED,
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The fields of a request that are not null, and the names of those that are unknown."""
    fields, unknown = {}, []
    for name, value in parsed_object(body).items():
        if name in known:
            if value is not None:
                fields[name] = value
        elif name in neutral:
            check_neutral(name, value, neutral)
        elif name not in ignored:
            unknown.append(name)
    if b"\\u" in bytes(body):
        _check_texts(fields)
    fields = {name: known[name].checked(value, name) for name, value in fields.items()}
    for name in required:
        if name not in fields:
            raise ApiError("missing field", param=name, code="missing_required_parameter")
    return fields, tuple(unknown)


def unknown_field(name: str) -> ApiError:
    return ApiError(
        "unknown field (the server was started with --strict_fields)",
        param=shown(name).strip("'\""),
        code="unknown_parameter",
    )


def text_request(fields: Mapping[str, Any], max_tokens: int | None, **more: Any) -> TextRequest:
    is_stream, options = fields.get("stream", False), fields.get("stream_options") or {}
    if options and not is_stream:
        raise ApiError("expected only with stream: true", param="stream_options")
    has_usage = FLAG.checked(options.get("include_usage") or False, "stream_options.include_usage")
    if is_stream and "prompt_logprobs" in fields:  # as in vLLM
        raise ApiError("expected only without stream: true", param="prompt_logprobs")
    field, grammar = grammars.grammar(fields)
    return TextRequest(
        model=fields.get("model", ""),
        cache_salt=fields.get("cache_salt", ""),
        n=fields.get("n", 1),
        ends=_ends(fields, max_tokens),
        sampling={name: fields[name] for name in _SAMPLING & fields.keys()},
        prompt_top=fields.get("prompt_logprobs"),
        is_stream=is_stream,
        has_usage=has_usage,
        skips_special=fields.get("skip_special_tokens", False),
        grammar=grammar,
        grammar_field=field,
        **more,
    )


def _ends(fields: Mapping[str, Any], max_tokens: int | None) -> Ends:
    min_tokens = fields.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        expected = f"expected at most max_tokens, {max_tokens}, got {min_tokens}"
        raise ApiError(expected, param="min_tokens")
    return Ends(
        max_tokens,
        min_tokens,
        fields.get("stop", ()),
        tuple(fields.get("stop_token_ids", ())),
        fields.get("ignore_eos", False),
        fields.get("include_stop_str_in_output", False),
    )


def check_neutral(name: str, value: Any, neutral: Mapping[str, Neutral] = NEUTRAL) -> None:
    """An ApiError if a field has a value without which answers would be different."""
    allowed, why = neutral[name]
    # True == 1 in Python, but not in JSON.
    if value is None or any(value == a and type(value) is type(a) for a in allowed):
        return
    choices = " or ".join(json.dumps(choice) for choice in (*allowed, None))
    raise ApiError(
        f"{why}; expected {choices}, got {shown(value)}", param=name, code="unsupported_parameter"
    )


# ---- texts


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


# ---- prompts


def _prompts(value: Any, name: str, most: int) -> list[str | list[int]]:
    """One text or several, each a text or a list of token ids."""
    is_one = isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(map(is_integer, value))
    )
    prompts = [value] if is_one else value
    if not isinstance(prompts, list) or not 0 < len(prompts) <= most:
        raise ApiError(
            "expected a string, a list of token ids, or a list of at most "
            f"{most} of these, got {shown(value)}",
            param=name,
        )
    return [
        (_PROMPT_IDS if isinstance(prompt, list) else STRING).checked(
            prompt, name if is_one else f"{name}[{number}]"
        )
        for number, prompt in enumerate(prompts)
    ]
