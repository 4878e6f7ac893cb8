"""How images are in a prompt, by the model's family.

Source: LiteRT-LM 0.18 (runtime/conversation/model_data_processor/gemma3_data_processor.cc,
gemma4_data_processor.cc).
"""

import dataclasses

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import IMAGE_FAMILIES
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.contents.content_prompts import start_token
from jaxdelegate.lm.contents.encoded_content import ContentRules
from jaxdelegate.text import printable


@dataclasses.dataclass(frozen=True)
class ImageRules(ContentRules):
    """How a family writes an image.

    Attributes:
        most_patches: of an image, as the bundle declares; 0: it does not.
    """

    most_patches: int = 0


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
    field = "start_of_image_token"
    if kind != "gemma4":
        before = "\n\n" + start_token(metadata, field, "<start_of_image>")
        placeholders = "<start_of_image>", "<image_soft_token>"
        return ImageRules("image", "image", placeholders, before, "\n\n")
    return ImageRules(
        "image",
        "image",
        ("<start_of_image>", "<|image|>"),
        start_token(metadata, field, "<|image>"),
        has_end=True,
        most_patches=metadata.proto.llm_model_type.gemma4.max_num_patches,
    )
