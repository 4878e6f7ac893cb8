"""How an engine runs and how tokens are chosen: the configurations of `litert_lm`."""

import dataclasses
import enum
import json
import logging
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from jaxdelegate.errors import OptionError

_LOGGER = logging.getLogger("jaxdelegate")


class Backend:
    """Where a model runs: `Backend.CPU()`, `Backend.GPU()`, `Backend.TPU()`."""

    CPU: ClassVar[type["CPU"]]
    GPU: ClassVar[type["GPU"]]
    TPU: ClassVar[type["TPU"]]
    NPU: ClassVar[type["NPU"]]

    def get_name(self) -> str:
        """The platform: "cpu", "gpu" or "tpu"."""
        return type(self).__name__.lower()


@dataclasses.dataclass(frozen=True)
class CPU(Backend):
    """The CPU.

    XLA uses all cores, or as many threads as the environment variable NPROC says when the process
    starts; `thread_count` cannot change that, and the engine logs a warning.
    """

    thread_count: int | None = None


@dataclasses.dataclass(frozen=True)
class GPU(Backend):
    """The first GPU; the engine chooses the number of steps itself."""

    gpu_decode_steps_per_sync: int | None = None


@dataclasses.dataclass(frozen=True)
class TPU(Backend):
    """The first TPU."""


@dataclasses.dataclass(frozen=True)
class NPU(Backend):
    """Not supported. An OptionError says so."""

    litert_dispatch_lib_dir: str | None = None

    def __post_init__(self) -> None:
        raise OptionError(
            "Backend.NPU is not supported: bundles for NPUs contain their machine code; use "
            "Backend.CPU(), Backend.GPU() or Backend.TPU() with a bundle for CPUs or GPUs"
        )


Backend.CPU, Backend.GPU, Backend.TPU, Backend.NPU = CPU, GPU, TPU, NPU
BACKENDS: Mapping[str, type[Backend]] = {"cpu": CPU, "gpu": GPU, "tpu": TPU}


def instance(backend: Backend | type[Backend] | None) -> Backend | None:
    """A backend; older scripts have its class."""
    return backend() if isinstance(backend, type) else backend


def with_backend(options: Mapping[str, Any], backend: Backend | None) -> dict[str, Any]:
    """JaxDelegate's options with the platform of a backend; `Backend()` leaves them."""
    if backend is None or type(backend) is Backend:
        return dict(options)
    if isinstance(backend, CPU) and backend.thread_count is not None:
        _LOGGER.warning(
            "Backend.CPU(thread_count=%d): XLA has its threads already; set the environment "
            "variable NPROC before the process starts",
            backend.thread_count,
        )
    return {**options, "platform": backend.get_name()}


class ActivationDataType(enum.IntEnum):
    """In which numbers a model computes; the engine has FLOAT32 and FLOAT16."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT16 = 2
    INT8 = 3

    @classmethod
    def from_str(cls, val: str) -> "ActivationDataType | None":
        """The type of "fp32", "fp16", "int16" or "int8"; None: another text."""
        return dict(zip(("fp32", "fp16", "int16", "int8"), cls, strict=True)).get(val.lower())


def with_activations(options: Mapping[str, Any], kind: ActivationDataType | None) -> dict[str, Any]:
    """JaxDelegate's options with the type of activations as `compute_dtype`.

    Raises:
        OptionError: it is an integer, or the options have another `compute_dtype`.
    """
    if kind is None:
        return dict(options)
    name = str(getattr(kind, "name", "")).lower()
    if name not in ("float32", "float16"):
        raise OptionError(
            "activation_data_type: expected ActivationDataType.FLOAT32 or FLOAT16, or None, got "
            f"{kind!r}"
        )
    if (other := options.get("compute_dtype", name)) != name:
        raise OptionError(f"activation_data_type: {name} contradicts the compute_dtype {other!r}")
    return {**options, "compute_dtype": name}


@dataclasses.dataclass(frozen=True)
class LoraRankConfig:
    """The ranks of the LoRA adapters of an engine; None or 0: without LoRA.

    Attributes:
        lora_rank: of those for text.
        audio_lora_rank: of those for sound, which are not supported.
    """

    lora_rank: int | None = None
    audio_lora_rank: int | None = None

    @property
    def rank(self) -> int:
        """That of adapters for text; 0: none. An OptionError: it is negative, or sound's is set."""
        if self.audio_lora_rank:
            raise OptionError(
                "audio_lora_rank: audio encoders take no adapters here, got "
                f"{self.audio_lora_rank}; leave it out"
            )
        if (self.lora_rank or 0) < 0:
            raise OptionError(f"lora_rank: expected at least 0, got {self.lora_rank}")
        return self.lora_rank or 0


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """The files of a LoRA adapter; None: without LoRA.

    Attributes:
        lora_path: of its weights for text.
        audio_lora_path: of those for sound, which are not supported.
    """

    lora_path: str | None = None
    audio_lora_path: str | None = None

    @property
    def path(self) -> str | None:
        """That of weights for text; None: none. An OptionError: there are weights for sound."""
        if self.audio_lora_path:
            raise OptionError(
                "audio_lora_path: audio encoders take no adapters here, got "
                f"{self.audio_lora_path!r}; leave it out"
            )
        return self.lora_path or None


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """How the next token is chosen, among the `top_k` with the largest logits.

    Attributes:
        top_k: how many; None: 1, which chooses the most likely one.
        top_p: of these, the fewest that have this probability together; None: 0.95.
        temperature: logits are divided by it; 0: the most likely token. None: 1.
        seed: of the random numbers, which depend on it and on the position only; None: 0.

    Raises:
        OptionError: a value is out of range.
    """

    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k <= 0:
            raise OptionError(f"top_k: expected a positive number, got {self.top_k}")
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise OptionError(f"top_p: expected a number from 0 to 1, got {self.top_p}")
        if self.temperature is not None and not self.temperature >= 0:
            raise OptionError(f"temperature: expected at least 0, got {self.temperature}")


@dataclasses.dataclass(frozen=True)
class ThinkingConfig:
    """Whether a chat template asks the model to think first.

    Attributes:
        enable_thinking: the template's variable `enable_thinking`.
        thinking_token_budget: the most reasoning tokens, in the bundle's channel for reasoning or
            its first one; then the channel is ended, and the answer goes on. -1: as many as the
            model likes. They count if the prompt opens the channel, or the answer begins with
            it.
    """

    enable_thinking: bool = True
    thinking_token_budget: int = -1


@dataclasses.dataclass(frozen=True)
class RepetitionPenaltyConfig:
    """Lowers the logits of tokens that the answer already has.

    Attributes:
        repetition_penalty: positive logits are divided by it, negative ones multiplied.
        presence_penalty: subtracted once.
        frequency_penalty: subtracted for each time the token appeared.
        window_size: how many of the last tokens count; None or 0: all.

    Raises:
        OptionError: a value is out of range.
    """

    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    window_size: int | None = None

    def __post_init__(self) -> None:
        if self.repetition_penalty is not None and not self.repetition_penalty >= 1:
            raise OptionError(
                f"repetition_penalty: expected at least 1, got {self.repetition_penalty}"
            )
        if self.window_size is not None and self.window_size < 0:
            raise OptionError(f"window_size: expected at least 0, got {self.window_size}")


@dataclasses.dataclass(frozen=True)
class NoRepeatNgramConfig:
    """Forbids tokens that would repeat `no_repeat_ngram_size` tokens of the answer.

    Attributes:
        no_repeat_ngram_size: how many tokens; None or 0: nothing is forbidden.
        window_size: how many of the last tokens count; None or 0: all.

    Raises:
        OptionError: a value is negative.
    """

    no_repeat_ngram_size: int | None = None
    window_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("no_repeat_ngram_size", "window_size"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise OptionError(f"{name}: expected at least 0, got {value}")


@dataclasses.dataclass(frozen=True)
class SuppressTokensConfig:
    """Tokens that are never chosen.

    Attributes:
        suppress_tokens: their ids.

    Raises:
        OptionError: an id is negative.
    """

    suppress_tokens: Collection[int] | None = None

    def __post_init__(self) -> None:
        for token in self.suppress_tokens or ():
            if token < 0:
                raise OptionError(f"suppress_tokens: expected ids of at least 0, got {token}")


@dataclasses.dataclass(frozen=True)
class ResponseFormat:
    """What an answer matches: `ResponseFormat.json(schema)`, `ResponseFormat.regex(pattern)`.

    Attributes:
        type: one of `Type`.
        schema_or_pattern: the schema in JSON, or the regular expression.
    """

    class Type:
        """Kinds of formats."""

        NONE, REGEX, JSON_OBJECT = range(3)

    type: int
    schema_or_pattern: str

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str) -> Self:
        """JSON that matches a schema. A ValueError: the text is not JSON."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        json.loads(text)
        return cls(cls.Type.JSON_OBJECT, text)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """A text that matches a regular expression."""
        return cls(cls.Type.REGEX, pattern)


class LiteRtLmConstraintProviderType(enum.IntEnum):
    """Packages that constrain answers."""

    NONE = 0
    LL_GUIDANCE = 1


@dataclasses.dataclass(frozen=True)
class ConstrainedDecodingConfig:
    """Whether calls of tools match their schemas.

    Attributes:
        enable: whether they do. A `ResponseFormat` needs no such configuration here.
        provider: without effect: llguidance is the only one.
    """

    enable: bool = True
    provider: LiteRtLmConstraintProviderType | None = None


def output_limit(max_output_tokens: int | None) -> int | None:
    """The most tokens of an answer; None: as many as fit. An OptionError: less than one."""
    if max_output_tokens is not None and max_output_tokens < 1:
        raise OptionError(f"max_output_tokens: expected at least 1, got {max_output_tokens}")
    return max_output_tokens
