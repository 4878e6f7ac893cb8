"""Measures the algorithms to run an operator on the device, and chooses: `inference_preference`.

Each operator that its rule can run by several algorithms (`OpRule.algorithms`) is compiled by
itself in each of them and timed on random inputs, the costliest operators first, until a budget is
spent. An algorithm that does not compile, takes much more memory or comes to another result takes
no part; the default stays unless another algorithm is faster beyond noise. Knows lowering and the
compiler, no hosts.
"""

import dataclasses
import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.error_probe import ERROR_BOUND, seeded_values
from jaxdelegate.measuring.costs import Cost, operator_cost
from jaxdelegate.measuring.tolerance import Tolerance, assert_close
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.algorithms import operator_key
from jaxdelegate.op_lowering.options import default_options
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import gather
from jaxdelegate.pjrt import client
from jaxdelegate.report.tuning import Choice
from jaxdelegate.tuning import BUDGET_SECONDS
from jaxdelegate.xla import aot
from jaxdelegate.xla.program import Program
from jaxdelegate.xla.weights import ModelWeights

Clock = Callable[[], float]

_LOGGER = logging.getLogger("jaxdelegate")
_GAIN = 0.03  # another algorithm than the default must save that much,
_LEAST_SECONDS = 2e-6  # and more than the time that dispatching one program varies by
_ROUNDS = 9
_SAMPLE_SECONDS = 2e-3  # shorter runs are repeated
_MOST_REPEATS = 50
_MOST_SECONDS = 1.0  # for the rounds of one operator, but for the first three
_HOPELESS = 2.0  # an algorithm that takes so many times the default's time is timed no further
_SMALL_SHARE = 1 / 500  # of a partition's work: operators below cannot gain what noise hides
_MORE_MEMORY = (
    1 << 28
)  # bytes of temporaries that an algorithm may take beyond those of the default
_BYTE = 16  # operations that a device does in the time of one byte

# What compiling or running an algorithm may raise; it takes no part then. Running out of memory is
# a RuntimeError.
_ALGORITHM_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)

Run = Callable[[], Any]
Samples = Mapping[str, list[float]]
Timer = Callable[[Mapping[str, Run], str], Samples]  # the runs by name; the default's name


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An operator that can run by several algorithms; `algorithms` begins with the default."""

    key: str
    operator: Operator
    algorithms: tuple[str, ...]
    cost: Cost
    count: int  # operators of the partition that are like it

    @property
    def work(self) -> int:
        """What all of them take, in operations."""
        return self.count * ((self.cost.flops or 0) + _BYTE * (self.cost.bytes or 0))

    @property
    def products(self) -> int:
        """About how many products one output value sums."""
        written = max(self.cost.bytes_written or 1, 1) // 4
        return max((self.cost.flops or 0) // max(2 * written, 1), 1)


def candidates(partition: LoweredPartition, context: LoweringContext) -> list[Candidate]:
    """The operators of a partition that are worth measuring, one of each kind, costliest first.

    Args:
        partition: as it is lowered by default.
        context: with which it was.
    """
    found: dict[str, Candidate] = {}
    for step in partition.operators:
        own = _candidate(step.operator, partition, context)
        if own is not None:
            before = found.get(own.key)
            found[own.key] = own if before is None else _counted(before)
    ordered = sorted(found.values(), key=lambda c: -c.work)
    least = _SMALL_SHARE * sum(c.work for c in ordered)
    return [c for c in ordered if c.work >= least]


def _counted(candidate: Candidate) -> Candidate:
    return dataclasses.replace(candidate, count=candidate.count + 1)


def _candidate(
    operator: Operator, partition: LoweredPartition, context: LoweringContext
) -> Candidate | None:
    rule, specs = lowering.rule_for(operator), partition.specs
    if rule is None or rule.algorithms is None:
        return None
    inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
    op = Op(lowering.context_for(context, operator, specs), operator.options, inputs, outputs)
    algorithms = tuple(rule.algorithms(op))
    if len(algorithms) < 2:
        return None
    key = operator_key(operator.name, op)
    cost = operator_cost(operator.name, operator.options, inputs, outputs)
    return Candidate(key, operator, algorithms, cost, 1)


def tune(
    partition: LoweredPartition,
    context: LoweringContext,
    device: jax.Device,
    known: Mapping[str, Choice] | None = None,
    *,
    budget: float = BUDGET_SECONDS,
    clock: Clock = time.perf_counter,
    timer: Timer | None = None,
) -> dict[str, Choice]:
    """Measure the operators of a partition that are not known yet.

    Args:
        partition: as it is lowered by default.
        context: with which it was.
        device: where it will run.
        known: earlier choices, by operator key.
        budget: seconds after which no further operator is begun.
        clock: what the budget is read from.
        timer: seconds of several runs of each algorithm; None: `interleaved`.

    Returns:
        What was measured now, by operator key.
    """
    todo = [c for c in candidates(partition, context) if c.key not in (known or {})]
    bench = _Bench(partition, context, device, timer or interleaved)
    end = clock() + budget
    found: dict[str, Choice] = {}
    for candidate in tqdm(todo, "measuring operators", disable=None, delay=2, leave=False):
        if clock() >= end:
            left = len(todo) - len(found)
            _LOGGER.info("tuning: time limit reached; %d operators keep their defaults", left)
            break
        choice = bench.choose(candidate)
        if choice is not None:
            found[candidate.key] = choice
            _LOGGER.debug(
                "tuning: %s: %s, %s", candidate.key, choice.algorithm, dict(choice.seconds)
            )
    return found


@dataclasses.dataclass(frozen=True)
class _Bench:
    """Operators of one partition, each by itself on the device."""

    partition: LoweredPartition
    context: LoweringContext
    device: jax.Device
    timer: Timer

    def choose(self, candidate: Candidate) -> Choice | None:
        """Measure one operator; None: its default does not run by itself."""
        default, *others = candidate.algorithms
        with client.as_programs(self.device):
            try:
                values = [jax.device_put(v, self.device) for v in self._values(candidate.operator)]
                program = self._program(candidate, default)
                want = _outputs(_run(program, values)())
            except _ALGORITHM_ERRORS as error:
                _LOGGER.debug("tuning: %s does not run by itself: %s", candidate.key, error)
                return None
            limit = _temporaries(program) + _MORE_MEMORY
            runs, refused = {default: _run(program, values)}, {}
            for algorithm in others:
                try:
                    runs[algorithm] = self._checked(candidate, algorithm, values, want, limit)
                except (*_ALGORITHM_ERRORS, AssertionError) as error:
                    refused[algorithm] = f"{error}".partition("\n")[0]
            samples = dict(self.timer(runs, default))
            algorithm = fastest(default, samples)
            if (
                algorithm != default
            ):  # of several algorithms, one may win by chance: it must win again
                samples |= self.timer({name: runs[name] for name in (default, algorithm)}, default)
                algorithm = fastest(default, {name: samples[name] for name in (default, algorithm)})
        medians = {name: statistics.median(times) for name, times in samples.items()}
        return Choice(algorithm, default, medians, refused)

    def _checked(
        self, candidate: Candidate, algorithm: str, values: list[Any], want: list[Any], limit: int
    ) -> Run:
        """What runs an algorithm, once it has been seen to compute what the default does.

        Raises:
            AssertionError: it does not.
            ValueError: it takes too much memory.
            _ALGORITHM_ERRORS: it does not compile, or does not run.
        """
        program = self._program(candidate, algorithm)
        if (taken := _temporaries(program)) > limit:
            raise ValueError(f"it takes {taken >> 20} MiB of temporaries")
        run = _run(program, values)
        precision = self.partition.precision
        _compare(_outputs(run()), want, candidate.products, precision)
        return run

    def _program(self, candidate: Candidate, algorithm: str) -> Program:
        # The default runs in a network as XLA fuses it; what is named is kept apart.
        algorithms = {} if algorithm == candidate.algorithms[0] else {candidate.key: algorithm}
        context = dataclasses.replace(self.context, algorithms=algorithms)
        alone = _surrounded(
            candidate.operator, self.partition.specs, self._inputs(candidate.operator)
        )
        partition = lowering.lower_partition(*alone, context)
        return aot.compile_partition(partition, ModelWeights(client.of_jax(self.device)))

    def _inputs(self, operator: Operator) -> tuple[int, ...]:
        specs = self.partition.specs
        live = (i for i in operator.inputs if i in specs and specs[i].const is None)
        return tuple(dict.fromkeys(live))

    def _values(self, operator: Operator) -> list[np.ndarray]:
        return seeded_values([self.partition.specs[i] for i in self._inputs(operator)])


_Alone = tuple[list[Operator], dict[int, TensorSpec], tuple[int, ...], tuple[int, ...]]


def _surrounded(
    operator: Operator, specs: Mapping[int, TensorSpec], inputs: tuple[int, ...]
) -> _Alone:
    """The operator between two elementwise ones: operators, specs, inputs and outputs.

    XLA fuses a default with what is around it, where it can; it must get the credit here too.
    """
    operators, specs, outputs = [operator], dict(specs), operator.outputs
    x, y, free = next((i for i in inputs if _is_float(specs[i])), None), outputs[0], max(specs) + 1
    if x is not None:
        operators.insert(0, _elementwise(-2, "RELU", 19, free, x))
        inputs = tuple(free if i == x else i for i in inputs)
        specs[free] = specs[x]
    if _is_float(specs[y]):
        operators.append(_elementwise(-1, "NEG", 59, y, free + 1))
        outputs = (free + 1, *outputs[1:])
        specs[free + 1] = specs[y]
    return operators, specs, inputs, outputs


def _is_float(spec: TensorSpec) -> bool:
    return spec.dtype == np.float32


def _elementwise(index: int, name: str, code: int, x: int, y: int) -> Operator:
    return Operator(index, name, code, False, 1, (x,), (y,), (), default_options(name), b"", ())


def _run(program: Program, values: list[Any]) -> Run:
    call = functools.partial(program.executable.run, program.constants, values)
    # XLA:CPU would run several at the same time.
    return lambda: jax.block_until_ready(call())  # type: ignore[no-untyped-call]


def _outputs(results: Any) -> list[np.ndarray]:
    return [np.asarray(result) for result in results]


def _temporaries(program: Program) -> int:
    """Bytes; 0 where the platform does not say."""
    analysis = program.executable.memory_analysis()
    return int(getattr(analysis, "temp_size_in_bytes", 0))


def _compare(got: list[Any], want: list[Any], products: int, precision: PrecisionPolicy) -> None:
    """As operators are compared with the reference; reduced operands as half-precision results.

    Raises:
        AssertionError: they differ.
    """
    if precision.dot_precision == "highest" and not precision.is_reduced:
        assert_close(got, want, accumulated=products)
        return
    short, why = Tolerance(of_largest=ERROR_BOUND), "operands have fewer bits than results"
    assert_close(got, want, tolerance=short, because=why)


def interleaved(
    runs: Mapping[str, Run], default: str, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of one run, several samples of each, taken in turn: drift hits all of them alike.

    Ways that are far slower than the default are sampled once.
    """
    first = {name: min(_sample(run, 1, clock) for _ in range(2)) for name, run in runs.items()}
    samples = {name: [seconds] for name, seconds in first.items()}
    rest = [name for name in runs if first[name] <= _HOPELESS * first[default]]
    if rest == [default]:
        return samples
    repeats = int(min(max(_SAMPLE_SECONDS / min(first.values()), 1), _MOST_REPEATS))
    samples.update((name, []) for name in rest)
    end = clock() + _MOST_SECONDS
    for order in _orders(rest):
        for name in order:
            samples[name].append(_sample(runs[name], repeats, clock))
        if clock() >= end and len(samples[default]) >= 3:
            break
    return samples


def _orders(names: list[str]) -> Iterator[list[str]]:
    """Each round begins with another one: what runs after a slow one would always be at odds."""
    for i in range(_ROUNDS):
        at = i % len(names)
        yield names[at:] + names[:at]


def _sample(run: Run, repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def fastest(default: str, samples: Samples) -> str:
    """The algorithm with the least median of those that beat the default, or the default.

    An algorithm beats it if its median saves 3 %, and it was the faster one in three of four
    rounds.
    """
    base = samples[default]
    median = statistics.median(base)
    most = min((1 - _GAIN) * median, median - _LEAST_SECONDS)
    medians = {default: median}
    for algorithm, times in samples.items():
        wins = sum(t < b for t, b in zip(times, base, strict=False))
        if statistics.median(times) <= most and wins >= 0.75 * len(times):
            medians[algorithm] = statistics.median(times)
    return min(medians, key=lambda algorithm: medians[algorithm])
