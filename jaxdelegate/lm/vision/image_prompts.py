"""How images are in a prompt, by the model's family.

Source: LiteRT-LM 0.18 (runtime/conversation/model_data_processor/gemma3_data_processor.cc,
gemma4_data_processor.cc, lfm2_data_processor.cc).
"""

import dataclasses
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import IMAGE_FAMILIES
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.contents.content_encoder import needed_parts
from jaxdelegate.lm.contents.content_prompts import embedding_family, start_token
from jaxdelegate.lm.contents.encoded_content import ContentRules
from jaxdelegate.lm.vision.vision_graph import ADAPTER, ENCODER, END, ImageForm
from jaxdelegate.text import printable

_LFM2_SIDE, _LFM2_MIDDLE = 512, (0.5, 0.5, 0.5)  # what bundles of lfm2 need not declare


@dataclasses.dataclass(frozen=True)
class ImageRules(ContentRules):
    """How a family writes an image.

    Attributes:
        form: what the bundle declares about images.
    """

    form: ImageForm = dataclasses.field(default_factory=ImageForm)


def image_rules(bundle: Bundle) -> ImageRules:
    """The rules of a bundle's family. An OptionError: it is not one whose images are supported."""
    if (embeds := embedding_family(bundle, "vision_backend")) is not None:
        form = ImageForm(embeds.max_num_patches, embeds.patch_width)
        return ImageRules("image", "image", (), "", has_end=END in bundle.models, form=form)
    metadata = bundle.metadata
    kind = metadata.model_type
    if kind not in IMAGE_FAMILIES:
        known = f"{', '.join(IMAGE_FAMILIES[:-1])} or {IMAGE_FAMILIES[-1]}"
        raise OptionError(
            f"vision_backend: {printable(bundle.path)}: expected a model of the family {known}, "
            f"got {printable(kind)}"
        )
    declared = getattr(metadata.proto.llm_model_type, kind)
    field, names = "start_of_image_token", ("<start_of_image>", "<image_soft_token>")
    if kind == "lfm2":
        return ImageRules(
            "image",
            "image",
            ("<|image_start|>", "<image>"),
            start_token(metadata, field, "<|image_start|>"),
            start_token(metadata, "end_of_image_token", "<|image_end|>"),
            form=_lfm2_form(declared),
        )
    if kind != "gemma4":
        before = "\n\n" + start_token(metadata, field, names[0])
        return ImageRules("image", "image", names, before, "\n\n")
    return ImageRules(
        "image",
        "image",
        (names[0], "<|image|>"),
        start_token(metadata, field, "<|image>"),
        has_end=True,
        form=ImageForm(declared.max_num_patches, declared.patch_width),
    )


def _lfm2_form(m: Any) -> ImageForm:
    return ImageForm(
        size=(m.image_tensor_height or _LFM2_SIDE, m.image_tensor_width or _LFM2_SIDE),
        divisor=1 / (m.normalization_rescale_factor or 1 / 255),
        mean=tuple(m.normalization_mean) or _LFM2_MIDDLE,
        deviation=tuple(m.normalization_std) or _LFM2_MIDDLE,
    )


def needed(bundle: Bundle) -> list[str]:
    """The parts without which a bundle takes no images. An OptionError: as `image_rules`."""
    return [ENCODER, END if image_rules(bundle).has_end else ADAPTER]


def vision_parts(bundle: Bundle, argument: str) -> dict[str, Any]:
    """A bundle's models for images, by part. An OptionError names what it lacks.

    `argument`: that asks for them.
    """
    needed_parts(bundle, [ENCODER], argument, "images")
    names = [*needed(bundle), *([ADAPTER] if ADAPTER in bundle.models else [])]
    return needed_parts(bundle, [*dict.fromkeys(names)], argument, "images")
