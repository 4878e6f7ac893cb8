"""docs/operators.md is current, and every operator in the registry has cases."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from jaxdelegate.op_lowering.registry import RULES

DOCS = Path(__file__).parents[1] / "docs"

TESTS = Path(__file__).parent
# Operators that call subgraphs, keep state or apply a body: their cases are models.
MODELS = {
    "op_lowering/control_flow/test_control_flow.py": (
        *("CALL", "IF", "STABLEHLO_CASE", "STABLEHLO_WHILE", "WHILE"),
    ),
    "op_lowering/control_flow/test_composite.py": ("STABLEHLO_COMPOSITE",),
    "op_lowering/stablehlo/test_elementwise.py": ("STABLEHLO_CUSTOM_CALL",),
    "op_lowering/stablehlo/test_reduce.py": ("STABLEHLO_REDUCE",),
    "op_lowering/stablehlo/test_scatter.py": ("STABLEHLO_SCATTER",),
    "op_lowering/stablehlo/test_sort.py": ("STABLEHLO_SORT",),
    "op_lowering/stablehlo/test_window.py": ("STABLEHLO_REDUCE_WINDOW",),
    "passes/test_explicit_state.py": ("ASSIGN_VARIABLE", "READ_VARIABLE"),
}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate_operators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_operator_table_is_current(generator: ModuleType) -> None:
    written = (DOCS / "operators.md").read_text()
    assert written == generator.generate(), "run `python docs/generate_operators.py`"


def test_every_operator_that_is_lowered_has_cases(generator: ModuleType) -> None:
    lowered = {name for name, rule in RULES.items() if rule.host_reason is None}
    in_models = {name for names in MODELS.values() for name in names}
    missing = lowered - {case.name for case in generator.cases()} - in_models
    assert not missing, f"tests/op_lowering/: no Case of {sorted(missing)}"
    for path, names in MODELS.items():
        text = (TESTS / path).read_text()
        assert [name for name in names if name not in text] == [], path


def test_the_comparison_has_the_number_of_operators() -> None:
    lowered = [name for name, rule in RULES.items() if rule.host_reason is None]
    text = (DOCS / "when_not.md").read_text()
    (written,) = re.findall(r"^\| operators \| (\d+) of", text, re.MULTILINE)
    assert int(written) == len(lowered), "docs/when_not.md: the table of other ways to JAX"
