"""Language models: text generation and embeddings from bundles, as with `litert_lm`.

`from jaxdelegate import lm as litert_lm` replaces `import litert_lm`: the classes below have the
names, arguments and results of that package, for texts, images and tools.
"""

from jaxdelegate.lm.benchmark import Benchmark
from jaxdelegate.lm.completions import BenchmarkInfo, Completion, Responses
from jaxdelegate.lm.configs import (
    ActivationDataType,
    Backend,
    ConstrainedDecodingConfig,
    LiteRtLmConstraintProviderType,
    LoraConfig,
    LoraRankConfig,
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    ResponseFormat,
    SamplerConfig,
    SuppressTokensConfig,
    ThinkingConfig,
)
from jaxdelegate.lm.conversation import Conversation
from jaxdelegate.lm.embedding_engine import EmbeddingEngine
from jaxdelegate.lm.embeddings import EmbeddingOptions, EmbeddingResponse, InputOverflowStrategy
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.inputs import empty_caches, step_inputs
from jaxdelegate.lm.interfaces import (
    AbstractBenchmark,
    AbstractConversation,
    AbstractEngine,
    AbstractSession,
)
from jaxdelegate.lm.logs import LogSeverity, set_min_log_severity
from jaxdelegate.lm.messages import Content, Contents, Message, Role, ToolCall
from jaxdelegate.lm.model_info import (
    EmbeddingCapability,
    LiteRtLmModality,
    LiteRtLmModelType,
    LlmCapability,
    ModelInfo,
    SupportedModalities,
)
from jaxdelegate.lm.session import Session
from jaxdelegate.lm.tools import Tool, ToolEventHandler, tool_from_function
from jaxdelegate.lm.unsupported import missing
from jaxdelegate.lm.vision.image_inputs import ImageInputs, image_inputs

ModelType = LiteRtLmModelType

__all__ = [
    "AbstractBenchmark",
    "AbstractConversation",
    "AbstractEngine",
    "AbstractSession",
    "ActivationDataType",
    "Backend",
    "Benchmark",
    "BenchmarkInfo",
    "Completion",
    "ConstrainedDecodingConfig",
    "Content",
    "Contents",
    "Conversation",
    "EmbeddingCapability",
    "EmbeddingEngine",
    "EmbeddingOptions",
    "EmbeddingResponse",
    "Engine",
    "ImageInputs",
    "InputOverflowStrategy",
    "LiteRtLmConstraintProviderType",
    "LiteRtLmModality",
    "LiteRtLmModelType",
    "LlmCapability",
    "LogSeverity",
    "LoraConfig",
    "LoraRankConfig",
    "Message",
    "ModelInfo",
    "ModelType",
    "NoRepeatNgramConfig",
    "RepetitionPenaltyConfig",
    "ResponseFormat",
    "Responses",
    "Role",
    "SamplerConfig",
    "Session",
    "SupportedModalities",
    "SuppressTokensConfig",
    "ThinkingConfig",
    "Tool",
    "ToolCall",
    "ToolEventHandler",
    "empty_caches",
    "image_inputs",
    "set_min_log_severity",
    "step_inputs",
    "tool_from_function",
]


def __getattr__(name: str) -> object:
    raise AttributeError(missing(name))
