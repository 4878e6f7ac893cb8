"""The inputs of a vision encoder's signatures, for its use as a JAX function."""

from typing import NamedTuple

import numpy as np

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.lm.contents.content_encoder import needed_parts
from jaxdelegate.lm.vision.decoding import pixels_of
from jaxdelegate.lm.vision.image_prompts import image_rules
from jaxdelegate.lm.vision.tensors import scaled, tensors_of
from jaxdelegate.lm.vision.vision_graph import ADAPTER, ENCODER, POSITIONS, vision_graph
from jaxdelegate.model.open_models import open_model
from jaxdelegate.passes.limits import Limits


class ImageInputs(NamedTuple):
    """An image as the signatures of a bundle's vision parts take it.

    Attributes:
        encoder: the signature of `vision_encoder` for an image of this size.
        adapter: the one of `vision_adapter` that takes the encoder's features.
        inputs: the encoder's, by name: the pixels, float32 [1, height, width, 3] or patches
            [1, n, values], from 0 to 1; and for patches their columns and rows, `positions_xy`,
            int32 [1, n, 2], -1 after the last one.
        places: how many rows of the adapter's result are the image's, the first ones.
    """

    encoder: str
    adapter: str
    inputs: dict[str, np.ndarray]
    places: int


def image_inputs(bundle: Bundle, data: bytes) -> ImageInputs:
    """Prepare an image as `Engine` does.

    Args:
        bundle: with a vision encoder.
        data: the image's file.

    Raises:
        GenerationError: the file is not an image that is supported.
        ModelError: the vision parts are something else.
        OptionError: the bundle lacks a vision part, its family has no images here, or pillow is not
            installed.
    """
    from jaxdelegate.function.signatures import signatures_of  # noqa: PLC0415 (imports jax)

    parts = needed_parts(bundle, [ENCODER, ADAPTER], "image_inputs", "images")
    signatures = {name: signatures_of(open_model(part), Limits()) for name, part in parts.items()}
    graph = vision_graph(signatures, bundle.path, image_rules(bundle).most_patches)
    image = tensors_of(pixels_of(data), graph)
    inputs = {image.step.images_name: scaled(image.pixels)[None]}
    if image.positions is not None:
        inputs[POSITIONS] = image.positions[None]
    return ImageInputs(image.key, image.step.adapter, inputs, image.places)
