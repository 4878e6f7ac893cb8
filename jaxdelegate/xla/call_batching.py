"""Call batching: consecutive calls of native kernels become one call.

XLA spends some microseconds on each call and JAX on each operand, at run time and when a program
is compiled or loaded. A call batch is one call. Its first operand is the call list, which says
which kernel runs on which buffers (kernels/call_batch.cc), followed by small weights. Intermediate
results are in scratch memory that XLA provides as one more result.
"""

import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxdelegate.kernels.call_times import batch_number
from jaxdelegate.kernels.library import BATCHED, CALL_BATCH, ffi_type
from jaxdelegate.xla.jax_compat import ffi_attributes

_ALIGNMENT = 64  # bytes, in scratch memory and after a call list
_WORD = 8  # bytes

# The kinds of places of a tensor in a call list (kernels/call_batch.cc).
_ARGUMENT, _RESULT, _SCRATCH, _CONSTANT = range(4)


def traced(
    function: Callable[..., Any], types: Sequence[jax.ShapeDtypeStruct], *, below: int
) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """A function of call lists and arrays, with its kernel calls batched, and the call lists."""
    closed, call_lists = with_call_batches(jax.make_jaxpr(function)(*types), below=below)
    return core.jaxpr_as_fun(closed), call_lists


def with_call_batches(
    closed: core.ClosedJaxpr, *, below: int
) -> tuple[core.ClosedJaxpr, tuple[np.ndarray, ...]]:
    """A traced function with call batches instead of single calls, and the call lists.

    Call lists are its first arguments: a program that does not contain them loads faster.

    Args:
        closed: the traced function; equations whose results are not read are removed.
        below: constants of fewer bytes become part of call lists.
    """
    if not any(map(_is_call, closed.jaxpr.eqns)):
        return closed, ()
    return _Program(closed, below).with_batches()


def _is_call(eqn: core.JaxprEqn) -> bool:
    return eqn.primitive.name == "ffi_call" and eqn.params["target_name"] in BATCHED


def _is_view(eqn: core.JaxprEqn) -> bool:
    """Whether an equation returns its last input without changing its memory."""
    if eqn.primitive.name == "reshape":
        return eqn.params["dimensions"] is None
    # op_lowering/common/fusion_barrier.py: an identity on other platforms is one on a CPU
    # too. It keeps XLA from fusing a result with its readers; kernels are not fused anyway.
    *_, default = eqn.params.get("branches", [None])
    is_by_platform = eqn.params.get("branches_platforms") is not None
    return (
        is_by_platform and not default.jaxpr.eqns and default.jaxpr.outvars == default.jaxpr.invars
    )


class _Program:
    """A traced function as kernel calls and other equations."""

    def __init__(self, closed: core.ClosedJaxpr, below: int) -> None:
        jaxpr = closed.jaxpr
        self._below = below
        self._jaxpr = jaxpr
        self._constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self._views = {eqn.outvars[0]: eqn.invars[-1] for eqn in jaxpr.eqns if _is_view(eqn)}

    def with_batches(self) -> tuple[core.ClosedJaxpr, tuple[np.ndarray, ...]]:
        eqns: list[core.JaxprEqn] = []
        call_lists: dict[Any, np.ndarray] = {}
        needed = set(_variables(self._jaxpr.outvars))
        for group in reversed(_grouped(self._jaxpr.eqns, self._reads)):
            eqn = group[0]
            if _is_call(eqn):
                eqn, call_list = self._batch(group, needed).equation()
                call_lists[eqn.invars[0]] = call_list
            elif not eqn.effects and needed.isdisjoint(eqn.outvars):
                continue
            eqns.append(eqn)
            needed.update(_variables(eqn.invars))
        jaxpr = self._jaxpr.replace(eqns=eqns[::-1], invars=[*call_lists, *self._jaxpr.invars])
        return core.ClosedJaxpr(jaxpr, list(self._constants.values())), tuple(call_lists.values())

    def _source(self, value: Any) -> Any:
        """The variable or literal behind any number of views."""
        while isinstance(value, core.Var) and value in self._views:
            value = self._views[value]
        return value

    def _reads(self, eqn: core.JaxprEqn) -> list[core.Var]:
        return _variables(map(self._source, eqn.invars) if _is_call(eqn) else eqn.invars)

    def _batch(self, calls: Sequence[core.JaxprEqn], needed: Collection[core.Var]) -> "_CallBatch":
        sources = {v: self._source(v) for eqn in calls for v in eqn.invars}
        results = [v for eqn in calls for v in eqn.outvars if v in needed]
        known = {v: c for v in sources.values() if (c := self._constant(v)) is not None}
        return _CallBatch(calls, sources, results, known)

    def _constant(self, value: Any) -> np.ndarray | None:
        """The elements of a small constant; None: it stays an operand."""
        known = value.val if isinstance(value, core.Literal) else self._constants.get(value)
        if known is None or _bytes(value) >= self._below:
            return None
        return np.asarray(known, value.aval.dtype)


def _variables(values: Iterable[Any]) -> list[core.Var]:
    return [v for v in values if isinstance(v, core.Var)]


def _grouped(
    eqns: Sequence[core.JaxprEqn], reads: Callable[[core.JaxprEqn], Sequence[core.Var]]
) -> list[list[core.JaxprEqn]]:
    """All equations in an order of dependence that makes groups of calls as large as possible."""
    makers = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
    needs = [{makers[v] for v in reads(eqn) if v in makers} for eqn in eqns]
    readers = collections.defaultdict(list)
    for i, before in enumerate(needs):
        for maker in before:
            readers[maker].append(i)
    missing = [len(before) for before in needs]
    ready: dict[bool, list[int]] = {True: [], False: []}  # heaps, of calls and of others
    for i, count in enumerate(missing):
        if not count:
            ready[_is_call(eqns[i])].append(i)

    def taken(queue: list[int]) -> Iterator[core.JaxprEqn]:
        while queue:
            i = heapq.heappop(queue)
            yield eqns[i]
            for reader in readers[i]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready[_is_call(eqns[reader])], reader)

    groups: list[list[core.JaxprEqn]] = []
    while ready[True] or ready[False]:
        groups.extend([eqn] for eqn in taken(ready[False]))
        if calls := list(taken(ready[True])):
            groups.append(calls)
    return groups


@dataclasses.dataclass(frozen=True)
class _CallBatch:
    """Calls that become one call."""

    calls: Sequence[core.JaxprEqn]  # in an order of dependence
    sources: Mapping[Any, Any]  # the variables of their operands
    results: Sequence[core.Var]  # their results that other equations read
    known: Mapping[Any, np.ndarray]  # sources whose elements become part of the call list

    def equation(self) -> tuple[core.JaxprEqn, np.ndarray]:
        """The batch as one equation, and the call list for its first variable."""
        operands = self._operands()
        scratch, size = _scratch(self.calls, self.sources, self.results)
        places = {
            **{v: (_ARGUMENT, number) for number, v in enumerate(operands, 1)},
            **{v: (_RESULT, number) for number, v in enumerate(self.results)},
            **{v: (_SCRATCH, offset) for v, offset in scratch.items()},
        }
        call_list = self._call_list(places)
        types = [*map(_type_of, self.results), _type((size,), np.dtype(np.uint8))]
        call = jax.named_scope(self._name())(jax.ffi.ffi_call(CALL_BATCH, types))
        traced = jax.make_jaxpr(call)(
            _type(call_list.shape, call_list.dtype), *map(_type_of, operands)
        )
        (eqn,) = traced.jaxpr.eqns
        own = [*self.results, eqn.outvars[-1]]
        return eqn.replace(invars=[eqn.invars[0], *operands], outvars=own), call_list

    def _operands(self) -> list[Any]:
        computed = {eqn.outvars[0] for eqn in self.calls}
        read = dict.fromkeys(self.sources[v] for eqn in self.calls for v in eqn.invars)
        return [v for v in read if v not in computed and v not in self.known]

    def _name(self) -> str:
        """The scopes of the calls' operators, as profiles read them (benchmark/hlo.py)."""
        return ",".join(str(eqn.source_info.name_stack).split("/")[0] for eqn in self.calls)

    def _call_list(self, places: Mapping[Any, tuple[int, int]]) -> np.ndarray:
        """The call list (kernels/call_batch.cc) as bytes, the dtype that XLA loads fastest."""
        behind, constants = _laid_out(self.known)
        placed = dict(places) | {v: (_CONSTANT, at) for v, at in behind.items()}
        calls = [word for eqn in self.calls for word in self._words(eqn, placed)]
        begin = _aligned(_WORD * (3 + len(calls)))
        head = np.zeros(begin // _WORD, np.int64)
        head[: 3 + len(calls)] = [len(self.calls), begin, batch_number(self._name()), *calls]
        return np.concatenate([head, constants]).view(np.uint8)

    def _words(self, eqn: core.JaxprEqn, places: Mapping[Any, tuple[int, int]]) -> Iterator[int]:
        yield BATCHED.index(eqn.params["target_name"])
        yield len(eqn.invars)
        for v in (*eqn.invars, *eqn.outvars):
            yield from places[self.sources.get(v, v)]
            kind = _type_of(v)
            yield from (ffi_type(kind.dtype), len(kind.shape), *kind.shape)
        attributes = ffi_attributes(eqn)
        yield len(attributes)
        for value in attributes.values():
            yield from (ffi_type(value.dtype), value.size)
            yield from _in_words(value).tolist()


def _scratch(
    calls: Sequence[core.JaxprEqn], sources: Mapping[Any, Any], results: Collection[core.Var]
) -> tuple[dict[core.Var, int], int]:
    """The offset in scratch memory of each intermediate result, and the size of that memory.

    Largest first, each at the first place that is free while it is needed: "greedy by size" of
    TFLite's memory planners.
    """
    last = {sources[v]: i for i, eqn in enumerate(calls) for v in eqn.invars}
    makers = {eqn.outvars[0]: i for i, eqn in enumerate(calls) if eqn.outvars[0] not in results}
    lives = {y: (i, last.get(y, i)) for y, i in makers.items()}
    offsets: dict[core.Var, int] = {}
    size = _ALIGNMENT
    for y in sorted(makers, key=lambda y: -_bytes(y)):
        first, end = lives[y]
        live = (v for v in offsets if lives[v][0] <= end and first <= lives[v][1])
        taken = sorted((offsets[v], offsets[v] + _aligned(_bytes(v))) for v in live)
        offsets[y] = _first_gap(taken, _aligned(_bytes(y)))
        size = max(size, offsets[y] + _aligned(_bytes(y)))
    return offsets, size


def _first_gap(taken: Iterable[tuple[int, int]], nbytes: int) -> int:
    begin = 0
    for start, end in taken:
        if start - begin >= nbytes:
            return begin
        begin = max(begin, end)
    return begin


def _laid_out(known: Mapping[Any, np.ndarray]) -> tuple[dict[Any, int], np.ndarray]:
    """The offset of each constant in bytes, and all of them concatenated, int64 [n]."""
    parts = [_in_words(elements, _ALIGNMENT) for elements in known.values()]
    begins = itertools.accumulate((part.nbytes for part in parts), initial=0)
    return dict(zip(known, begins, strict=False)), np.concatenate([*parts, np.zeros(0, np.int64)])


def _in_words(elements: np.ndarray, unit: int = _WORD) -> np.ndarray:
    """The bytes of an array, padded to a multiple of the alignment, as int64 [n]."""
    content = elements.tobytes()
    return np.frombuffer(content + bytes(-len(content) % unit), np.int64)


def _aligned(nbytes: int) -> int:
    return math.ceil(nbytes / _ALIGNMENT) * _ALIGNMENT


def _bytes(v: Any) -> int:
    kind = _type_of(v)
    return int(math.prod(kind.shape) * kind.dtype.itemsize)


def _type_of(v: Any) -> jax.ShapeDtypeStruct:
    return _type(v.aval.shape, v.aval.dtype)


def _type(shape: Sequence[int], dtype: np.dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
