"""A model's constants: their digests, which are parts of its programs' keys, and their places."""

from collections.abc import Mapping

import numpy as np

from jaxdelegate.digests import array_digests
from jaxdelegate.quant.packing import in_memory


class ConstantDigests:
    """Each is computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, str]] = {}

    def of(self, constants: Mapping[int, np.ndarray]) -> dict[int, str]:
        """The digest of each array's elements, by tensor."""
        new = {i: a for i, a in constants.items() if self._known.get(i, (None,))[0] is not a}
        digests = array_digests(list(new.values()))
        self._known.update((i, (a, d)) for (i, a), d in zip(new.items(), digests, strict=True))
        return {i: self._known[i][1] for i in constants}


def places(constants: Mapping[int, np.ndarray], content: memoryview) -> dict[int, tuple[int, int]]:
    """Offset and size of each constant that is stored in a file as it is in memory, by tensor."""
    begin = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    found = {}
    for index, constant in constants.items():
        array = in_memory(constant)
        if array.dtype.hasobject or not array.flags.c_contiguous:
            continue
        at = array.__array_interface__["data"][0] - begin
        if array.nbytes and 0 <= at <= len(content) - array.nbytes:
            found[index] = (at, array.nbytes)
    return found
