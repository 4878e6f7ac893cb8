"""Operator cases whose lowerings are compiled together."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxdelegate.op_lowering.rule import LoweringContext, OpRule
from jaxdelegate.testing.case import Case, run_together

_GROUP = 16  # cases


@dataclasses.dataclass(frozen=True, eq=False)
class CaseGroup:
    """Cases whose lowerings are compiled as one program.

    XLA takes about as long for a program of one small operator as for one of ten.
    """

    cases: Sequence[Case]

    def __str__(self) -> str:
        """The test id: that of the first case, and how many follow it."""
        return f"{self.cases[0]}+{len(self.cases) - 1}"

    def run_lowered(
        self, rules: Mapping[str, OpRule], context: LoweringContext | None = None
    ) -> list[list[np.ndarray]]:
        """What `Case.run_lowered` answers for each of them.

        Raises:
            AssertionError: a rule refuses its case.
        """
        return run_together([case.lowered_call(rules[case.name], context) for case in self.cases])

    def check_lowerings(
        self, rules: Mapping[str, OpRule], context: LoweringContext | None = None
    ) -> None:
        """Compare every case's lowering with its reference.

        Raises:
            AssertionError: some differ, or a rule refuses them; names each of them.
        """
        self.check(self.run_lowered(rules, context), Case.run_reference)

    def check(
        self,
        results: Sequence[Sequence[np.ndarray]],
        want: Callable[[Case], Sequence[np.ndarray]],
    ) -> None:
        """Compare the results of each case with those that it wants.

        Raises:
            AssertionError: some differ; names each of them.
        """
        wrong = []
        for case, got in zip(self.cases, results, strict=True):
            try:
                case.check(got, want(case))
            except AssertionError as error:
                wrong.append(f"{case}: {error}")
        assert not wrong, "\n".join(wrong)


def in_groups(cases: Sequence[Case]) -> list[CaseGroup]:
    """The cases in their order, some at a time."""
    found, rest = [], iter(cases)
    while some := tuple(itertools.islice(rest, _GROUP)):
        found.append(CaseGroup(some))
    return found
