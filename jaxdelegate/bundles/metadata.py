"""What a bundle declares about its language model: special tokens, sampler, chat template.

Source: runtime/proto/llm_metadata.proto of LiteRT-LM; MediaPipe's older bundles have LlmParameters.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from jaxdelegate import protos
from jaxdelegate.errors import ModelError
from jaxdelegate.optional import optional_module
from jaxdelegate.text import printable

IMAGE_FAMILIES = ("gemma3", "gemma3n", "gemma4", "lfm2")  # model types whose images are supported
SOUND_FAMILIES = ("gemma4",)  # and those whose sounds are
EMBEDDING_FAMILY = "embedding_gemma_v2"  # of text encoders with images and sounds
_MOST_BYTES = 16 << 20
_PACKAGE = "litert_lm_builder.runtime.proto"
_ROLES = ("user", "model", "system")


@dataclasses.dataclass(frozen=True)
class Token:
    """One or more tokens: their text or their ids.

    Attributes:
        text: for example "<eos>"; None: it is declared by `ids`.
        ids: in the tokenizer's vocabulary; empty: it is declared by `text`.
    """

    text: str | None
    ids: tuple[int, ...] = ()

    def __str__(self) -> str:
        return repr(self.text) if self.text is not None else " ".join(map(str, self.ids))


@dataclasses.dataclass(frozen=True)
class SamplerParameters:
    """How to choose the next token.

    Attributes:
        type: "TOP_K", "TOP_P", "GREEDY" or "TYPE_UNSPECIFIED".
        k: the number of most likely tokens that may be chosen.
        p: the probability that these tokens have together.
        temperature: the logits are divided by it.
        seed: of the random numbers; None: any.
    """

    type: str
    k: int
    p: float
    temperature: float
    seed: int | None


@dataclasses.dataclass(frozen=True)
class Channel:
    """A part of an answer between two texts, for example the model's reasoning."""

    name: str
    start: str
    end: str
    is_reasoning: bool


@dataclasses.dataclass(frozen=True)
class Affixes:
    """Texts before and after what a role says, in bundles without a template."""

    prefix: str
    suffix: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlmMetadata:
    """What a bundle declares about its language model.

    Attributes:
        proto: the message, with what depends on the model type.
        start_token: the first token of a prompt; None: none.
        stop_tokens: each ends an answer.
        affixes: by role: "user", "model", "system".
        pad_token: fills prompts up to a length; None: not declared.
        suppressed_tokens: ids that are never chosen.
        max_num_tokens: of prompt and answer together; None: not declared.
        model_type: "gemma3", "qwen3", "generic_model", ...; empty: not declared.
        template: the chat template, in Jinja; None: `affixes` apply.
        sampler: None: not declared.
        channels: parts of an answer that are not its text.
        kv_cache_init_value: what caches contain before they are written; None: not declared.
        supports_thinking: None: not declared.
        supports_function_calling: None: not declared.
        min_runtime_version: of LiteRT-LM; None: any.
    """

    proto: Any = dataclasses.field(repr=False)
    start_token: Token | None
    stop_tokens: tuple[Token, ...]
    affixes: Mapping[str, Affixes]
    pad_token: Token | None = None
    suppressed_tokens: tuple[int, ...] = ()
    max_num_tokens: int | None = None
    model_type: str = ""
    template: str | None = None
    sampler: SamplerParameters | None = None
    channels: tuple[Channel, ...] = ()
    kv_cache_init_value: int | None = None
    supports_thinking: bool | None = None
    supports_function_calling: bool | None = None
    min_runtime_version: str | None = None


def read_message(name: str, data: memoryview, where: str) -> Any:
    """A message of LiteRT-LM's protos: "LlmMetadata", "ExecutorMetadata", "EmbeddingMetadata"."""
    module = f"{name.removesuffix('Metadata').lower()}_metadata_pb2"
    message = getattr(optional_module(f"{_PACKAGE}.{module}", "lm"), name)()
    return _parsed(message, data, where)


def read_llm_metadata(data: memoryview, where: str) -> LlmMetadata:
    """A section's metadata. A ModelError if damaged, an OptionError without LiteRT-LM's protos."""
    try:
        message = read_message("LlmMetadata", data, where)
    except ModelError:
        old = _old_metadata(data, where)
        if old is None:
            raise
        return old
    # The bytes of LlmParameters may be those of LlmMetadata, too, except for fields of other types.
    is_new = message.HasField("start_token") or not _has_unknown_fields(message)
    return (None if is_new else _old_metadata(data, where)) or _of_message(message)


def _parsed(message: Any, data: memoryview, where: str) -> Any:
    name = message.DESCRIPTOR.name
    if len(data) > _MOST_BYTES:
        raise ModelError(
            f"{printable(where)}: {name} must have at most {_MOST_BYTES} bytes, got {len(data)}"
        )
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise ModelError(
            f"{printable(where)}: expected a message {name}, got damaged data: {error}"
        ) from error
    return message


def _has_unknown_fields(message: Any) -> bool:
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())


def _of_message(m: Any) -> LlmMetadata:
    def optional(field: str) -> Any:
        return getattr(m, field) if m.HasField(field) else None

    texts = {r: getattr(m.prompt_templates, r) for r in _ROLES if m.prompt_templates.HasField(r)}
    return LlmMetadata(
        proto=m,
        start_token=token_of(optional("start_token")),
        stop_tokens=tuple(t for t in map(token_of, m.stop_tokens) if t is not None),
        pad_token=token_of(optional("pad_token")),
        suppressed_tokens=tuple(m.suppress_tokens.ids),
        max_num_tokens=m.max_num_tokens or None,
        model_type=m.llm_model_type.WhichOneof("model_type") or "",
        template=optional("jinja_prompt_template") or None,
        affixes={role: Affixes(a.prefix, a.suffix) for role, a in texts.items()},
        sampler=_sampler(optional("sampler_params")),
        channels=tuple(
            Channel(c.channel_name, c.start, c.end, c.is_reasoning_channel) for c in m.channels
        ),
        kv_cache_init_value=optional("kv_cache_init_value"),
        supports_thinking=optional("supports_thinking"),
        supports_function_calling=optional("supports_function_calling"),
        min_runtime_version=optional("min_runtime_version"),
    )


def token_of(union: Any) -> Token | None:
    """The token of a message TokenUnion; None: it has none."""
    kind = None if union is None else union.WhichOneof("token_union")
    if kind is None:
        return None
    if kind == "token_str":
        return Token(union.token_str)
    return Token(None, tuple(union.token_ids.ids))


def _sampler(m: Any) -> SamplerParameters | None:
    if m is None:
        return None
    names = m.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number
    kind = names[m.type].name if m.type in names else str(m.type)
    seed = m.seed if m.HasField("seed") else None
    return SamplerParameters(kind, m.k, m.p, m.temperature, seed)


def _old_metadata(data: memoryview, where: str) -> LlmMetadata | None:
    """MediaPipe's LlmParameters; None: it is another message."""
    try:
        m = _parsed(protos.message("odml.infra.proto.LlmParameters"), data, where)
    except ModelError:
        return None
    has_start = m.HasField("start_token") or m.HasField("start_token_id")
    if not has_start or _has_unknown_fields(m):
        return None
    start = Token(m.start_token) if m.HasField("start_token") else Token(None, (m.start_token_id,))
    old = m.prompt_template
    has_system = {"system": Affixes(old.session_prefix, "")} if old.session_prefix else {}
    return LlmMetadata(
        proto=m,
        start_token=start,
        stop_tokens=tuple(map(Token, m.stop_tokens)),
        affixes={"user": Affixes(old.prompt_prefix, old.prompt_suffix), **has_system},
    )
