"""Operator cases whose lowerings are compiled together."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.rule import LoweringContext, OpRule
from jaxdelegate.testing.case import Case, compiled, run_together

_GROUP = 16  # cases
Run = Callable[[Case], Sequence[np.ndarray]]
Program = Callable[[Sequence[Sequence[np.ndarray]]], list[list[np.ndarray]]]


@dataclasses.dataclass(frozen=True, eq=False)
class CaseGroup:
    """Cases whose lowerings are compiled as one program.

    A program has a fixed cost, which is most of the time of one small operator.
    """

    cases: Sequence[Case]
    _programs: dict[LoweringContext, Program] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.cases[0]}+{len(self.cases) - 1}"

    def run_lowered(
        self, rules: Mapping[str, OpRule], context: LoweringContext | None = None
    ) -> list[list[np.ndarray]]:
        """What `Case.run_lowered` returns for each case."""
        return run_together([case.lowered_call(rules[case.name], context) for case in self.cases])

    def run_compiled_once(
        self, rules: Mapping[str, OpRule], context: LoweringContext
    ) -> list[list[np.ndarray]]:
        """Run every case in a program that is compiled at the first call with this context.

        For tests that run it in several instruction sets, which lowerings do not depend on.
        """
        if context not in self._programs:
            calls = [case.lowered_call(rules[case.name], context) for case in self.cases]
            self._programs[context] = compiled(calls)
        return self._programs[context]([case.live_arrays() for case in self.cases])

    def check_lowerings(
        self, rules: Mapping[str, OpRule], context: LoweringContext | None = None
    ) -> None:
        """Compare every case's lowering with its reference; the error names each wrong case."""
        self.check(self.run_lowered(rules, context), Case.run_reference)

    def check(
        self,
        results: Sequence[Sequence[np.ndarray]],
        want: Run,
    ) -> None:
        """Compare each case's results with the expected ones; the error names each wrong case."""
        given = dict(zip(self.cases, results, strict=True))
        self.compare(given.__getitem__, want)

    def compare(self, got: Run, want: Run) -> None:
        """Like `check`, with the results that are computed one after the other."""
        wrong = []
        for case in self.cases:
            try:
                case.check(got(case), want(case))
            except AssertionError as error:
                wrong.append(f"{case}: {error}")
            except Exception as error:
                error.add_note(str(case))  # one of several in a test
                raise
        assert not wrong, "\n".join(wrong)


def first_in_groups(first: Sequence[Case], cases: Sequence[Case]) -> list[Any]:
    """Groups of some of the cases, and exhaustive ones of the others."""
    rest = in_groups([case for case in cases if case not in first])
    return [*in_groups(first), *(pytest.param(g, marks=pytest.mark.exhaustive) for g in rest)]


def one_of_five(cases: Sequence[Case]) -> list[Case]:
    """One of five of each operator; tables of two, three or four values in turn keep them all."""
    by_operator: dict[str, list[Case]] = {}
    for case in cases:
        by_operator.setdefault(case.name, []).append(case)
    return [case for some in by_operator.values() for case in some[::5]]


def in_part(cases: Sequence[Any]) -> list[Any]:
    """The parameters of a test: the cases, of which three of five are exhaustive."""
    marks = [[] if i % 5 in (0, 3) else [pytest.mark.exhaustive] for i in range(len(cases))]
    return [pytest.param(case, marks=m) for case, m in zip(cases, marks, strict=True)]


def in_groups(cases: Sequence[Case]) -> list[CaseGroup]:
    """Split the cases, in their order, into groups."""
    found, rest = [], iter(cases)
    while some := tuple(itertools.islice(rest, _GROUP)):
        found.append(CaseGroup(some))
    return found
