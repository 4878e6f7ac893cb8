"""What tests of operators share: the tests of the tables of cases, and the instruction sets.

A module of operator tests holds tables by these names, and each test that `WALKED` names for one
runs in that module, as if it were defined there, unless the module has a test of that name. The
module may replace how stock LiteRT runs a case (`run_litert`), and how a rule's reason is found
(`reason`). Where `COMPILED_IN_PART` is true, because its tables multiply dtypes, shapes and scales,
one of five lowerings of an operator is compiled, and all with `--exhaustive`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.kernels.processor import INSTRUCTION_SETS
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Case
from tests.support.case_groups import CaseGroup, first_in_groups, in_groups, one_of_five


def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    group.check_lowerings(RULES)


def test_gpu_lowering_matches_the_reference(group: CaseGroup) -> None:
    group.check_lowerings(RULES, LoweringContext("gpu", quant_mode="integer"))


@pytest.mark.litert
def test_reference_matches_litert(group: CaseGroup, request: pytest.FixtureRequest) -> None:
    """A group is one test here, too: four thousand tests would take longer than what they run."""
    group.compare(Case.run_reference, getattr(request.module, "run_litert", Case.run_litert))


def test_refuses_run_time_values(case: Case) -> None:
    reason = case.reason(RULES[case.name])
    dtypes = [a.value.dtype for a in case.inputs if a is not None]
    if any(np.dtype(t).hasobject for t in (*dtypes, *(case.outputs or ()))):
        assert "strings" in reason
    else:
        assert "depends on data" in reason or "at run time" in reason


def test_refuses(said: str, case: Case, request: pytest.FixtureRequest) -> None:
    reason = getattr(request.module, "reason", lambda case: case.reason(RULES[case.name]))
    message = reason(case)
    assert said in message
    assert "<class" not in message


def test_reference_stops(said: str | tuple[str, type[Exception]], case: Case) -> None:
    part, error = said if isinstance(said, tuple) else (said, ValueError)
    with pytest.raises(error) as stopped:
        case.run_reference()
    assert part in str(stopped.value)
    assert "<class" not in str(stopped.value)


def test_impossible_shapes_are_a_value_error(case: Case) -> None:
    with pytest.raises(ValueError, match=case.name):
        KERNELS[case.name].shapes(case.op_options, case.input_specs())


# The tables, each with the tests that walk it.
WALKED: dict[str, tuple[Callable[..., None], ...]] = {
    # Lowerings: compared with the reference. It is compared with LiteRT, unless `litert` says why.
    "CASES": (test_lowering_matches_the_reference, test_reference_matches_litert),
    "LOWERED": (test_lowering_matches_the_reference,),  # only that
    "ON_GPU": (test_gpu_lowering_matches_the_reference,),
    # Only the reference can run them.
    "RUN_TIME": (test_reference_matches_litert, test_refuses_run_time_values),
    # By a part of the message: the rule's, and the reference's. A tuple has the error's class, too,
    # unless that is ValueError.
    "REFUSED": (test_refuses,),
    "STOPPED": (test_reference_stops,),
    # No shapes exist for these.
    "IMPOSSIBLE": (test_impossible_shapes_are_a_value_error,),
}


class OperatorTests(pytest.Module):
    def collect(self) -> Any:
        for table, tests in WALKED.items():
            for test in tests if hasattr(self.obj, table) else ():
                vars(self.obj).setdefault(test.__name__, test)
        return super().collect()


@pytest.fixture
def tables() -> set[str]:
    return {*WALKED, "COMPILED_IN_PART"}


def pytest_pycollect_makemodule(module_path: Any, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = OperatorTests.from_parent(parent, path=module_path)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    test = metafunc.function
    tables = [
        getattr(metafunc.module, table, ()) for table, tests in WALKED.items() if test in tests
    ]
    if "said" in metafunc.fixturenames and tables:
        rows = [row for table in tables for row in table.items()]
        ids = [f"{case.name}-{said if isinstance(said, str) else said[0]}" for said, case in rows]
        metafunc.parametrize(("said", "case"), rows, ids=ids)
    elif tables:
        cases = [case for table in tables for case in table]
        if test is test_reference_matches_litert:
            cases = [case for case in cases if case.litert is None]
        grouped = "group" in metafunc.fixturenames
        is_compiled = test is not test_reference_matches_litert
        if is_compiled and grouped and getattr(metafunc.module, "COMPILED_IN_PART", False):
            metafunc.parametrize("group", first_in_groups(one_of_five(cases), cases), ids=str)
        else:
            name, values = ("group", in_groups(cases)) if grouped else ("case", cases)
            metafunc.parametrize(name, values, ids=str)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-k` finds a group of cases by any of its cases."""
    group = getattr(item, "callspec", None) and item.callspec.params.get("group")
    if isinstance(group, CaseGroup):
        item.extra_keyword_matches.update(map(str, group.cases))


@pytest.fixture(params=["avx512f", "avx2"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Our own kernels in each of the processor's instruction sets."""
    if (reason := library.why_not()) is not None:
        pytest.skip(reason)
    opened = library.opened(library.LIBRARY)
    best = library.in_use()
    if INSTRUCTION_SETS.index(request.param) > INSTRUCTION_SETS.index(best):
        pytest.skip(f"no {request.param}: the best set in reach is {best}")
    opened.jaxdelegate_limit_instruction_set(request.param.encode())
    found = library.in_use()
    if found == request.param:
        yield found
    opened.jaxdelegate_limit_instruction_set(best.encode())
    if found != request.param:
        pytest.skip(f"this processor has no {request.param}")
