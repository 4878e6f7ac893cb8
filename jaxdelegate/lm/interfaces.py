"""What engines, conversations, sessions and benchmarks have, as `litert_lm.interfaces`.

Other implementations, for example those of tests, may inherit these classes.
"""

import abc
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from jaxdelegate.lm.completions import BenchmarkInfo, Responses
from jaxdelegate.lm.configs import (
    ActivationDataType,
    Backend,
    ConstrainedDecodingConfig,
    LoraConfig,
    LoraRankConfig,
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    ResponseFormat,
    SamplerConfig,
    SuppressTokensConfig,
    ThinkingConfig,
)
from jaxdelegate.lm.messages import AnyMessage, Content, Message
from jaxdelegate.lm.tools import Tool, ToolEventHandler

__all__ = [
    "AbstractBenchmark",
    "AbstractConversation",
    "AbstractEngine",
    "AbstractSession",
    "Backend",
    "BenchmarkInfo",
    "ConstrainedDecodingConfig",
    "LoraConfig",
    "LoraRankConfig",
    "NoRepeatNgramConfig",
    "RepetitionPenaltyConfig",
    "ResponseFormat",
    "Responses",
    "SamplerConfig",
    "SuppressTokensConfig",
    "ThinkingConfig",
    "Tool",
    "ToolEventHandler",
]

AnyBackend = Backend | type[Backend] | None


class _Context:
    """Closes itself, if it can be closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free what it holds."""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class AbstractEngine(_Context, abc.ABC):
    """The base of engines.

    Attributes:
        model_path: of the bundle.
        backend: where it runs.
        max_num_tokens: of a prompt and its answer, at most.
        max_num_images: of a message, at most; None: any number.
        cache_dir: the folder of compiled programs, as it was given.
        vision_backend: where images are encoded; None: messages have none.
        audio_backend: where sounds are encoded; None: messages have none.
        enable_speculative_decoding: whether the bundle's drafter proposes tokens.
        lora_rank_config: of the LoRA adapters that prompts may be computed with; None: with none.
        activation_data_type: in which floats it computes.
        use_ringbuffers_local_attention: without effect.
        enable_ynnpack: without effect.
    """

    model_path: str
    backend: Backend
    max_num_tokens: int | None = None
    max_num_images: int | None = None
    cache_dir: str | None = None
    vision_backend: Backend | None = None
    audio_backend: Backend | None = None
    enable_speculative_decoding: bool | None = None
    lora_rank_config: LoraRankConfig | None = None
    activation_data_type: ActivationDataType | None = None
    use_ringbuffers_local_attention: bool | None = None
    enable_ynnpack: bool | None = None

    @abc.abstractmethod
    def create_conversation(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Callable[..., Any] | Tool] | None = None,
        tool_event_handler: ToolEventHandler | None = None,
        automatic_tool_calling: bool = True,
        extra_context: Mapping[str, Any] | None = None,
        filter_channel_content_from_kv_cache: bool | None = None,
        thinking_config: ThinkingConfig | None = None,
        sampler_config: SamplerConfig | None = None,
        constrained_decoding_config: ConstrainedDecodingConfig | None = None,
        lora_config: LoraConfig | None = None,
        max_output_tokens: int | None = None,
        chat_template: str | None = None,
        enable_speculative_decoding: bool | None = None,
    ) -> "AbstractConversation":
        """A conversation: messages in, messages out."""

    @abc.abstractmethod
    def create_session(
        self,
        *,
        apply_prompt_template: bool = True,
        sampler_config: SamplerConfig | None = None,
        lora_config: LoraConfig | None = None,
        enable_speculative_decoding: bool | None = None,
    ) -> "AbstractSession":
        """A session: text in, text out."""

    @property
    @abc.abstractmethod
    def bos_token_id(self) -> int | None:
        """The token before a prompt, if the bundle declares one."""

    @property
    @abc.abstractmethod
    def eos_token_ids(self) -> list[list[int]]:
        """The sequences of tokens that end an answer."""

    @abc.abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, without a start token."""

    @abc.abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""


class AbstractConversation(_Context, abc.ABC):
    """The base of conversations.

    Attributes:
        tools: what the model may call.
        tool_event_handler: sees calls and results of tools.
        automatic_tool_calling: whether the conversation calls tools itself.
        extra_context: the variables that the template gets.
        thinking_config: whether the template asks the model to think, and how long it may.
        sampler_config: how tokens are chosen; None: as the bundle says.
        lora_config: the LoRA adapter that it is computed with; None: none.
        max_output_tokens: of an answer; None: as many as `Engine.max_num_tokens` leaves.
        chat_template: in Jinja; None: the bundle's.
    """

    def __init__(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Callable[..., Any] | Tool] | None = None,
        tool_event_handler: ToolEventHandler | None = None,
        automatic_tool_calling: bool = True,
        extra_context: Mapping[str, Any] | None = None,
        thinking_config: ThinkingConfig | None = None,
        sampler_config: SamplerConfig | None = None,
        lora_config: LoraConfig | None = None,
        max_output_tokens: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Keep the arguments as attributes."""
        self._stated = messages or []
        self.tools = tools or []
        self.tool_event_handler = tool_event_handler
        self.automatic_tool_calling = automatic_tool_calling
        self.extra_context = extra_context or {}
        self.thinking_config = thinking_config
        self.sampler_config = sampler_config
        self.lora_config = lora_config
        self.max_output_tokens = max_output_tokens
        self.chat_template = chat_template

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Those of `create_conversation`."""
        return self._stated

    @abc.abstractmethod
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
    ) -> Message:
        """Send a message, and return the model's answer."""

    @abc.abstractmethod
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
    ) -> Iterator[Message]:
        """Send a message, and yield the parts of the answer as they come."""

    @abc.abstractmethod
    def render_message_to_string(self, message: AnyMessage) -> str:
        """The text that a message would add to the conversation."""

    @property
    @abc.abstractmethod
    def token_count(self) -> int:
        """How many tokens the conversation has."""

    @abc.abstractmethod
    def get_benchmark_info(self) -> BenchmarkInfo:
        """How long the last answer took."""

    def cancel_process(self) -> None:
        """End the answer that is being generated."""

    def get_debug_artifacts(self) -> None:
        """None, as without LiteRT-LM's debugger."""


class AbstractSession(_Context, abc.ABC):
    """The base of sessions."""

    @abc.abstractmethod
    def run_prefill(self, contents: Sequence[str | Content]) -> None:
        """Append texts to the session."""

    @abc.abstractmethod
    def run_decode(self) -> Responses:
        """Generate an answer, and return it whole."""

    @abc.abstractmethod
    def run_decode_async(self) -> Iterator[Responses]:
        """Generate an answer, and yield its parts as they come."""

    @abc.abstractmethod
    def run_text_scoring(
        self, target_text: Sequence[str], store_token_lengths: bool = False
    ) -> Responses:
        """The probabilities of texts that might follow."""

    @abc.abstractmethod
    def get_benchmark_info(self) -> BenchmarkInfo:
        """How long the last prompt and its answer took."""

    @abc.abstractmethod
    def cancel_process(self) -> None:
        """End the answer that is being generated."""

    def get_debug_artifacts(self) -> None:
        """None, as without LiteRT-LM's debugger."""


@dataclasses.dataclass(eq=False, repr=False)
class AbstractBenchmark(abc.ABC):
    """The base of benchmarks; the attributes are the arguments of `Benchmark`."""

    model_path: str | os.PathLike[str]
    backend: AnyBackend
    prefill_tokens: int = 256
    decode_tokens: int = 256
    max_num_tokens: int | None = None
    cache_dir: str | None = None
    enable_speculative_decoding: bool | None = None
    prompt: str = "How are you"
    activation_data_type: ActivationDataType | None = None
    use_ringbuffers_local_attention: bool | None = None
    enable_ynnpack: bool | None = None

    @abc.abstractmethod
    def run(self) -> BenchmarkInfo:
        """Measure, and return the result."""
