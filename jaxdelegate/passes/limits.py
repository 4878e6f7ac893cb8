"""A declared shape is not believed: what would take too much memory is refused beforehand."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.op_lowering.spec import TensorSpec

MAX_TENSOR_BYTES = 2 << 30
_HOST_SHARE = 0.8  # of the memory that this process may use
_MOST_NAMED = 3  # tensors in one message
_CGROUPS = Path("/sys/fs/cgroup")

Row = tuple[Collection[int], Collection[int]]  # the tensors that a step reads, and writes


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a model may take of the host's memory.

    Attributes:
        max_tensor_bytes: how much one tensor may take.
        max_host_memory: bytes that the tensors of a plan may take at once; None: four fifths of
            the memory that this process may use.
    """

    max_tensor_bytes: int = MAX_TENSOR_BYTES
    max_host_memory: int | None = None

    @classmethod
    def of(cls, max_tensor_bytes: int | None, max_host_memory: int | None) -> "Limits":
        """Limits as users give them; None: the default."""
        return cls(
            MAX_TENSOR_BYTES if max_tensor_bytes is None else max_tensor_bytes, max_host_memory
        )

    @property
    def host_memory(self) -> float:
        """Bytes that the tensors of a plan may take at once."""
        if self.max_host_memory is None:
            return _HOST_SHARE * usable_memory()
        return self.max_host_memory

    def check_sizes(self, specs: Iterable[tuple[int, TensorSpec]]) -> None:
        """Refuse tensors before anything is allocated for them.

        Args:
            specs: each with its tensor's index, and the shape that is known. A constant that is a
                view of the file needs nothing allocated.

        Raises:
            InterpreterError: one takes more than `max_tensor_bytes`; names it.
        """
        for index, spec in specs:
            # An empty dimension hides others that are far too large: kernels count along each.
            is_empty = 0 in spec.shape
            nbytes = spec_bytes(_without_empty(spec)) if is_empty else own_bytes(spec)
            if nbytes > self.max_tensor_bytes:
                empty = ", the empty dimensions apart" * is_empty
                raise InterpreterError(
                    f"{_named(index, spec)}, which takes {nbytes} bytes{empty}; max_tensor_bytes "
                    f"is {self.max_tensor_bytes}: is the file damaged, or the input's shape right? "
                    "A larger max_tensor_bytes allows it"
                )

    def check_sum(self, specs: Iterable[tuple[int, TensorSpec]], what: str) -> None:
        """Refuse tensors that are held together.

        Args:
            specs: each with its tensor's index.
            what: they are, for the message.

        Raises:
            InterpreterError: they take more than `max_host_memory`; names the largest.
        """
        held = [(spec_bytes(spec), index, spec) for index, spec in specs]
        if sum(nbytes for nbytes, _, _ in held) > self.host_memory:
            self._refuse(what, held)

    def check_graph(
        self,
        rows: Sequence[Row],
        specs: Sequence[TensorSpec] | Mapping[int, TensorSpec],
        stay: Iterable[int],
        *,
        keeps_all: bool = False,
    ) -> None:
        """Refuse a graph whose tensors would take too much at once, step by step.

        A tensor counts from the step that writes it to the last one that reads it. Constants that
        are views of the file count nothing: the system drops and reads their pages as it needs.

        Args:
            rows: what each step reads and writes, in order.
            specs: by tensor.
            stay: tensors that are there all the time: inputs, outputs, variables, constants.
            keeps_all: no tensor is given back.

        Raises:
            InterpreterError: more than `max_host_memory`; names the largest tensors.
        """
        staying, rows = set(stay), [((), ()), *rows]  # what stays is there before the first step
        last = {i: at for at, row in enumerate(rows) for i in (*row[0], *row[1])}
        held = {i: own_bytes(specs[i]) for i in staying}
        total, limit = sum(held.values()), self.host_memory
        for at, (reads, writes) in enumerate(rows):
            new = {i: own_bytes(specs[i]) for i in writes if i not in held}
            held.update(new)
            total += sum(new.values())
            if total > limit:
                named = ((nbytes, i, specs[i]) for i, nbytes in held.items())
                self._refuse("the tensors held at once", named)
            gone = () if keeps_all else {*reads, *writes} - staying
            total -= sum(held.pop(i, 0) for i in gone if last[i] == at)

    def _refuse(self, what: str, held: Iterable[tuple[int, int, TensorSpec]]) -> NoReturn:
        ordered = sorted(held, key=lambda row: -row[0])
        named = "; ".join(f"{_named(i, s)} ({n} bytes)" for n, i, s in ordered[:_MOST_NAMED])
        raise InterpreterError(
            f"{what} take {sum(n for n, _, _ in ordered)} bytes of host memory; max_host_memory is "
            f"{int(self.host_memory)}. The largest: {named}. A smaller batch takes less; a larger "
            "max_host_memory allows it"
        )


def spec_bytes(spec: TensorSpec) -> int:
    """What a tensor takes; 0 where data decide, and for strings."""
    if spec.is_dynamic or spec.dtype.hasobject:
        return 0
    return math.prod(spec.shape) * spec.dtype.itemsize


def _without_empty(spec: TensorSpec) -> TensorSpec:
    return dataclasses.replace(spec, shape=tuple(filter(None, spec.shape)))


def own_bytes(spec: TensorSpec) -> int:
    """The same, but 0 for a constant that is a view of the file."""
    const = spec.const
    if const is not None and const.shape == spec.shape and _is_mapped(const):  # not sparse
        return 0
    return spec_bytes(spec)


def _is_mapped(const: np.ndarray) -> bool:
    base = const
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.base is not None  # a memoryview of the file's bytes


def _named(index: int, spec: TensorSpec) -> str:
    return f"tensor {index} {spec.name!r} is {spec.dtype} {list(spec.shape)}"


@functools.cache
def usable_memory() -> float:
    """Bytes that this process may use: the machine's memory, or what its control groups allow."""
    found = [math.inf]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no POSIX
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    found += [limit for path in _limit_files() if (limit := _read(path)) is not None]
    return min(found)


def _limit_files() -> Iterable[Path]:
    """Where Linux keeps the limits of this process's control groups, versions 2 and 1."""
    yield from (_CGROUPS / "memory.max", _CGROUPS / "memory/memory.limit_in_bytes")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                group = _CGROUPS / path.lstrip("/")
                yield from (g / "memory.max" for g in (group, *group.parents))


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not there, or "max"
        return None
