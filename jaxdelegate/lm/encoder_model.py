"""A bundle's text encoder on a device."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.lm.device_model import DeviceModel, open_models
from jaxdelegate.lm.encoder_graph import (
    EncoderSpec,
    encoder_graph,
    results,
    selected,
    with_soft_tokens,
)
from jaxdelegate.lm.soft_tokens import as_tokens, fill_embeddings


class EncoderModel(DeviceModel[EncoderSpec]):
    """A model that computes embeddings of texts, and its programs.

    Attributes:
        graph: its signatures.
    """

    def __init__(
        self,
        source: Any,
        name: str,
        others: Mapping[str, Any],
        options: Mapping[str, Any],
        lengths: tuple[int | None, int | None],
        cache_dir: str | None,
        soft_size: int = 0,
    ) -> None:
        """Read the models; nothing is compiled yet.

        Args:
            source: the text encoder in its bundle.
            name: for messages.
            others: the bundle's models that may compute its inputs, by part.
            options: of JaxDelegate.
            lengths: the shortest and the longest, see `encoder_graph.selected`.
            cache_dir: see `Engine`.
            soft_size: see `EncoderGraph`.

        Raises:
            ModelError: it is not a text encoder.
            OptionError: an option is unknown, or does not apply.
        """
        models = open_models(source, others, options, cache_dir)
        signatures = models.signatures
        graph = encoder_graph(signatures.pop(""), name, signatures)
        graph = dataclasses.replace(graph, encoders=selected(graph.encoders, *lengths))
        self.graph = with_soft_tokens(graph, soft_size, name)
        declared = {"soft size": soft_size} if soft_size else {}
        super().__init__(models, ("", *graph.embedders), name, declared)

    def embeddings(self, texts: Sequence[Sequence[int]], max_batch: int) -> np.ndarray:
        """Embed texts, those of one encoder together.

        Args:
            texts: token ids and encoded soft tokens, 1 to `graph.length` each.
            max_batch: the most rows of a program.

        Returns:
            float32 [texts, size].
        """
        by_length = defaultdict[int, list[int]](list)
        for number, tokens in enumerate(texts):
            by_length[self.graph.encoder(len(tokens)).length].append(number)
        found: dict[int, np.ndarray] = {}
        for length, numbers in by_length.items():
            for some in _batches(numbers, max_batch):
                found.update(zip(some, self._rows([texts[n] for n in some], length), strict=True))
        return np.stack([found[number] for number in range(len(texts))])

    def _rows(self, texts: Sequence[Sequence[int]], length: int) -> np.ndarray:
        """float32 [texts, size], by the encoder of a length."""
        tokens, size = np.zeros((len(texts), length), np.int32), self.graph.soft_size
        counts = np.array([len(text) for text in texts], np.int32)
        soft = np.zeros((len(texts), length, size), np.float32)
        for row, rows, text in zip(tokens, soft, texts, strict=True):
            row[: len(text)] = as_tokens(text) if size else text
            fill_embeddings(rows, text)
        spec = EncoderSpec(self.graph.encoder(length).key, len(texts))
        return self.result(spec, [tokens, counts, *([soft] if size else [])])

    def _keys(self, spec: EncoderSpec) -> Mapping[str, str]:
        return self.graph.keys(spec.key)

    def _results(self, spec: EncoderSpec) -> Sequence[Any]:
        return results(self.graph, spec)

    def _description(self, spec: EncoderSpec) -> str:
        return f"{spec.key}, rows: {spec.rows}"

    def _new_computation(self, weights: DeviceWeights) -> Any:
        from jaxdelegate.lm.encoder_computation import EncoderComputation  # noqa: PLC0415 (jax)

        return EncoderComputation(self._models, self._view, self.graph, weights)


def _batches(numbers: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Parts whose lengths are powers of two, so that there are few programs."""
    start = 0
    while left := len(numbers) - start:
        count = 1 << (min(left, most).bit_length() - 1)
        yield numbers[start : start + count]
        start += count
