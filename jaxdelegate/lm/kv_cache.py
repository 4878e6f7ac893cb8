"""The KV cache: whose tokens its entries are, and its arrays on the device.

The cache alone decides how long its arrays are, and which entries a new prompt can reuse.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.device_errors import is_out_of_memory
from jaxdelegate.errors import DeviceMemoryError
from jaxdelegate.lm.cache_memory import resized, zeros
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.program_spec import Array, cache_arrays
from jaxdelegate.pjrt.client import Runtime

_BLOCK = 32


class ReadStep(NamedTuple):
    """A prefill step of a slot.

    Attributes:
        length: how many tokens it processes at most.
        end: how many entries the slot has after it.
    """

    length: int
    end: int


class KVCache:
    """The cache entries of the sequences in some slots.

    A sequence has an entry for each of its tokens but the last one, whose entry the next step
    writes. Programs take the arrays and replace them.

    Attributes:
        slots: how many sequences it holds.
        length: of the arrays, in tokens.
        arrays: on the device, as `cache_arrays` lists them.
    """

    def __init__(
        self,
        graph: LanguageGraph,
        slots: int,
        runtime: Runtime,
        plan: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        """Empty, of the shortest length.

        Args:
            graph: whose caches they are.
            slots: how many sequences it holds.
            runtime: where its arrays are.
            plan: the lengths of the prefill steps that write a number of entries. A prompt reuses
                only what the same steps have written, so that its entries are exactly those of
                the prompt alone. None: it reuses all that it can.

        Raises:
            DeviceMemoryError: it does not fit.
        """
        self._graph, self.slots, self._runtime = graph, slots, runtime
        self._plan = None if plan is None else functools.lru_cache(1024)(plan)
        self.length = graph.cache_lengths[0]
        arrays = cache_arrays(graph, slots, self.length)
        with self._naming_size(arrays, self.length):
            self.arrays = zeros(runtime, arrays)
        self._ids: list[list[int]] = [[] for _ in range(slots)]
        self._written = [0] * slots  # the most entries since a slot was filled from its beginning
        self._steps: list[list[ReadStep]] = [[] for _ in range(slots)]  # whose entries are there

    @contextlib.contextmanager
    def _naming_size(self, arrays: Sequence[Array], length: int) -> Iterator[None]:
        """A DeviceMemoryError says what does not fit."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
            raise DeviceMemoryError(
                f"the caches of {length} tokens for {self.slots} sequences take "
                f"{size / 1e6:,.1f} MB, which {self._runtime.device} does not have: use a smaller "
                "max_batch"
            ) from error

    # ---- tokens

    def ids(self, slot: int) -> Sequence[int]:
        """All tokens of a sequence, the prompt included."""
        return self._ids[slot]

    @property
    def entries(self) -> int:
        """For how many entries programs need caches: as many as the longest sequence has.

        With a plan one more, which the slot writes while it rests: in shorter caches it would
        write its last entry again, by another program.
        """
        more = self._plan is not None
        longest = max(max(len(ids) - 1 + more, 0) for ids in self._ids)
        return min(longest, self._graph.capacity) if more else longest

    def prefix(self, slot: int, ids: Sequence[int]) -> int:
        """How many of these tokens have entries in a slot that can be reused."""
        common = common_length(self._ids[slot][:-1], ids[:-1])
        return self.reusable(slot, common, len(ids) - 1)

    def reusable(self, slot: int, common: int, entries: int, more: Sequence[ReadStep] = ()) -> int:
        """How many of a slot's first `common` entries a prompt can reuse.

        Args:
            slot: that has them.
            common: whose tokens are those of the prompt.
            entries: of the prompt.
            more: steps of the slot until then.
        """
        # A full sequence that rests goes on writing its last entry.
        count = min(common, self._graph.capacity - 1)
        if self._plan is not None:
            lengths = self._plan(entries)
            count = _in_same_steps(lengths, entries, [*self._steps[slot], *more], count)
        return count if self._can_rewind(slot, count, more[-1].end if more else 0) else 0

    def is_intact(self, slot: int) -> bool:
        """Whether all tokens of a slot have entries, also after `truncate`."""
        return self._can_rewind(slot, len(self._ids[slot]) - 1)

    def _can_rewind(self, slot: int, count: int, written: int = 0) -> bool:
        """Whether later entries have not overwritten the first `count`."""
        most = self._graph.max_rewind
        return most is None or max(self._written[slot], written) - count <= most

    def hold(self, slot: int, ids: Sequence[int], reused: int) -> None:
        """Let a slot have the first `reused` of these tokens' entries, and the next token."""
        if not reused:
            self._written[slot] = 0
        self._keep_steps(slot, reused)
        self.set(slot, ids[: reused + 1])

    def _keep_steps(self, slot: int, count: int) -> None:
        """What the steps have written after the first entries is not there any more."""
        begins = [0, *(step.end for step in self._steps[slot])]
        self._steps[slot] = [
            step._replace(end=min(step.end, count))
            for step, begin in zip(self._steps[slot], begins, strict=False)
            if begin < count
        ]

    def read(self, slot: int, ids: Sequence[int], length: int) -> None:
        """A prefill step of a length has written the last entries of these tokens."""
        self.set(slot, ids)
        self._steps[slot].append(ReadStep(length, len(ids) - 1))

    def set(self, slot: int, ids: Sequence[int]) -> None:
        """A program has written the entries of these tokens."""
        self._ids[slot] = []
        self.append(slot, ids)

    def append(self, slot: int, ids: Sequence[int], rejected: int = 0) -> None:
        """A program has written more entries, and `rejected` ones that tokens will overwrite."""
        self._ids[slot] += ids
        self._written[slot] = max(self._written[slot], len(self._ids[slot]) - 1 + rejected)

    def copy(self, source: int, target: int, count: int) -> None:
        """A program has copied a slot's entries to another one, which keeps the first `count`."""
        self._ids[target] = self._ids[source][: count + 1]
        self._written[target] = self._written[source]
        self._steps[target] = self._steps[source]
        self._keep_steps(target, count)

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens of a sequence after the first `length`, at least one."""
        del self._ids[slot][length:]
        self._keep_steps(slot, length - 1)

    def last_tokens(
        self, length: int, active: Container[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """The last token of each sequence, and its place: int32 [slots] each.

        Slots that rest write an entry, too. Where one would need more than `length` entries, it
        writes its last one again.
        """
        places = [max(len(ids) - 1, 0) for ids in self._ids]
        for slot, place in enumerate(places):
            if place == length < self._graph.capacity and slot not in active:
                places[slot] -= 1
        pairs = zip(self._ids, places, strict=True)
        # Only a slot that rests has a soft token last; a later step writes its entry.
        tokens = [max(ids[place], 0) if ids else 0 for ids, place in pairs]
        return np.array(tokens, np.int32), np.array(places, np.int32)

    # ---- arrays

    def on(self, runtime: Runtime, length: int) -> list[Any]:
        """The arrays where a program runs, cut or filled with zeros to its length.

        A DeviceMemoryError: they do not fit.
        """
        if self._runtime is runtime and self.length == length:
            return self.arrays
        arrays = cache_arrays(self._graph, self.slots, length)
        shapes = [shape for shape, _ in arrays]
        with self._naming_size(arrays, length):
            if not any(self._written):  # there is nothing to keep
                return zeros(runtime, arrays)
            return resized(self._runtime, runtime, self.arrays, shapes)

    def replace(self, runtime: Runtime, length: int, arrays: Sequence[Any]) -> None:
        """A program has returned these arrays."""
        self._runtime, self.length, self.arrays = runtime, length, list(arrays)

    def wait(self) -> None:
        """Wait until the device has computed all entries."""
        for array in self.arrays:
            array.block_until_ready()


def _in_same_steps(
    lengths: Sequence[int], entries: int, steps: Sequence[ReadStep], common: int
) -> int:
    """How many of the first `common` entries, written by `steps`, a prompt's own would write so.

    `lengths`: of its steps, which write `entries`.
    """
    end = count = 0
    for length, step in zip(lengths, steps, strict=False):
        end = min(end + length, entries)
        if step.length != length or end > min(step.end, common):
            break
        count = end
    return count


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements at the beginning are equal. Lists are compared in blocks."""
    count, most = 0, min(len(a), len(b))
    while count < most and a[count : count + _BLOCK] == b[count : count + _BLOCK]:
        count += _BLOCK
    pairs = zip(a[count:], b[count:], strict=False)
    return min(most, count + next((n for n, (x, y) in enumerate(pairs) if x != y), most))
