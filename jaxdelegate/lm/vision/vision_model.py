"""A bundle's vision encoder on a device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.lm.contents.content_model import ContentModel
from jaxdelegate.lm.vision.tensors import ImageTensors, scaled
from jaxdelegate.lm.vision.vision_graph import ENCODER, ImageForm, VisionGraph, vision_graph


class VisionModel(ContentModel[VisionGraph]):
    """The encoder with its adapter, and their programs."""

    def __init__(
        self,
        parts: Mapping[str, Any],
        name: str,
        options: Mapping[str, Any],
        cache_dir: str | None,
        form: ImageForm,
    ) -> None:
        """Read the models; arguments and errors as `ContentModel`.

        `form`: what the bundle declares about images.
        """
        super().__init__(
            ENCODER,
            parts,
            name,
            options,
            cache_dir,
            lambda signatures: vision_graph(signatures, name, form),
        )

    def _columns(self, pieces: Sequence[ImageTensors]) -> list[np.ndarray]:
        positions = [image.positions for image in pieces if image.positions is not None]
        return [
            np.array([image.places for image in pieces], np.int32),
            scaled(np.stack([image.pixels for image in pieces]), self.graph.form),
            *([np.stack(positions)] if positions else []),
        ]

    def _new_computation(self, weights: DeviceWeights) -> Any:
        from jaxdelegate.lm.vision.vision_computation import VisionComputation  # noqa: PLC0415

        return VisionComputation(self._models, self._view, self.graph, weights)
