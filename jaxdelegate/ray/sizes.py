"""Batch sizes that programs are compiled for."""

from collections.abc import Sequence

from jaxdelegate.errors import OptionError

_UNCHANGED = 2  # the first batches of a data set: a full one, and perhaps the rest of a block


class BatchSizes:
    """Chooses for each batch the size in which it runs.

    Without given sizes a batch runs in the smallest size so far that holds it. If no size does,
    the first two sizes are those of the batches, and further ones are powers of two: a data set
    with varying batches compiles few programs, and one with equal batches pads none of them.
    """

    def __init__(self, given: Sequence[int] | None = None) -> None:
        """Only the given sizes may be compiled; None: chosen as batches arrive."""
        if given is not None and (not given or min(given) < 1):
            raise OptionError(f"batch_sizes: must be at least 1, got {list(given)}")
        self._are_given = given is not None
        self._sizes = sorted(set(given or ()))

    def of(self, rows: int) -> int:
        """The size in which a batch runs; if it is smaller than the batch, in several runs."""
        fitting = next((size for size in self._sizes if size >= rows), None)
        if fitting is not None:
            return fitting
        if self._are_given:
            return self._sizes[-1]
        size = rows if len(self._sizes) < _UNCHANGED else 1 << (rows - 1).bit_length()
        self._sizes.append(size)
        return size
