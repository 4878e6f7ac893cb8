"""Time per TFLite operator: on the host by the clock, in partitions by jax.profiler's trace."""

import contextlib
import dataclasses
import importlib
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxdelegate.benchmark import hlo, trace
from jaxdelegate.benchmark.session import Session
from jaxdelegate.benchmark.work import OperatorWork, OpTime, cost_of, work_of
from jaxdelegate.costs import specs_bytes
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.kernels.call_times import CallTime, timed_calls
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.runtime.execution_plan import OperatorStep, PartitionStep, Step
from jaxdelegate.simple_delegate import Node

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Profile:
    init: tuple[OpTime, ...]  # the steps of preparation, each run once
    nodes: tuple[OpTime, ...]  # host operators, and each partition as a whole
    inside: tuple[OpTime, ...]  # the operators in partitions, by device time
    runs: int  # the number of profiled runs
    work: tuple[OperatorWork, ...] = ()  # operations, bytes and seconds of the operators

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "init": [row.as_dict() for row in self.init],
            "nodes": [row.as_dict() for row in self.nodes],
            "inside_partitions": [row.as_dict() for row in self.inside],
        }


def totals(rows: Iterable[OpTime]) -> Stat:
    columns = zip(*(row.times.values for row in rows), strict=False)
    return Stat(tuple(sum(column) for column in columns))


def collect(
    session: Session,
    arrays: Sequence[np.ndarray],
    partitions: Sequence[Any],
    *,
    runs: int,
    init: Sequence[OpTime] = (),
    perfetto_trace: str = "",
) -> Profile:
    """Profile runs, and the operators inside the delegates' partitions."""
    invokes: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _watched(session) as steps:
        traced = _tracing(folder, perfetto=bool(perfetto_trace), inside=bool(partitions))
        with traced, timed_calls(bool(partitions)) as calls:
            for _ in range(runs):
                session.set(arrays)
                start = time.perf_counter()
                session.invoke()
                invokes.append(1e6 * (time.perf_counter() - start))
        events = trace.read_events(Path(folder))
        _keep_trace(Path(folder), perfetto_trace)
    tables = [(p.nodes, _inside(p.nodes, p.program, events, calls, runs)) for p in partitions]
    inside = tuple(row for _, rows in tables for row in rows)
    nodes = steps.rows() if steps else _stock_nodes(partitions, inside, invokes)
    work = [w for nodes, rows in tables for w in work_of(rows, nodes)]
    work += steps.work() if steps else []
    return Profile(tuple(init), nodes, inside, runs, tuple(work))


@contextlib.contextmanager
def _tracing(folder: str, *, perfetto: bool, inside: bool) -> Iterator[None]:
    if not (perfetto or inside):
        yield
        return
    calls = importlib.import_module("jaxdelegate.thunks.calls")
    profiler = importlib.import_module("jax.profiler")
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's tracer would slow down what is timed
    profiler.start_trace(folder, create_perfetto_trace=perfetto, profiler_options=options)
    try:
        with calls.by_xla():
            yield
    finally:
        profiler.stop_trace()


def _keep_trace(folder: Path, target: str) -> None:
    newest = trace.newest_file(folder, "perfetto_trace.json.gz")
    if target and newest is not None:
        shutil.copyfile(newest, target)


# ---- in partitions


def _inside(
    nodes: Sequence[Node],
    program: Any,
    events: Sequence[trace.Event],
    calls: Sequence[CallTime],
    runs: int,
) -> list[OpTime]:
    text = program.executable.as_text()
    module = text.split(",", 1)[0].split()[-1]
    by_scope = {node.operator.scope: node for node in nodes}
    instructions = hlo.read_program(text, tuple(by_scope))
    ours = [e for e in events if e.module == module and e.instruction in instructions]
    by_label: dict[tuple[str, ...], list[_Piece]] = {}
    for piece in _pieces(ours, instructions, calls):
        by_label.setdefault(piece.label, []).append(piece)
    rows = [
        _operator_row([by_scope[s] for s in label if s in by_scope], label, pieces, runs)
        for label, pieces in by_label.items()
    ]
    return sorted(rows, key=lambda row: row.nodes or (len(by_scope),))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """One execution of an instruction, or of a call in a call batch."""

    label: tuple[str, ...]  # the operators' scopes, or XLA's name
    source: tuple[str, int]  # the instruction, and the position of the call in it
    us: float
    bytes: int  # the size of its results
    traffic: int


def _pieces(
    events: Sequence[trace.Event],
    instructions: Mapping[str, hlo.Instruction],
    calls: Iterable[CallTime],
) -> Iterator[_Piece]:
    seen = {event.instruction for event in events}
    by_position = _group(lambda call: (call.batch, call.call), calls)
    timed = {position: iter(group) for position, group in by_position.items()}
    for event in events:
        instruction = instructions[event.instruction]
        if instruction.batch is not None:
            for position, scopes in enumerate(instruction.batch.scopes):
                call = next(timed.get((instruction.batch.number, position), iter(())), None)
                if call is not None:
                    us, source = call.nanoseconds / 1e3, (event.instruction, position)
                    yield _Piece(scopes, source, us, call.result_bytes, call.bytes)
        elif not (instruction.is_control and instruction.called & seen):  # else those count
            label = instruction.scopes or (f"XLA {instruction.opcode}",)
            us, source = event.duration / 1e3, (event.instruction, 0)
            yield _Piece(label, source, us, instruction.bytes, instruction.traffic)


def _per_run(times: Iterable[Sequence[float]], runs: int) -> list[float]:
    """The sum over instructions in each run; every run executes each equally often."""
    sums = [0.0] * runs
    for durations in times:
        for k, duration in enumerate(durations):
            sums[k * runs // len(durations)] += duration
    return sums


def _operator_row(
    nodes: Sequence[Node], label: Sequence[str], pieces: Sequence[_Piece], runs: int
) -> OpTime:
    by_source = _group(lambda piece: piece.source, pieces)
    times = Stat.of(_per_run([[p.us for p in group] for group in by_source.values()], runs))
    once = [group[0] for group in by_source.values()]
    n_bytes = sum(piece.bytes for piece in once)
    calls = max(1, len(pieces) // runs)
    if not nodes:
        return OpTime(label[0], "", times, n_bytes, calls)
    indices = tuple(node.index for node in nodes)
    return OpTime(
        type="+".join(dict.fromkeys(node.name for node in nodes)),
        name=f"{_outputs(nodes[-1])}:{'+'.join(map(str, indices))}",
        times=times,
        bytes=n_bytes,
        times_called=calls,
        nodes=indices,
        traffic=sum(piece.traffic for piece in once),
    )


def _group(key: Callable[[_T], Hashable], values: Iterable[_T]) -> dict[Any, list[_T]]:
    groups: dict[Any, list[_T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def _outputs(node: Node) -> str:
    return f"[{', '.join(spec.name for spec in node.outputs if spec is not None)}]"


# ---- on the host


class _StepTimes:
    """Times each step of the plan in jaxdelegate's interpreter; waits for partitions' results."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._times: dict[int, list[float]] = {}
        self._steps: dict[int, Step] = {}
        self._count = len(host.subgraph.operators)

    @contextlib.contextmanager
    def __call__(self, step: Step) -> Iterator[None]:
        start = time.perf_counter()
        yield
        for index in step.writes:
            wait = getattr(self._host.value(index), "block_until_ready", None)
            if wait is not None:
                wait()
        spent = 1e6 * (time.perf_counter() - start)
        self._steps[id(step)] = step
        self._times.setdefault(id(step), []).append(spent)

    def rows(self) -> tuple[OpTime, ...]:
        rows, index = [], self._count
        for key, step in self._steps.items():
            times = Stat.of(self._times[key])
            if isinstance(step, PartitionStep):
                rows.append(_partition_row(step.delegate.name, step.params.nodes, index, times))
                index += 1
            elif isinstance(step, OperatorStep):
                rows.append(_host_row(step.node, times))
        return tuple(rows)

    def work(self) -> list[OperatorWork]:
        rows = [
            (step.node, _host_row(step.node, Stat.of(self._times[key])))
            for key, step in self._steps.items()
            if isinstance(step, OperatorStep)
        ]
        return work_of([row for _, row in rows], [node for node, _ in rows])


def _host_row(node: Node, times: Stat) -> OpTime:
    """A host operator; numpy reads and writes whole tensors."""
    name = f"{_outputs(node)}:{node.index}"
    return OpTime(
        node.name, name, times, _size(node), nodes=(node.index,), traffic=cost_of(node).bytes or 0
    )


def _partition_row(delegate: str, nodes: Sequence[Node], index: int, times: Stat) -> OpTime:
    name = f"{_outputs(nodes[-1])}:{index}"  # TFLite numbers delegate nodes after the operators
    return OpTime(delegate, name, times, _size(nodes[-1]), nodes=tuple(n.index for n in nodes))


def _size(node: Node) -> int:
    return specs_bytes(node.outputs) or 0


@contextlib.contextmanager
def _watched(session: Session) -> Iterator[_StepTimes | None]:
    """Step times in jaxdelegate's interpreter; None: the stock one does not report them."""
    if not isinstance(session.interpreter, Interpreter):
        yield None
        return
    host = session.interpreter._runner(session.subgraph)
    times = _StepTimes(host)
    before, host.watch = host.watch, times
    try:
        yield times
    finally:
        host.watch = before


def _stock_nodes(
    partitions: Sequence[Any], inside: Sequence[OpTime], invokes: Sequence[float]
) -> tuple[OpTime, ...]:
    """The stock interpreter's nodes: partitions by device time, and the rest as one row."""
    rows, busy = [], [0.0] * len(invokes)
    for number, partition in enumerate(partitions):
        taken = {node.index for node in partition.nodes}
        times = totals(row for row in inside if row.nodes and taken.issuperset(row.nodes))
        rows.append(_partition_row("JaxDelegate", partition.nodes, number, times))
        busy = [a + b for a, b in zip(busy, times.values, strict=False)]
    rest = Stat.of(max(0.0, all_ - part) for all_, part in zip(invokes, busy, strict=True))
    rows.append(OpTime("(operators of the stock interpreter, copies)", "", rest))
    return tuple(rows)
