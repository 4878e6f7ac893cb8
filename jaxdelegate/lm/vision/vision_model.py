"""A bundle's vision encoder on a device."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.lm.device_model import DeviceModel, open_models
from jaxdelegate.lm.vision.rounding import rounded_as_xnnpack
from jaxdelegate.lm.vision.tensors import ImageTensors, scaled
from jaxdelegate.lm.vision.vision_graph import ENCODER, vision_graph
from jaxdelegate.lm.vision.vision_program import VisionSpec, keys, results
from jaxdelegate.model.records import Model
from jaxdelegate.pjrt.client import viewed


class VisionModel(DeviceModel[VisionSpec]):
    """The encoder with its adapter, and their programs.

    Attributes:
        graph: their signatures.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        name: str,
        options: Mapping[str, Any],
        cache_dir: str | None,
        most_patches: int,
    ) -> None:
        """Read the models; nothing is compiled yet.

        Args:
            parts: the bundle's vision models, by part.
            name: of the bundle, for messages.
            options: of JaxDelegate.
            cache_dir: see `Engine`.
            most_patches: see `vision_graph`.

        Raises:
            ModelError: they are not a vision encoder and its adapter.
            OptionError: an option is unknown, or does not apply.
        """
        others = {part: model for part, model in parts.items() if part != ENCODER}
        models = open_models(parts[ENCODER], others, options, cache_dir)
        signatures = models.signatures
        self.graph = vision_graph({**signatures, ENCODER: signatures[""]}, name, most_patches)
        super().__init__(models, ("", *others), f"{name}!{ENCODER}", {"rounding": "XNNPACK"})

    def embeddings(self, images: Sequence[ImageTensors]) -> list[np.ndarray]:
        """Encode images of one step at once: float32 [count, size] of each."""
        step = images[0].step
        columns = [
            np.array([image.places for image in images], np.int32),
            scaled(np.stack([image.pixels for image in images])),
        ]
        if step.positions is not None:
            columns.append(np.stack([i.positions for i in images if i.positions is not None]))
        spec = VisionSpec(step.key, len(images))
        (found,), _ = self.run(spec, lambda _: columns)
        ends = [] if self.graph.end is None else [self._end]
        rows = zip(viewed(found), images, strict=True)
        return [np.concatenate([row[: image.places], *ends]) for row, image in rows]

    @functools.cached_property
    def _end(self) -> np.ndarray:
        """What follows an image: float32 [1, size]."""
        assert self.graph.end is not None
        (found,), _ = self.run(VisionSpec(self.graph.end, is_end=True), lambda _: [])
        return viewed(found)

    @functools.cached_property
    def _models(self) -> Mapping[str, Model]:
        return {part: rounded_as_xnnpack(file.model) for part, file in self._files.items()}

    def _keys(self, spec: VisionSpec) -> Mapping[str, str]:
        return keys(self.graph, spec)

    def _results(self, spec: VisionSpec) -> Sequence[Any]:
        return results(self.graph, spec)

    def _description(self, spec: VisionSpec) -> str:
        return f"{spec.key}, images: {spec.rows}"

    def _new_computation(self, weights: DeviceWeights) -> Any:
        from jaxdelegate.lm.vision.vision_computation import VisionComputation  # noqa: PLC0415

        return VisionComputation(self._models, self._view, self.graph, weights)
