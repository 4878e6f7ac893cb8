"""Encodes images for prompts: those of several threads at once, and equal ones once."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.soft_tokens import Embedded
from jaxdelegate.lm.vision.decoding import pixels_of
from jaxdelegate.lm.vision.encoded_image import EncodedImage
from jaxdelegate.lm.vision.image_prompts import ImageRules, image_prompt_ids, image_rules
from jaxdelegate.lm.vision.tensors import tensors_of
from jaxdelegate.lm.vision.vision_graph import ADAPTER, ENCODER, END, VisionGraph
from jaxdelegate.lm.vision.vision_model import VisionModel
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.text import printable

_MOST_KEPT = 64


class ImageEncoder:
    """A bundle's vision encoder. Any thread may use it.

    Attributes:
        rules: how the model's family writes images in prompts.
        most_at_once: images of a run of the encoder.
    """

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
        models, needed = bundle.models, [ENCODER, ADAPTER]
        _check(bundle, needed)
        self.rules: ImageRules = image_rules(bundle)
        if self.rules.has_end:
            _check(bundle, needed := [*needed, END])
        self._model = VisionModel(
            {part: models[part] for part in needed},
            bundle.path,
            options,
            cache_dir,
            self.rules.most_patches,
        )
        self.most_at_once = most_at_once
        self._known: LruCache[Hashable, EncodedImage] = LruCache(_MOST_KEPT)
        self._waiting: list[EncodedImage] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()

    @property
    def graph(self) -> VisionGraph:
        """The signatures of the encoder and the adapter."""
        return self._model.graph

    @property
    def size(self) -> int:
        """How many elements the embedding of a place has."""
        return self.graph.size

    def image(self, data: bytes, owner: Hashable = None) -> EncodedImage:
        """The image of a file, not encoded yet unless it is known.

        Args:
            data: the file.
            owner: only its own images are known to it: see `Request.owner`.

        Raises:
            GenerationError: it is not an image that is supported.
        """

        def read() -> EncodedImage:
            tensors = tensors_of(pixels_of(data), self.graph)
            return EncodedImage(tensors, has_end=self.rules.has_end)

        return self._known.get((owner, hashlib.sha256(data).digest()), read)

    def prompt_ids(
        self, text: str, images: Sequence[Embedded], tokenize: Callable[[str], list[int]]
    ) -> list[int]:
        """See `image_prompt_ids`."""
        return image_prompt_ids(text, images, self.rules, tokenize)

    def encode(self, images: Iterable[EncodedImage]) -> None:
        """Compute embeddings; while one thread does, the images of others wait to be the next run.

        Raises:
            DeviceMemoryError: they do not fit.
        """
        own = [image for image in images if image.tensors is not None]
        if not own:
            return
        with self._lock:
            self._waiting += own
        with self._turn:
            with self._lock:
                taken, self._waiting = self._waiting, []
            # Another thread may have taken the own ones, and failed.
            left = {id(image): image for image in (*taken, *own) if image.tensors is not None}
            for some in self._runs(left.values()):
                self._run(some)

    def _runs(self, images: Iterable[EncodedImage]) -> Iterable[Sequence[EncodedImage]]:
        """Those of one step together; powers of two, so that there are few programs."""

        def key(image: EncodedImage) -> str:
            return "" if image.tensors is None else image.tensors.step.key

        for _, group in itertools.groupby(sorted(images, key=key), key):
            rest = [*group]
            while rest:
                count = 1 << (min(len(rest), self.most_at_once).bit_length() - 1)
                yield rest[:count]
                rest = rest[count:]

    def _run(self, images: Sequence[EncodedImage]) -> None:
        tensors = [image.tensors for image in images if image.tensors is not None]
        for image, rows in zip(images, self._model.embeddings(tensors), strict=True):
            image.embeddings, image.tensors = rows, None

    def close(self) -> None:
        """Free programs, weights and images."""
        self._known.clear()
        self._model.close()


def takes_images(bundle: Bundle) -> bool:
    """Whether a bundle has vision parts of a family that is supported."""
    try:
        needed = [ENCODER, ADAPTER, *([END] if image_rules(bundle).has_end else [])]
    except OptionError:
        return False
    return all(part in bundle.models for part in needed)


def _check(bundle: Bundle, parts: Sequence[str]) -> None:
    missing = [part for part in parts if part not in bundle.models]
    if missing:
        raise OptionError(
            f"vision_backend: {printable(bundle.path)} takes no images: it lacks "
            f"{', '.join(missing)}"
        )
