"""Memory limits: graphs with tensors that are too large are rejected before allocation."""

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
from jaxdelegate.quant.packing import in_memory

MAX_TENSOR_BYTES = 2 << 30
_HOST_SHARE = 0.8  # share of the memory that this process may use
_MAX_NAMED = 3  # tensors in one message
_CGROUPS = Path("/sys/fs/cgroup")

Row = tuple[Collection[int], Collection[int]]  # the tensors that a step reads, and writes


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on a model's host memory, in bytes."""

    max_tensor_bytes: int = MAX_TENSOR_BYTES  # one tensor
    # All live tensors together; None: four fifths of `usable_memory()`
    max_host_memory: int | None = None

    @classmethod
    def of(cls, max_tensor_bytes: int | None, max_host_memory: int | None) -> "Limits":
        """The limits that a user gives; None: the defaults."""
        return cls(
            MAX_TENSOR_BYTES if max_tensor_bytes is None else max_tensor_bytes, max_host_memory
        )

    @property
    def host_memory(self) -> float:
        if self.max_host_memory is None:
            return _HOST_SHARE * usable_memory()
        return self.max_host_memory

    def check_sizes(self, specs: Iterable[tuple[int, TensorSpec]]) -> None:
        for index, spec in specs:
            # Kernels loop over every dimension, so the others must not be huge if one is empty.
            is_empty = 0 in spec.shape
            nbytes = own_bytes(spec)
            if is_empty:
                nbytes = spec_bytes(
                    dataclasses.replace(spec, shape=tuple(filter(None, spec.shape)))
                )
            if nbytes > self.max_tensor_bytes:
                empty = ", not counting empty dimensions" * is_empty
                raise InterpreterError(
                    f"{_named(index, spec)}, which takes {nbytes} bytes{empty}; max_tensor_bytes "
                    f"is {self.max_tensor_bytes}. Check the input's shape and whether the file is "
                    "damaged; a larger max_tensor_bytes allows it"
                )

    def check_sum(self, specs: Iterable[tuple[int, TensorSpec]], what: str) -> None:
        """Check tensors that are live at the same time; the message calls them `what`."""
        held = [(spec_bytes(spec), index, spec) for index, spec in specs]
        if sum(nbytes for nbytes, _, _ in held) > self.host_memory:
            self._reject(what, held)

    def check_graph(
        self,
        rows: Sequence[Row],
        specs: Sequence[TensorSpec] | Mapping[int, TensorSpec],
        permanent: Iterable[int],
        *,
        keeps_all: bool = False,
    ) -> None:
        """Check the live tensors of a graph after each step.

        A tensor is live from the step that writes it to the last one that reads it; `permanent`
        ones (inputs, outputs, variables, constants) always are, and with `keeps_all` none is freed.
        `rows` are the tensors that each step reads and writes, in order. Constants that are views
        of the file do not count: the system drops and reads their pages as needed.
        """
        staying, rows = set(permanent), [((), ()), *rows]  # checks these before the first step
        last = {i: at for at, row in enumerate(rows) for i in (*row[0], *row[1])}
        held = {i: own_bytes(specs[i]) for i in staying}
        total, limit = sum(held.values()), self.host_memory
        for at, (reads, writes) in enumerate(rows):
            new = {i: own_bytes(specs[i]) for i in writes if i not in held}
            held.update(new)
            total += sum(new.values())
            if total > limit:
                named = ((nbytes, i, specs[i]) for i, nbytes in held.items())
                self._reject("the tensors held at once", named)
            gone = () if keeps_all else {*reads, *writes} - staying
            total -= sum(held.pop(i, 0) for i in gone if last[i] == at)

    def _reject(self, what: str, held: Iterable[tuple[int, int, TensorSpec]]) -> NoReturn:
        ordered = sorted(held, key=lambda row: -row[0])
        named = "; ".join(f"{_named(i, s)} ({n} bytes)" for n, i, s in ordered[:_MAX_NAMED])
        raise InterpreterError(
            f"{what} take {sum(n for n, _, _ in ordered)} bytes of host memory; max_host_memory is "
            f"{int(self.host_memory)}. The largest: {named}. A smaller batch takes less; a larger "
            "max_host_memory allows it"
        )


def spec_bytes(spec: TensorSpec) -> int:
    """A tensor's size in bytes; 0 if its shape depends on data, and for strings."""
    if spec.is_dynamic or spec.dtype.hasobject:
        return 0
    return math.prod(spec.shape) * spec.dtype.itemsize


def own_bytes(spec: TensorSpec) -> int:
    """A tensor's size in bytes as by `spec_bytes`; 0 for a constant that is a view of the file."""
    const = spec.const
    if const is not None and const.shape == spec.shape and _is_mapped(const):  # not sparse
        return 0
    return spec_bytes(spec)


def _is_mapped(const: np.ndarray) -> bool:
    base = in_memory(const)
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.base is not None  # a memoryview of the file's bytes


def _named(index: int, spec: TensorSpec) -> str:
    return f"tensor {index} {spec.name!r} is {spec.dtype} {list(spec.shape)}"


@functools.cache
def usable_memory() -> float:
    """Bytes that this process may use: the machine's memory, or the limit of its control groups."""
    limits = [math.inf]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no POSIX
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limits += [limit for path in _limit_files() if (limit := _read(path)) is not None]
    return min(limits)


def _limit_files() -> Iterable[Path]:
    """The files with the limits of this process's Linux control groups, versions 2 and 1."""
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
    except (OSError, ValueError):  # missing, or "max"
        return None
