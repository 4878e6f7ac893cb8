"""A text encoder from a bundle, with its tokenizer and its compiled programs.

Source: LiteRT-LM 0.18 (runtime/core/embedding_engine_impl.cc).
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from jaxdelegate.bundles.bundle import Bundle, open_bundle
from jaxdelegate.bundles.metadata import token_of
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import GenerationError, ModelError, OptionError
from jaxdelegate.lm.configs import Backend, instance, with_backend
from jaxdelegate.lm.content_encoders import content_encoders
from jaxdelegate.lm.contents.content_prompts import embedding_family
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.contents.message_contents import file_in
from jaxdelegate.lm.embeddings import EmbeddingOptions, EmbeddingResponse, InputOverflowStrategy
from jaxdelegate.lm.encoder_graph import EncoderGraph
from jaxdelegate.lm.encoder_model import EncoderModel
from jaxdelegate.lm.graph import EMBEDDERS
from jaxdelegate.lm.messages import KINDS, Content, Text
from jaxdelegate.lm.soft_tokens import SoftToken, soft_tokens
from jaxdelegate.lm.unsupported import refuse
from jaxdelegate.model.sections import EMBEDDING_METADATA
from jaxdelegate.text import printable

_PART = "text_encoder"
Contents = str | Content | Sequence[str | Content]


class EmbeddingEngine:
    """A bundle's text encoder, ready to compute embeddings.

    ```python
    from jaxdelegate import lm as litert_lm

    with litert_lm.EmbeddingEngine("model.litertlm") as engine:
        print(engine.compute_embedding("What is the capital of France?").embedding)
    ```

    Any thread may use it.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        backend: Backend | type[Backend] | None = None,
        vision_backend: Backend | type[Backend] | None = None,
        audio_backend: Backend | type[Backend] | None = None,
        cache_dir: str | None = None,
        min_input_length: int | None = None,
        max_input_length: int | None = None,
        vision_tokens_per_image: int | None = None,
        *,
        max_batch: int = 8,
        options: Mapping[str, Any] | None = None,
        **unsupported: Any,
    ) -> None:
        """Open a bundle. Programs are compiled when they are first needed.

        Args:
            model_path: of a `.litertlm` file.
            backend: where it runs; None: JAX's default device.
            vision_backend: where images are encoded; None: inputs have none.
            audio_backend: where sounds are encoded; None: inputs have none.
            cache_dir: the folder of compiled programs, see `Engine`.
            min_input_length: encoders for fewer tokens are not used; None, or less than 1: as the
                bundle declares, or all are.
            max_input_length: of a text, in tokens; the next longer encoder is the last one that is
                used. None, or less than 1: as the bundle declares, or all are.
            vision_tokens_per_image: places of an image, at most; None: as the bundle declares.
            max_batch: the most texts that `compute_embedding_batch` processes at once.
            options: of JaxDelegate, for example `{"compute_dtype": "float16"}`.
            **unsupported: other arguments of `litert_lm.EmbeddingEngine`; None is accepted.

        Raises:
            ModelError: the bundle is damaged, or has no text encoder.
            OptionError: an option is unknown or not supported, no encoder is for such lengths, the
                bundle has no encoder of images or sounds, or a package of the extra `lm` is
                missing.
        """
        refuse("EmbeddingEngine", unsupported)
        if max_batch < 1:
            raise OptionError(f"max_batch: expected at least 1, got {max_batch}")
        self.bundle: Bundle = open_bundle(model_path)
        self.model_path, self.max_batch = self.bundle.path, max_batch
        self.backend, self.cache_dir = instance(backend), cache_dir
        self.vision_backend, self.audio_backend = instance(vision_backend), instance(audio_backend)
        self.vision_tokens_per_image = vision_tokens_per_image
        self.min_input_length, self.max_input_length = min_input_length, max_input_length
        models = self.bundle.models
        if _PART not in models:
            raise ModelError(
                f"{printable(self.bundle.path)}: expected a text encoder, the part {_PART!r}, got "
                f"{printable(', '.join(models)) or 'no models'}"
            )
        declared = self._declared()
        self.tokenizer = self.bundle.tokenizer(_PART)
        self.contents = content_encoders(
            self.bundle,
            options or {},
            cache_dir,
            self.tokenizer.encode,
            sees=self.vision_backend,
            hears=self.audio_backend,
        )
        self._start = self._special(declared, "bos_token")
        self._end = self._special(declared, "eos_token")
        lengths = (
            _length(min_input_length, declared, "min_input_length"),
            _length(max_input_length, declared, "max_input_length"),
        )
        self._model: EncoderModel | None = EncoderModel(
            models[_PART],
            f"{self.bundle.path}!{_PART}",
            {part: models[part] for part in EMBEDDERS.values() if part in models},
            with_backend(options or {}, self.backend),
            lengths,
            cache_dir,
            soft_size=self.contents.size,
        )

    def compute_embedding(
        self, contents: Contents, options: EmbeddingOptions | None = None
    ) -> EmbeddingResponse:
        """The embedding of a text, or of texts, images and sounds.

        Args:
            contents: the text, or the parts, whose tokens follow each other.
            options: None: the default ones.

        Raises:
            OptionError: a part is an image or a sound, and the engine was opened without their
                backend, or an image has fewer places.
            GenerationError: they are too long, or have no tokens, or a file is damaged.
        """
        (found,) = self.compute_embedding_batch([contents], options)
        return found

    def compute_embedding_batch(
        self, contents_batch: Sequence[Contents], options: EmbeddingOptions | None = None
    ) -> list[EmbeddingResponse]:
        """The embeddings of many texts, `max_batch` at a time as rows of the same products.

        Each depends on its text, and on the others by rounding only.

        Args:
            contents_batch: as for `compute_embedding`, one for each.
            options: of all; None: the default ones.

        Returns:
            An EmbeddingResponse for each text, in their order. Errors as `compute_embedding`.
        """
        if isinstance(contents_batch, str):
            raise TypeError(
                "compute_embedding_batch: expected a list of texts, got a str: pass [text]"
            )
        options = options or EmbeddingOptions()
        texts = [self.parts(contents, options) for contents in contents_batch]
        return [EmbeddingResponse(found.tolist()) for found in self.embeddings(texts, options)]

    def embeddings(
        self, texts: Sequence[Sequence[Sequence[int]]], options: EmbeddingOptions
    ) -> list[np.ndarray]:
        """float32 [size] for each text, of the tokens that `parts` returned."""
        if not texts:
            return []
        rows = self.embed([part for parts in texts for part in parts])
        ends = np.cumsum([len(parts) for parts in texts])[:-1]
        return [normalized(own.mean(axis=0), options) for own in np.split(rows, ends)]

    @property
    def size(self) -> int:
        """How many elements the model's embeddings have."""
        return self.graph.encoders[-1].size

    @property
    def programs(self) -> ProgramCache | None:
        """The folder of compiled programs; None: they are not stored."""
        return self._opened.programs

    # ---- of tokens

    @property
    def graph(self) -> EncoderGraph:
        """The signatures of the text encoder."""
        return self._opened.graph

    def prompt_ids(self, text: str | Sequence[int]) -> list[int]:
        """The tokens of a text, between those that the bundle declares; a list stays as it is."""
        return self._with_special(self.tokenizer.encode(text)) if isinstance(text, str) else [*text]

    def embed(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """The embeddings of token ids, not normalized, float32 [texts, size]."""
        soft = (token.content for text in texts for token in text if isinstance(token, SoftToken))
        own = (content for content in soft if isinstance(content, EncodedContent))
        self.contents.encode({id(content): content for content in own}.values())
        return self._opened.embeddings(texts, self.max_batch)

    @property
    def _opened(self) -> EncoderModel:
        if self._model is None:
            raise GenerationError("the engine is closed")
        return self._model

    def _with_special(self, tokens: Sequence[int]) -> list[int]:
        return [*self._start, *tokens, *self._end]

    def parts(self, contents: Contents, options: EmbeddingOptions) -> list[list[int]]:
        """The tokens of contents, in parts that are short enough. Errors as `compute_embedding`."""
        items = [contents] if isinstance(contents, str | Content) else contents
        tokens = [token for item in items for token in self._tokens(item, options)]
        has_special = options.insert_special_tokens is not False
        if has_special:
            tokens = self._with_special(tokens)
        if not tokens:
            raise GenerationError("expected at least one token, got none: the text is empty")
        most = self.graph.length
        if len(tokens) <= most:
            return [tokens]
        strategy = options.input_overflow_strategy
        if strategy == InputOverflowStrategy.CHUNK_AND_AVERAGE:
            return [tokens[i : i + most] for i in range(0, len(tokens), most)]
        if strategy == InputOverflowStrategy.TRUNCATE:
            end = self._end if has_special and len(self._end) < most else []
            return [[*tokens[: most - len(end)], *end]]
        raise GenerationError(
            f"expected at most {most} tokens, got {len(tokens)}: shorten the text, or set "
            "input_overflow_strategy"
        )

    def _tokens(self, item: object, options: EmbeddingOptions) -> list[int]:
        """Those of a text, or the places of an image or a sound between the declared tokens."""
        part = item.to_json() if isinstance(item, Content) else {}
        kind = part.get("type")
        if kind not in KINDS:
            return self.tokenizer.encode(_text(item))
        encoder = self.contents.encoders.get(kind)
        if encoder is None:
            nouns, argument = KINDS[kind]
            raise OptionError(f"the engine takes no {nouns}: open it with {argument}=...")
        most = None
        if kind == "image":
            most = options.vision_tokens_per_image or self.vision_tokens_per_image
        places: list[int] = [*soft_tokens(encoder.read(file_in(part), most_places=most))]
        if options.insert_special_tokens is False:
            return places[: len(places) - encoder.rules.has_end]
        start, end = self._around[kind]
        return [*start, *places, *([] if encoder.rules.has_end else end)]

    @functools.cached_property
    def _around(self) -> Mapping[str, tuple[list[int], list[int]]]:
        """The tokens before and after an image and a sound, by type."""
        declared = embedding_family(self.bundle, "EmbeddingEngine")
        return {
            kind: (
                self._special(declared, f"start_of_{kind}_token"),
                self._special(declared, f"end_of_{kind}_token"),
            )
            for kind in KINDS
        }

    def _declared(self) -> Any:
        """The message EmbeddingMetadata; None: the bundle has none."""
        has_metadata = any(s.type == EMBEDDING_METADATA for s in self.bundle.sections)
        return self.bundle.embedding_metadata() if has_metadata else None

    def _special(self, declared: Any, name: str) -> list[int]:
        """The ids of a token that the bundle declares."""
        has_token = declared is not None and declared.HasField(name)
        token = token_of(getattr(declared, name)) if has_token else None
        if token is None:
            return []
        return list(token.ids) if token.text is None else self.tokenizer.encode(token.text)

    def close(self) -> None:
        """Free programs and weights."""
        if self._model is not None:
            self._model.close()
            self.contents.close()
        self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _length(given: int | None, declared: Any, name: str) -> int | None:
    """A length in tokens; None: any."""
    if given is not None and given > 0:
        return given
    return getattr(declared, name) or None if declared is not None else None


def _text(item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Text):
        return item.text
    if isinstance(item, Content):
        raise OptionError(f"{type(item).__name__} is not supported: expected texts, images, sounds")
    raise TypeError(f"expected a str or a Content, got {type(item).__name__}")


def normalized(found: np.ndarray, options: EmbeddingOptions) -> np.ndarray:
    """An embedding as the options say."""
    size = options.output_size or 0
    if size > len(found):
        raise OptionError(f"output_size: expected at most {len(found)}, got {size}")
    if size > 0:
        found = found[:size]
    norm = np.linalg.norm(found)
    if options.normalize is not False and norm > 0:
        found = found / norm
    return found
