"""How embeddings are computed, and the result: the records of `litert_lm`."""

import dataclasses
import enum


class InputOverflowStrategy(enum.IntEnum):
    """What to do with a text that is longer than the model's inputs."""

    CHUNK_AND_AVERAGE = 0
    TRUNCATE = 1
    ERROR = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """How an embedding is computed.

    Attributes:
        normalize: divide it by its Euclidean norm; None: yes.
        insert_special_tokens: add the start and end tokens that the bundle declares; None: yes.
        input_overflow_strategy: for texts that are too long: an error, without the tokens beyond,
            or the mean of the embeddings of their parts; None: an error.
        output_size: only the first elements of the embedding, before it is normalized; None, or
            less than 1: all.
        vision_tokens_per_image: places of an image, at most; None: as many as the engine's.
    """

    normalize: bool | None = None
    insert_special_tokens: bool | None = None
    input_overflow_strategy: InputOverflowStrategy | None = None
    output_size: int | None = None
    vision_tokens_per_image: int | None = None


@dataclasses.dataclass(frozen=True)
class EmbeddingResponse:
    """An embedding.

    Attributes:
        embedding: its elements, float32.
    """

    embedding: list[float]
