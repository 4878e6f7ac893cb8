"""The inputs of a vision encoder's signatures, for its use as a JAX function."""

from typing import NamedTuple

import numpy as np

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.lm.vision.decoding import pixels_of
from jaxdelegate.lm.vision.image_prompts import image_rules, vision_parts
from jaxdelegate.lm.vision.tensors import scaled, tensors_of
from jaxdelegate.lm.vision.vision_graph import POSITIONS, vision_graph
from jaxdelegate.model.open_models import open_model
from jaxdelegate.passes.limits import Limits


class ImageInputs(NamedTuple):
    """An image as the signatures of a bundle's vision parts take it.

    Attributes:
        encoder: the signature of `vision_encoder` for an image of this size.
        adapter: the one of `vision_adapter` that takes the encoder's features; empty: the bundle
            has no adapter, and the features are the result.
        inputs: the encoder's, by name: the pixels, float32 [1, height, width, 3] or patches
            [1, n, values], normalized; and, if images differ in size, the columns and rows of
            patches, `positions_xy`, int32 [1, n, 2], -1 after the last one.
        places: how many rows of the result are the image's, the first ones.
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

    parts = vision_parts(bundle, "image_inputs")
    signatures = {name: signatures_of(open_model(part), Limits()) for name, part in parts.items()}
    graph = vision_graph(signatures, bundle.path, image_rules(bundle).form)
    image = tensors_of(pixels_of(data), graph)
    inputs = {image.step.images_name: scaled(image.pixels, graph.form)[None]}
    if image.positions is not None:
        inputs[POSITIONS] = image.positions[None]
    return ImageInputs(image.key, image.step.adapter, inputs, image.places)
