"""What a bundle can do, without an engine: `litert_lm.ModelInfo`.

Source: litert_lm/model_info.py of LiteRT-LM 0.18.1; what its library returns was observed.
"""

import dataclasses
import enum
import functools
import os
from collections.abc import Mapping
from typing import NoReturn, Self

from jaxdelegate.bundles.bundle import Bundle, open_bundle
from jaxdelegate.bundles.metadata import LlmMetadata
from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.function.records import Signature
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.encoder_graph import EncoderGraph, encoder_graph
from jaxdelegate.lm.graph import DRAFTER
from jaxdelegate.lm.magic_numbers import is_magic
from jaxdelegate.lm.signatures import language_graph
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.sections import EMBEDDING_METADATA, LLM_METADATA
from jaxdelegate.passes.limits import Limits

_TEXT, _ENCODER = "prefill_decode", "text_encoder"  # parts
_VISION = ("vision_encoder", "vision_adapter")
_LIMITS = "backend_constraint"
_BACKENDS = ("cpu", "gpu", "npu")
_NO_NPUS = "NPUs are not supported; use supported_backends_for_modality"
_POOLING = 3  # LiteRT-LM's default: patches of an image are pooled 3 by 3


class LiteRtLmModality(enum.IntEnum):
    """What a model reads."""

    TEXT = 0
    VISION = 1
    AUDIO = 2
    VIDEO = 3


class LiteRtLmModelType(enum.IntEnum):
    """What a model is for."""

    UNKNOWN = 0
    LLM = 1
    EMBEDDING = 2


@dataclasses.dataclass(frozen=True)
class SupportedModalities:
    """What the models of a bundle read. This engine runs those for text only."""

    text: bool
    vision: bool
    audio: bool
    video: bool


class ModelInfo:
    """What a `.litertlm` file declares, and what follows from its models' signatures.

    ```python
    from jaxdelegate import lm as litert_lm

    with litert_lm.ModelInfo("model.litertlm") as info:
        print(info.model_type, info.max_context_tokens, info.input_modalities)
    ```
    """

    def __init__(self, model_path: str | os.PathLike[str]) -> None:
        """Open a bundle; its models are read when they are first needed.

        Raises:
            FileNotFoundError: there is no such file.
            ModelError: it is not a bundle, or it is damaged.
        """
        if not os.path.exists(model_path):
            raise FileNotFoundError(f"ModelInfo: no such file: {os.fspath(model_path)!r}")
        self._bundle: Bundle | None = open_bundle(model_path)

    @property
    def bundle(self) -> Bundle:
        """The open bundle. A GenerationError: this object is closed."""
        if self._bundle is None:
            raise GenerationError("the ModelInfo is closed")
        return self._bundle

    @functools.cached_property
    def metadata(self) -> LlmMetadata | None:
        """What the bundle declares about its language model; None: nothing."""
        has_metadata = any(s.type == LLM_METADATA for s in self.bundle.sections)
        return self.bundle.metadata if has_metadata else None

    @property
    def model_type(self) -> LiteRtLmModelType:
        """EMBEDDING for a text encoder, LLM for a model that generates text, UNKNOWN for others."""
        text, encoder = (part in self.bundle.models for part in (_TEXT, _ENCODER))
        if text or (not encoder and len(self.bundle.models) == 1):
            return LiteRtLmModelType.LLM
        return LiteRtLmModelType.EMBEDDING if encoder else LiteRtLmModelType.UNKNOWN

    @property
    def is_llm_model(self) -> bool:
        """Whether it generates text."""
        return self.model_type == LiteRtLmModelType.LLM

    @property
    def is_embedding_model(self) -> bool:
        """Whether it computes embeddings."""
        return self.model_type == LiteRtLmModelType.EMBEDDING

    @property
    def llm(self) -> "LlmCapability | None":
        """The capabilities of a model that generates text; None: the bundle has another model."""
        return LlmCapability(self) if self.is_llm_model else None

    @property
    def embedding(self) -> "EmbeddingCapability | None":
        """The capabilities of a text encoder; None: the bundle has another model."""
        return EmbeddingCapability(self) if self.is_embedding_model else None

    @property
    def input_modalities(self) -> SupportedModalities:
        """What the bundle's models read, also what this engine does not support."""
        return SupportedModalities(
            text=True, vision=self._has("vision"), audio=self._has("audio"), video=False
        )

    @property
    def max_context_tokens(self) -> int:
        """The declared number of tokens, or that of the caches or of the longest encoder."""
        if self.is_embedding_model:
            return self.encoders.length
        declared = self.metadata.max_num_tokens if self.metadata is not None else None
        return declared or self._capacity

    @property
    def is_dynamic_context(self) -> bool:
        """Whether the caches may have any length, up to `max_context_tokens`."""
        is_declared = self.metadata is not None and self.metadata.max_num_tokens is not None
        return self.is_llm_model and not is_declared and is_magic(self._capacity)

    @property
    def min_runtime_version(self) -> str | None:
        """The version of LiteRT-LM that the bundle needs; None: any."""
        if any(s.type == EMBEDDING_METADATA for s in self.bundle.sections):
            return self.bundle.embedding_metadata().min_runtime_version or None
        return None if self.metadata is None else self.metadata.min_runtime_version

    @property
    def max_vision_token_budget(self) -> int:
        """The most tokens of an image by the declared number of patches; -1: not declared."""
        if self.metadata is None or not hasattr(self.metadata.proto, "llm_model_type"):
            return -1
        kind = self.metadata.model_type
        model = getattr(self.metadata.proto.llm_model_type, kind) if kind else None
        patches = getattr(model, "max_num_patches", 0)
        side = getattr(model, "pooling_kernel_size", 0) or _POOLING
        return patches // side**2 if patches else -1

    @property
    def vision_signature_selection(self) -> list[int] | None:
        """The numbers of tokens of an image that signatures return; None: no images."""
        parts = [part for part in self.bundle.models if part in _VISION]
        shapes = [
            output.shape
            for part in parts
            for signature in self.signatures(part).values()
            for output in signature.outputs.values()
            if output.dtype.kind == "f" and len(output.shape) == 3
        ]
        return sorted({shape[1] for shape in shapes}) if parts else None

    def supported_backends_for_modality(self, modality: LiteRtLmModality) -> list[str]:
        """The backends that the bundle allows for what a model reads: "cpu", "gpu", "npu".

        The first one is the default of LiteRT-LM. Bundles do not declare TPUs, where this engine
        also runs them.
        """
        kind = LiteRtLmModality(modality).name.lower()
        names = (_TEXT, _ENCODER) if kind == "text" else (kind,)
        sections = [s for s in self.bundle.sections if s.model_type.startswith(names)]
        if kind != "text" and not sections:
            return []
        declared = [s.items[_LIMITS] for s in sections if _LIMITS in s.items]
        words = str(declared[-1] if declared else "cpu,gpu").lower().split(",")
        stems = (word.strip().partition("_")[0] for word in words)  # of "gpu_artisan": "gpu"
        return [word for word in stems if word in _BACKENDS]

    def npu_brand_for_modality(self, modality: LiteRtLmModality) -> NoReturn:
        """Not supported. An OptionError says so."""
        del modality
        raise OptionError(f"npu_brand_for_modality: {_NO_NPUS}")

    def soc_name_for_modality(self, modality: LiteRtLmModality) -> NoReturn:
        """Not supported. An OptionError says so."""
        del modality
        raise OptionError(f"soc_name_for_modality: {_NO_NPUS}")

    # ---- models

    def signatures(self, part: str) -> Mapping[str, Signature]:
        """The signatures of a model of the bundle."""
        from jaxdelegate.function.signatures import signatures_of  # noqa: PLC0415 (imports jax)

        return signatures_of(open_model(self.bundle.models[part]), Limits())

    @functools.cached_property
    def encoders(self) -> EncoderGraph:
        """The signatures of a text encoder."""
        others = {part: self.signatures(part) for part in self.bundle.models}
        return encoder_graph(others.pop(_ENCODER), self.bundle.path, others)

    @functools.cached_property
    def _capacity(self) -> int:
        """The length of the longest caches; 0: the bundle has no model."""
        if not self.is_llm_model:
            return 0
        found = {part: self.signatures(part) for part in self.bundle.models}
        own = found.pop(next(part for part in (_TEXT, *found) if part in found))
        return language_graph(own, self.bundle.path, None, found).capacity

    def _has(self, kind: str) -> bool:
        return any(part.startswith(kind) for part in self.bundle.models)

    def close(self) -> None:
        """Close the file; other calls are then a GenerationError."""
        self._bundle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Capability:
    """What images the model of a bundle takes."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    @property
    def max_vision_token_budget(self) -> int:
        """The most tokens of an image; -1: not declared."""
        return self._info.max_vision_token_budget

    @property
    def vision_signature_selection(self) -> list[int] | None:
        """The numbers of tokens of an image that signatures return; None: no images."""
        return self._info.vision_signature_selection


class LlmCapability(_Capability):
    """What a model that generates text can do; `ModelInfo.llm` is one."""

    def has_speculative_decoding_support(self) -> bool:
        """Whether the bundle has a drafter."""
        return DRAFTER in self._info.bundle.models

    def supports_thinking(self) -> bool:
        """Whether the bundle declares it."""
        metadata = self._info.metadata
        return metadata is not None and bool(metadata.supports_thinking)

    def supports_function_calling(self) -> bool:
        """Whether the bundle declares it."""
        metadata = self._info.metadata
        return metadata is not None and bool(metadata.supports_function_calling)

    @property
    def default_sampler_params(self) -> SamplerConfig:
        """The declared sampler, without its seed; where it declares nothing, None and zeros."""
        sampler = self._info.metadata.sampler if self._info.metadata is not None else None
        if sampler is None:
            return SamplerConfig(top_p=0.0, temperature=0.0)
        return SamplerConfig(sampler.k or None, sampler.p, sampler.temperature)

    @property
    def is_dynamic_context(self) -> bool:
        """Whether the caches may have any length."""
        return self._info.is_dynamic_context


class EmbeddingCapability(_Capability):
    """What a text encoder can do; `ModelInfo.embedding` is one."""

    @property
    def dimension(self) -> int | None:
        """How many elements its embeddings have."""
        return self._info.encoders.encoders[-1].size

    @property
    def signature_selection(self) -> list[int] | None:
        """The numbers of tokens of its signatures, ascending."""
        return [encoder.length for encoder in self._info.encoders.encoders]
