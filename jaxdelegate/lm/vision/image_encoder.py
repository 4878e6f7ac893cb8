"""Encodes images for prompts."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.lm.contents.content_encoder import ContentEncoder, has_parts
from jaxdelegate.lm.vision.decoding import pixels_of
from jaxdelegate.lm.vision.image_prompts import image_rules, needed, vision_parts
from jaxdelegate.lm.vision.tensors import ImageTensors, tensors_of
from jaxdelegate.lm.vision.vision_model import VisionModel


class ImageEncoder(ContentEncoder):
    """A bundle's vision encoder. Any thread may use it."""

    def __init__(
        self,
        bundle: Bundle,
        options: Mapping[str, Any],
        cache_dir: str | None,
        most_at_once: int = 8,
    ) -> None:
        """Open the vision parts; nothing is compiled yet.

        Args:
            bundle: with a vision encoder.
            options: of JaxDelegate.
            cache_dir: see `Engine`.
            most_at_once: images of a run.

        Raises:
            ModelError: a vision part is something else.
            OptionError: the bundle lacks a vision part, the model's family has no images here, or
                an option is wrong.
        """
        parts, rules = vision_parts(bundle, "vision_backend"), image_rules(bundle)
        model = VisionModel(parts, bundle.path, options, cache_dir, rules.form)
        super().__init__(rules, model, most_at_once)
        self._reading = threading.Lock()

    def _pieces(self, data: bytes, most_places: int | None) -> Sequence[ImageTensors]:
        graph = self.graph if most_places is None else self.graph.limited(most_places)
        with self._reading:  # large images take much memory
            return [tensors_of(pixels_of(data), graph)]


def takes_images(bundle: Bundle) -> bool:
    """Whether a bundle has vision parts of a family that is supported."""
    return has_parts(bundle, needed)
