"""Measures the algorithms of operators on the device and chooses one: `inference_preference`.

Every operator with several algorithms (`OpRule.algorithms`) is compiled alone with each of them and
timed on random inputs, the most expensive operators first, until the budget is spent. An algorithm
that does not compile, needs much more memory or computes another result is excluded; the default is
replaced only if another algorithm is faster beyond noise. This module uses lowering and the
compiler, but no interpreter.
"""

import dataclasses
import functools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxdelegate.costs import Cost, operator_cost
from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.lowering import legality
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.error_probe import ERROR_BOUND, seeded_values
from jaxdelegate.measuring.tolerance import Tolerance, assert_close
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.algorithms import operator_key
from jaxdelegate.op_lowering.options import default_options
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import gather
from jaxdelegate.pjrt import client
from jaxdelegate.program import Program
from jaxdelegate.report.tuning import Choice
from jaxdelegate.xla import aot

Clock = Callable[[], float]

_LOGGER = logging.getLogger("jaxdelegate")
_MIN_GAIN = 0.03  # an algorithm must save this fraction of the default's time,
_MIN_SECONDS = 2e-6  # and more than the variation of a program's dispatch time
_ROUNDS = 9
_SAMPLE_SECONDS = 2e-3  # shorter runs are repeated
_MAX_REPEATS = 50
_MAX_SECONDS = 1.0  # for the rounds of one operator, after the first three
_HOPELESS = 2.0  # times the default's time: a slower algorithm is not timed further
_MIN_WORK = 1 / 500  # of a partition: a gain of smaller operators would be lost in noise
_EXTRA_MEMORY = 1 << 28  # bytes of temporaries that an algorithm may need beyond the default's
_OPERATIONS_PER_BYTE = 16  # that a device executes in the time of one byte

# Errors of compiling or running an algorithm, which exclude it. Out of memory is a RuntimeError.
_ALGORITHM_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)

Run = Callable[[], Any]
Samples = Mapping[str, list[float]]
Timer = Callable[[Mapping[str, Run], str], Samples]  # the runs by name; the default's name


@dataclasses.dataclass(frozen=True)
class Candidate:
    key: str
    operator: Operator
    algorithms: tuple[str, ...]
    cost: Cost
    count: int  # equal operators in the partition

    @property
    def work(self) -> int:
        """The estimated work of all equal operators, in operations."""
        per_operator = (self.cost.flops or 0) + _OPERATIONS_PER_BYTE * (self.cost.bytes or 0)
        return self.count * per_operator

    @property
    def products(self) -> int:
        """The estimated number of products in the sum of one output value."""
        written = max(self.cost.bytes_written or 1, 1) // 4
        return max((self.cost.flops or 0) // max(2 * written, 1), 1)


def candidates(partition: LoweredPartition, context: LoweringContext) -> list[Candidate]:
    """The operators of a partition worth measuring, one of each kind, most expensive first."""
    found: dict[str, Candidate] = {}
    for step in partition.operators:
        own = _candidate(step.operator, partition, context)
        if own is not None:
            same = found.get(own.key)
            more = own if same is None else dataclasses.replace(same, count=same.count + 1)
            found[own.key] = more
    ordered = sorted(found.values(), key=lambda c: -c.work)
    least = _MIN_WORK * sum(c.work for c in ordered)
    return [c for c in ordered if c.work >= least]


def _candidate(
    operator: Operator, partition: LoweredPartition, context: LoweringContext
) -> Candidate | None:
    rule, specs = legality.rule_for(operator), partition.specs
    if rule is None or rule.algorithms is None:
        return None
    inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
    op = Op(legality.context_for(context, operator, specs), operator.options, inputs, outputs)
    algorithms = tuple(rule.algorithms(op))
    if len(algorithms) < 2:
        return None
    key = operator_key(operator.name, op)
    cost = operator_cost(operator.name, operator.options, inputs, outputs)
    return Candidate(key, operator, algorithms, cost, count=1)


def tune(
    partition: LoweredPartition,
    context: LoweringContext,
    device: jax.Device,
    known: Mapping[str, Choice] | None = None,
    *,
    budget: float = math.inf,
    clock: Clock = time.perf_counter,
    timer: Timer | None = None,
) -> dict[str, Choice]:
    """Measure operators of a partition that have no choice yet; returns choices by operator key.

    The partition is lowered with default algorithms. After `budget` seconds by `clock` no further
    operator is measured. `timer` returns the seconds of several runs of each algorithm; None:
    `interleaved`.
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
    partition: LoweredPartition
    context: LoweringContext
    device: jax.Device
    timer: Timer

    def choose(self, candidate: Candidate) -> Choice | None:
        default, *others = candidate.algorithms
        with client.as_programs(self.device):
            try:
                specs = [self.partition.specs[i] for i in self._inputs(candidate.operator)]
                values = [jax.device_put(v, self.device) for v in seeded_values(specs)]
                program = self._program(candidate, default)
                expected = _outputs(_run(program, values)())
            except _ALGORITHM_ERRORS as error:
                _LOGGER.debug("tuning: %s does not run alone: %s", candidate.key, error)
                return None
            limit = _temporaries(program) + _EXTRA_MEMORY
            runs, refused = {default: _run(program, values)}, {}
            for algorithm in others:
                try:
                    runs[algorithm] = self._checked(candidate, algorithm, values, expected, limit)
                except (*_ALGORITHM_ERRORS, AssertionError) as error:
                    refused[algorithm] = f"{error}".partition("\n")[0]
            samples = dict(self.timer(runs, default))
            algorithm = fastest(default, samples)
            if algorithm != default:  # it may have won by chance: it must win again
                samples |= self.timer({name: runs[name] for name in (default, algorithm)}, default)
                algorithm = fastest(default, {name: samples[name] for name in (default, algorithm)})
        medians = {name: statistics.median(times) for name, times in samples.items()}
        return Choice(algorithm, default, medians, refused)

    def _checked(
        self,
        candidate: Candidate,
        algorithm: str,
        values: list[Any],
        expected: list[Any],
        limit: int,
    ) -> Run:
        """Check that an algorithm computes the default's results; returns what runs it."""
        program = self._program(candidate, algorithm)
        if (needed := _temporaries(program)) > limit:
            raise ValueError(f"it needs {needed >> 20} MiB of temporaries")
        run = _run(program, values)
        _compare(_outputs(run()), expected, candidate.products, self.partition.precision)
        return run

    def _program(self, candidate: Candidate, algorithm: str) -> Program:
        # XLA fuses the default with its neighbors; a named algorithm is a separate computation.
        algorithms = {} if algorithm == candidate.algorithms[0] else {candidate.key: algorithm}
        context = self.context.in_program(algorithms=algorithms)
        alone = _surrounded(
            candidate.operator, self.partition.specs, self._inputs(candidate.operator)
        )
        partition = lowering.lower_partition(*alone, context)
        return aot.compile_partition(partition, ModelWeights(client.of_jax(self.device)))

    def _inputs(self, operator: Operator) -> tuple[int, ...]:
        specs = self.partition.specs
        live = (i for i in operator.inputs if i in specs and specs[i].const is None)
        return tuple(dict.fromkeys(live))


_Alone = tuple[list[Operator], dict[int, TensorSpec], tuple[int, ...], tuple[int, ...]]


def _surrounded(
    operator: Operator, specs: Mapping[int, TensorSpec], inputs: tuple[int, ...]
) -> _Alone:
    """The operator between two elementwise ones: operators, specs, inputs and outputs.

    In a network XLA fuses the default with its neighbors if it can; the measurement must show that.
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
    return Operator(
        index=index,
        name=name,
        builtin_code=code,
        inputs=(x,),
        outputs=(y,),
        options=default_options(name),
    )


def _run(program: Program, values: list[Any]) -> Run:
    call = functools.partial(program.executable.run, program.constants, values)
    # Without waiting, XLA:CPU would run several at the same time.
    return lambda: jax.block_until_ready(call())  # type: ignore[no-untyped-call]


def _outputs(results: Any) -> list[np.ndarray]:
    return [np.asarray(result) for result in results]


def _temporaries(program: Program) -> int:
    """Bytes of temporaries; 0 if the platform does not report them."""
    analysis = program.executable.memory_analysis()
    return int(getattr(analysis, "temp_size_in_bytes", 0))


def _compare(
    got: list[Any], expected: list[Any], products: int, precision: PrecisionPolicy
) -> None:
    """Compare with the tolerances of operators; reduced operands with those of half precision."""
    if precision.dot_precision == "highest" and not precision.is_reduced:
        assert_close(got, expected, accumulated=products)
        return
    tolerance, why = Tolerance(of_largest=ERROR_BOUND), "operands have fewer bits than results"
    assert_close(got, expected, tolerance=tolerance, because=why)


def interleaved(
    runs: Mapping[str, Run], default: str, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds per run: several samples of each, interleaved so that drift affects all equally.

    Algorithms that are much slower than the default are sampled once.
    """
    first = {name: min(_sample(run, 1, clock) for _ in range(2)) for name, run in runs.items()}
    samples = {name: [seconds] for name, seconds in first.items()}
    rest = [name for name in runs if first[name] <= _HOPELESS * first[default]]
    if rest == [default]:
        return samples
    repeats = int(min(max(_SAMPLE_SECONDS / min(first.values()), 1), _MAX_REPEATS))
    samples.update((name, []) for name in rest)
    end = clock() + _MAX_SECONDS
    for order in _orders(rest):
        for name in order:
            samples[name].append(_sample(runs[name], repeats, clock))
        if clock() >= end and len(samples[default]) >= 3:
            break
    return samples


def _orders(names: list[str]) -> Iterator[list[str]]:
    """Rotate the order each round, so that no run always follows the same slow one."""
    for i in range(_ROUNDS):
        at = i % len(names)
        yield names[at:] + names[:at]


def _sample(run: Run, repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def fastest(default: str, samples: Samples) -> str:
    """The algorithm with the smallest median among those that beat the default, or the default.

    An algorithm beats the default if its median saves 3 %, and if it was faster in three of four
    rounds.
    """
    base = samples[default]
    median = statistics.median(base)
    most = min((1 - _MIN_GAIN) * median, median - _MIN_SECONDS)
    medians = {default: median}
    for algorithm, times in samples.items():
        wins = sum(t < b for t, b in zip(times, base, strict=False))
        if statistics.median(times) <= most and wins >= 0.75 * len(times):
            medians[algorithm] = statistics.median(times)
    return min(medians, key=lambda algorithm: medians[algorithm])
