"""The scheduling policy: which of the waiting requests run together, and when."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

# The cost of a run outside the model, relative to the time of a single item: among sizes that are
# equally fast per item, the larger one wins.
_OVERHEAD = 0.03


@dataclasses.dataclass(frozen=True)
class Costs:
    seconds: Mapping[int, float]  # what one run takes, by batch size

    @property
    def max_rows(self) -> int:
        return max(self.seconds)

    @property
    def best(self) -> int:
        return _largest_best({size: self._cost(size) / size for size in self.seconds})

    def padded(self, rows: int) -> int:
        """The smallest compiled size for this many items."""
        return min(size for size in self.seconds if size >= rows)

    @functools.cached_property
    def first_rows(self) -> Sequence[int]:
        """How many items to run first, by the number waiting, to finish all as soon as possible."""
        first, total = [0], [0.0]
        for rows in range(1, self.max_rows + 1):
            totals = {n: self._cost(self.padded(n)) + total[rows - n] for n in range(1, rows + 1)}
            first.append(_largest_best(totals))
            total.append(min(totals.values()))
        return first

    def _cost(self, size: int) -> float:
        return self.seconds[size] + _OVERHEAD * self.seconds[min(self.seconds)]


class Waiting(Protocol):
    key: Hashable  # only requests with the same key run together: signature and shapes
    rows: int  # its items
    since: float  # when it arrived, in seconds of a monotonic clock
    costs: Costs  # its signature's


@dataclasses.dataclass(frozen=True)
class Decision:
    taken: tuple[int, ...]  # positions of the requests to run now; empty: wait
    wait_s: float = 0.0  # the longest time


def compiled_sizes(max_batch_size: int) -> tuple[int, ...]:
    """The batch sizes to compile: powers of two below the largest, and the largest itself."""
    powers = (1 << n for n in range(max_batch_size.bit_length()))
    return (*(size for size in powers if size < max_batch_size), max_batch_size)


def decide(waiting: Sequence[Waiting], now: float, max_delay_s: float) -> Decision:
    """Which requests of the queue, oldest first and not empty, to run now.

    The oldest request is always among them. Others with its key join in order of arrival, up to the
    first that does not fit. As many run at once as finish all of them soonest by the measured
    costs: a network that gains nothing from batches runs without them. `now` is by the clock of
    `since`.
    """
    oldest = waiting[0]
    fitting = _fitting(waiting, oldest.key, oldest.costs.max_rows)
    rows = sum(waiting[i].rows for i in fitting)
    left = oldest.since + max_delay_s - now
    if rows < oldest.costs.best and left > 0:
        return Decision((), left)
    return Decision(fitting[: _count(waiting, fitting, oldest.costs)])


def _fitting(waiting: Sequence[Waiting], key: Hashable, max_rows: int) -> tuple[int, ...]:
    """The requests with a key that fit into one batch; none overtakes another with its key."""
    positions: list[int] = []
    rows = 0
    for position, request in enumerate(waiting):
        if request.key != key:
            continue
        rows += request.rows
        if rows > max_rows and positions:
            break
        positions.append(position)
        if rows >= max_rows:
            break
    return tuple(positions)


def _count(waiting: Sequence[Waiting], fitting: Sequence[int], costs: Costs) -> int:
    ends = list(itertools.accumulate(waiting[i].rows for i in fitting))
    return max(1, bisect.bisect_right(ends, costs.first_rows[ends[-1]]))


def _largest_best(seconds: Mapping[int, float]) -> int:
    """The number with the lowest cost; on a tie, the largest."""
    return min(seconds, key=lambda number: (seconds[number], -number))
