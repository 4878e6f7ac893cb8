"""An image of a prompt, and its embeddings as soon as they are computed."""

import hashlib

import numpy as np

from jaxdelegate.lm.vision.tensors import ImageTensors


class EncodedImage:
    """An image whose places are in prompts; see `Embedded`.

    Attributes:
        tensors: what the encoder takes; None: it is encoded.
        digest: of these tensors.
        count: how many places it has, what follows it included.
        embeddings: float32 [count, size]; None: not computed yet.
    """

    def __init__(self, tensors: ImageTensors, *, has_end: bool) -> None:
        """Encode nothing yet."""
        self.tensors: ImageTensors | None = tensors
        self.count = tensors.places + has_end
        self.embeddings: np.ndarray | None = None
        found = hashlib.sha256(tensors.step.key.encode())
        for array in (tensors.pixels, tensors.positions):
            if array is not None:
                found.update(np.ascontiguousarray(array).data)
        self.digest = found.digest()[:16]
