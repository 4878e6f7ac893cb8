"""Searches for the operators that make an output wrong when they are delegated."""

import dataclasses
import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal

from tqdm import tqdm

from jaxdelegate.comparison.bounds import Bounds, precision
from jaxdelegate.comparison.figures import Likeness
from jaxdelegate.comparison.inputs import InputSettings, with_usable_indices
from jaxdelegate.comparison.metrics import TensorComparison, comparer_for
from jaxdelegate.comparison.operators import OperatorCheck
from jaxdelegate.comparison.random_numbers import random_outputs
from jaxdelegate.comparison.sides import Arrays, ModelPath, Reference, Runner, Test
from jaxdelegate.comparison.verdict import EndToEnd, Runs, check
from jaxdelegate.errors import InterpreterError, JaxDelegateError, OptionError, check_least
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.text import printable, shortened

ProbeResult = Literal["agrees", "rounding", "wrong_without_delegate", "found"]
OpenRange = Callable[[int, int], Test]  # first and last delegated operator -> the side under test
_NOWHERE = 2**31 - 1  # larger than any operator index: nothing is delegated


@dataclasses.dataclass(frozen=True)
class Probe:
    first: int  # the first delegated operator
    last: int  # the last delegated operator
    outputs: tuple[TensorComparison, ...]
    error: str | None = None  # why it failed
    # How alike the outputs are as a whole, if that decides: no operator is wrong on its own.
    likenesses: tuple[Likeness, ...] = ()

    @property
    def is_wrong(self) -> bool:
        decides = self.likenesses or self.outputs
        return self.error is not None or not all(one.agrees for one in decides)

    def brief(self) -> str:
        if self.error is not None:
            return self.error
        worst = max(self.outputs, key=lambda output: output.severity, default=None)
        return "no outputs" if worst is None else f"output {worst.name!r}: {worst.brief()}"


@dataclasses.dataclass(frozen=True)
class NodeName:
    index: int
    operator: str
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        """`#12 CONV_2D -> 'a', 'b'`; long names without their middle."""
        shown = (repr(shortened(name)) for name in self.outputs)
        return f"#{self.index} {printable(self.operator)} -> {', '.join(shown)}"


@dataclasses.dataclass(frozen=True)
class Culprit:
    """A minimal range of operators: wrong when delegated, right without its first or its last."""

    first: int
    last: int
    # Those operators of the range that are enough to make an output wrong.
    nodes: tuple[NodeName, ...]
    probe: Probe


@dataclasses.dataclass(frozen=True)
class Bisection:
    # "agrees": nothing is wrong; "rounding": the outputs differ only by rounding;
    # "wrong_without_delegate": the outputs are wrong although nothing is delegated; "found": see
    # `culprits`.
    verdict: ProbeResult
    full: Probe  # the run with everything in the searched range delegated
    empty: Probe | None
    culprits: tuple[Culprit, ...]
    probes: int
    # If outputs differ: as in InferenceDiff.
    operators: OperatorCheck | None = None
    likenesses: tuple[Likeness, ...] = ()


def bisect(
    model: ModelPath,
    open_range: OpenRange,
    *,
    reference: str = "numpy",
    num_runs: int = 1,
    inputs: InputSettings | None = None,
    bounds: Bounds | None = None,
    first: int = 0,
    last: int = _NOWHERE,
) -> Bisection:
    """Find the operators that make an output wrong when they are delegated.

    Bisection finds the smallest last operator, then the largest first one, for which the outputs
    are still wrong. Its last two probes are a range that is right, and that range with one more
    operator, which is wrong, so the range is minimal even where errors cancel or add up. Delta
    debugging (Zeller and Hildebrandt 2002, ddmin) removes the operators in it that are not needed.
    The search continues after the range until the rest is right.

    `open_range` opens the side under test with a range of operators delegated; `num_runs` is the
    number of sets of inputs for each probe; `first` and `last` limit the operators to consider.
    """
    record = read_model(model)
    last = min(last, len(record.subgraphs[0].operators) - 1)
    if not 0 <= first <= last:  # also for a model without operators
        raise OptionError(
            f"first_delegate_node_index: expected 0 <= first <= last <= {last}, "
            f"got {first} .. {last}"
        )
    settings = with_usable_indices(inputs or InputSettings(), model, reference)
    check_least(1, num_runs=num_runs)
    is_reduced = open_range(first, last).is_reduced
    bounds = (bounds or Bounds()).for_precision(is_reduced=is_reduced)
    with tqdm(desc="bisecting", unit=" ranges", disable=None, leave=False) as bar:
        prober = _Prober(record, open_range, bounds, Reference(reference, model), bar)
        prober.run_reference(settings, num_runs)
        full = prober(first, last)
        if not full.is_wrong:
            return Bisection("agrees", full, None, (), prober.count)
        operators, alike = None, tuple[Likeness, ...]()
        if full.error is None:
            operators, alike = prober.judged(first, last)
        conclude = functools.partial(Bisection, full=full, operators=operators, likenesses=alike)
        if prober.whole is not None and all(figure.agrees for figure in alike):
            return conclude("rounding", empty=None, culprits=(), probes=prober.count)
        empty = prober(_NOWHERE, _NOWHERE)
        if empty.error is not None:
            raise InterpreterError(f"without any delegate: {empty.error}")
        verdict: ProbeResult = "wrong_without_delegate" if empty.is_wrong else "found"
        culprits = () if empty.is_wrong else tuple(_culprits(prober, record, first, last))
        return conclude(verdict, empty=empty, culprits=culprits, probes=prober.count)


def _culprits(prober: "_Prober", record: Model, first: int, last: int) -> Sequence[Culprit]:
    culprits = []
    while first <= last and prober(first, last).is_wrong:
        low, high = minimal_range(lambda a, b: prober(a, b).is_wrong, first, last)
        names = tuple(_name(record, i) for i in prober.minimal_subset(low, high))
        culprits.append(Culprit(low, high, names, prober(low, high)))
        first = high + 1
    return culprits


def minimal_range(is_wrong: Callable[[int, int], bool], first: int, last: int) -> tuple[int, int]:
    """A part of a wrong range that is wrong, but right without its first or its last item."""
    high = bisect_left(range(last), True, lo=first, key=lambda i: is_wrong(first, i))
    after = bisect_left(range(high + 1), True, lo=first + 1, key=lambda i: not is_wrong(i, high))
    return after - 1, high


def ddmin(items: Sequence[int], is_wrong: Callable[[Sequence[int]], bool]) -> list[int]:
    """A subset of `items`, which are wrong together, that is wrong and has no superfluous item.

    Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        rests = [[i for i in kept if i not in chunk] for chunk in chunks]
        smaller = next(
            (c for c in (*chunks, *rests) if 0 < len(c) < len(kept) and is_wrong(c)), None
        )
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            kept = smaller
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept


def _name(record: Model, index: int) -> NodeName:
    subgraph = record.subgraphs[0]
    operator = subgraph.operators[index]
    names = tuple(subgraph.tensors[i].name for i in operator.outputs if i >= 0)
    return NodeName(index, operator.name, names)


class _Prober:
    """Runs the model with a range delegated, each range once; shows a progress bar."""

    def __init__(
        self, record: Model, open_range: OpenRange, bounds: Bounds, reference: Reference, bar: tqdm
    ) -> None:
        self._record, self._open_range, self._bounds = record, open_range, bounds
        self._reference, self._bar = reference, bar
        self._random = random_outputs(record)
        self._arrays, self._want = list[Arrays](), list[Arrays]()
        self._known: dict[tuple[int, int, tuple[int, ...]], Probe] = {}
        self.whole: EndToEnd | None = None

    def run_reference(self, settings: InputSettings, num_runs: int) -> None:
        runner = self._reference.runner()
        source = settings.source(runner.interpreter.get_input_details())
        self._arrays = [source() for _ in range(num_runs)]
        self._want = runner.all(self._arrays)

    @property
    def count(self) -> int:
        return len(self._known)

    def __call__(self, first: int, last: int, nodes: Sequence[int] = ()) -> Probe:
        """Delegate the range, or only some nodes of it."""
        if len(nodes) == last - first + 1:
            nodes = ()
        key = (first, last, tuple(nodes))
        if key not in self._known:
            test = self._open_range(first, last)
            self._known[key] = self._run(first, last, test.restricted(nodes) if nodes else test)
        return self._known[key]

    def judged(self, first: int, last: int) -> tuple[OperatorCheck, tuple[Likeness, ...]]:
        """Each operator of a wrong range alone, and how alike its outputs are as a whole.

        If no operator is wrong, a range is wrong from now on if its outputs are not alike.
        """
        record, test = self._record, self._open_range(first, last)
        runs = self._compared(self._outputs(test))
        operators = check(record, test, self._reference, self._bounds, runs)
        of = precision(record, is_reduced=test.is_reduced)
        whole = EndToEnd(record, test, self._reference, runs, of)
        alike = whole()
        if alike and not operators.wrong:
            self.whole = whole
            self._known.clear()
        return operators, alike

    def minimal_subset(self, first: int, last: int) -> list[int]:
        """The operators of a wrong range that are enough; all if a delegate is not in Python."""
        nodes = range(first, last + 1)
        if not self._open_range(first, last).can_be_restricted:
            return list(nodes)
        return ddmin(nodes, lambda some: self(first, last, some).is_wrong)

    def _run(self, first: int, last: int, test: Test) -> Probe:
        self._bar.update()
        try:
            got = self._outputs(test)
        except JaxDelegateError as error:
            return Probe(first, last, (), str(error).splitlines()[0])
        if first == _NOWHERE and any(test.nodes(d) for d in test.own_delegates()):
            raise OptionError(f"{test.name}: the delegate ignores first_delegate_node_index")
        whole = self.whole
        alike = () if whole is None else whole([got[run.number] for run in whole.runs.kept])
        return Probe(first, last, self._compared(got).compared, likenesses=alike)

    def _outputs(self, test: Test) -> list[Arrays]:
        return Runner("test", test.open()).all(self._arrays)

    def _compared(self, got: Sequence[Arrays]) -> Runs:
        subgraph = self._record.subgraphs[0]
        comparers = [comparer_for(subgraph.tensors[i], self._bounds) for i in subgraph.outputs]
        runs = Runs(comparers, self._random)
        for row in zip(self._arrays, got, self._want, strict=True):
            runs.add(*row)
        return runs
