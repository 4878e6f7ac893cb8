"""An encoder of images or sounds on a device."""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from jaxdelegate.function.records import Signature
from jaxdelegate.lm.contents.content_program import ContentGraph, ContentSpec, keys, results
from jaxdelegate.lm.contents.rounding import rounded_as_xnnpack
from jaxdelegate.lm.device_model import DeviceModel, open_models
from jaxdelegate.model.records import Model

G = TypeVar("G", bound=ContentGraph)
Signatures = Mapping[str, Mapping[str, Signature]]  # by part


class ContentModel(DeviceModel[ContentSpec], Generic[G]):
    """An encoder with its adapter, and their programs.

    Attributes:
        graph: their signatures.
    """

    def __init__(
        self,
        encoder: str,
        parts: Mapping[str, Any],
        name: str,
        options: Mapping[str, Any],
        cache_dir: str | None,
        read_graph: Callable[[Signatures], G],
    ) -> None:
        """Read the models; nothing is compiled yet.

        Args:
            encoder: its part.
            parts: its models in the bundle, by part.
            name: of the bundle, for messages.
            options: of JaxDelegate.
            cache_dir: see `Engine`.
            read_graph: finds the signatures among those of the parts.

        Raises:
            ModelError: they are not an encoder and its adapter.
            OptionError: an option is unknown, or does not apply.
        """
        others = {part: model for part, model in parts.items() if part != encoder}
        models = open_models(parts[encoder], others, options, cache_dir)
        signatures = models.signatures
        self.graph = read_graph({**signatures, encoder: signatures[""]})
        super().__init__(models, ("", *others), f"{name}!{encoder}", {"rounding": "XNNPACK"})

    @abc.abstractmethod
    def _columns(self, pieces: Sequence[Any]) -> list[np.ndarray]:
        """The arrays of a run, by row."""

    def embeddings(self, pieces: Sequence[Any], threads: int | None = None) -> list[np.ndarray]:
        """Encode pieces of one signature at once: float32 [places, size] of each.

        `threads`: see `DeviceModel.result`.
        """
        spec = ContentSpec(pieces[0].key, len(pieces))
        rows = zip(self.result(spec, self._columns(pieces), threads), pieces, strict=True)
        return [np.array(row[: piece.places]) for row, piece in rows]

    @functools.cached_property
    def end(self) -> np.ndarray:
        """What follows a content: float32 [1, size]."""
        assert self.graph.end is not None
        return self.result(ContentSpec(self.graph.end, is_end=True), [])

    @functools.cached_property
    def _models(self) -> Mapping[str, Model]:
        return {part: rounded_as_xnnpack(file.model) for part, file in self._files.items()}

    def _keys(self, spec: ContentSpec) -> Mapping[str, str]:
        return keys(self.graph, spec)

    def _results(self, spec: ContentSpec) -> Sequence[Any]:
        return results(self.graph, spec)

    def _description(self, spec: ContentSpec) -> str:
        return f"{spec.key}, rows: {spec.rows}"
