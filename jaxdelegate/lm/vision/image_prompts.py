"""Where images are in a prompt, by the model's family.

Source: LiteRT-LM 0.18 (runtime/conversation/model_data_processor/gemma3_data_processor.cc,
gemma4_data_processor.cc, multimodal_processor_helper.cc).
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import IMAGE_FAMILIES, LlmMetadata, token_of
from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.soft_tokens import Embedded, soft_tokens
from jaxdelegate.text import printable


@dataclasses.dataclass(frozen=True)
class ImageRules:
    """How a family writes an image.

    Attributes:
        placeholders: the texts that stand for an image in a rendered template.
        before: what replaces one, before the image.
        after: what follows the image.
        has_end: whether the embedding of the part `end_of_vision` follows the image.
        most_patches: of an image, as the bundle declares; 0: it does not.
    """

    placeholders: tuple[str, ...]
    before: str
    after: str = ""
    has_end: bool = False
    most_patches: int = 0

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches a placeholder."""
        return re.compile("|".join(map(re.escape, self.placeholders)))


def image_rules(bundle: Bundle) -> ImageRules:
    """The rules of a bundle's family. An OptionError: it is not one whose images are supported."""
    metadata = bundle.metadata
    kind = metadata.model_type
    if kind not in IMAGE_FAMILIES:
        known = f"{', '.join(IMAGE_FAMILIES[:-1])} or {IMAGE_FAMILIES[-1]}"
        raise OptionError(
            f"vision_backend: {printable(bundle.path)}: expected a model of the family {known}, "
            f"got {printable(kind)}"
        )
    if kind != "gemma4":
        before = "\n\n" + _start(metadata, "<start_of_image>")
        return ImageRules(("<start_of_image>", "<image_soft_token>"), before, "\n\n")
    most = metadata.proto.llm_model_type.gemma4.max_num_patches
    placeholders = "<start_of_image>", "<|image|>"
    return ImageRules(placeholders, _start(metadata, "<|image>"), has_end=True, most_patches=most)


def _start(metadata: LlmMetadata, default: str) -> str:
    """The token before an image."""
    own = getattr(metadata.proto.llm_model_type, metadata.model_type)
    token = token_of(own.start_of_image_token) if own.HasField("start_of_image_token") else None
    return default if token is None or token.text is None else token.text


def image_prompt_ids(
    text: str,
    images: Sequence[Embedded],
    rules: ImageRules,
    tokenize: Callable[[str], list[int]],
) -> list[int]:
    """The tokens of a rendered text, and the soft tokens of the images in place of placeholders.

    Raises:
        GenerationError: there are not as many placeholders as images.
    """
    *texts, rest = rules.pattern.split(text)
    if len(texts) != len(images):
        names = " or ".join(rules.placeholders)
        raise GenerationError(
            f"expected a prompt with {len(images)} times {names}, one for each image, got "
            f"{len(texts)}: the chat template must write one for each image, and texts must not "
            "have any"
        )
    ids = list[int]()
    for before, image in zip(texts, images, strict=True):
        ids += tokenize(before + rules.before)
        ids += soft_tokens(image)
        ids += tokenize(rules.after) if rules.after else []
    return ids + (tokenize(rest) if rest else [])
