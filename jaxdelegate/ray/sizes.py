"""Batch sizes that programs are compiled for."""

from collections.abc import Sequence

from jaxdelegate.errors import OptionError

_AS_THEY_COME = 2  # the first batches of a data set: a full one, and perhaps what a block left over


class BatchSizes:
    """Chooses for each batch the size in which it runs.

    Without given sizes a batch runs in the smallest size so far that holds it. Where there is none,
    the first two are as the batches come, and further ones powers of two: a data set whose batches
    vary compiles few programs, and one whose batches do not pads none of them.
    """

    def __init__(self, given: Sequence[int] | None = None) -> None:
        """Begin.

        Args:
            given: all sizes that may be compiled; None: chosen as batches come.

        Raises:
            OptionError: none, or one below 1.
        """
        if given is not None and (not given or min(given) < 1):
            raise OptionError(f"batch_sizes: want sizes from 1 on, got {list(given)}")
        self._are_given = given is not None
        self._sizes = sorted(set(given or ()))

    def of(self, rows: int) -> int:
        """The size in which so many rows run; a smaller one than `rows`: in several runs."""
        fitting = next((size for size in self._sizes if size >= rows), None)
        if fitting is not None:
            return fitting
        if self._are_given:
            return self._sizes[-1]
        size = rows if len(self._sizes) < _AS_THEY_COME else 1 << (rows - 1).bit_length()
        self._sizes.append(size)
        return size
