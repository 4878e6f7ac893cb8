"""Every operator has a record, a rule, a reference kernel and cases."""

import ast
from pathlib import Path

import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.options import OPERATORS, FusedOptions, Options
from jaxdelegate.op_lowering.records import costs as cost
from jaxdelegate.op_lowering.records.operator import Batch, Float16, OperatorRecord, Result, table
from jaxdelegate.op_lowering.registry import FUSED, RULES
from jaxdelegate.reference import KERNELS

BUILTIN = {name for name in vars(schema.BuiltinOperator) if not name.startswith("_")}
NO_OPERATORS = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"}
NO_KERNEL_IN_LITERT = {"CONCAT_EMBEDDINGS"}  # nothing says what it computes
OWN = sorted(set(OPERATORS) - NO_KERNEL_IN_LITERT - set(FUSED))


def test_every_builtin_operator_has_a_record() -> None:
    missing = BUILTIN - NO_OPERATORS - set(OPERATORS)
    assert not missing, f"op_lowering/*/options.py: no OperatorRecord of {sorted(missing)}"


def test_an_operator_has_a_rule_and_a_reference_kernel() -> None:
    for name in OWN:
        assert name in KERNELS, f"{name}: no Kernel in a KERNELS table of a reference module"
        missing = name in BUILTIN and name not in RULES
        assert not missing, f"{name}: no OpRule in a RULES table of op_lowering/ (or host_only)"


def test_a_rule_and_a_kernel_have_a_record() -> None:
    for name in {*RULES, *FUSED, *KERNELS}:
        assert name in OPERATORS, f"{name}: no OperatorRecord in op_lowering/*/options.py"
        rule = RULES.get(name) or FUSED.get(name)
        assert rule is None or rule.options_type is OPERATORS[name].options, name


def test_every_cost_except_of_custom_calls_is_known() -> None:
    unknown = {name for name, record in OPERATORS.items() if record.cost is cost.unknown}
    nothing_computes = {"CONCAT_EMBEDDINGS", "STABLEHLO_CUSTOM_CALL"}
    fused = ("attention", "decode_attention", "layer_norm", "products")
    assert unknown - nothing_computes == {f"fused_{name}" for name in fused}


# ---- fields that depend on each other


def test_fields_are_consistent() -> None:
    for record in OPERATORS.values():
        _check(record)


def _check(record: OperatorRecord) -> None:
    if record.is_elementwise:
        assert record.cost in (cost.elementwise, cost.transcendental)
        assert record.batch is Batch.TOGETHER  # it follows from is_elementwise
    if record.product is not None:
        assert record.precision.result is Result.REDUCED
    if record.cost is cost.movement:
        assert record.product is None
        assert record.precision.float16 is Float16.FITS
        assert not record.is_elementwise
    if record.precision.float16 is not Float16.FITS:
        assert record.precision.result is Result.FLOAT32
    if record.name in FUSED:
        assert issubclass(record.options, FusedOptions)


def test_operators_with_an_elementwise_cost_are_elementwise() -> None:
    plain = {n for n, r in OPERATORS.items() if r.cost in (cost.elementwise, cost.transcendental)}
    marked = {name for name, record in OPERATORS.items() if record.is_elementwise}
    # Sizes of elements differ; ranges are separate tensors; a comparison of two networks.
    assert plain - marked == {"BITCAST", "FAKE_QUANT", "NumericVerify", "RIGHT_SHIFT"}


def test_two_records_of_one_name_are_refused() -> None:
    record = OperatorRecord("ADD", Options, cost=cost.elementwise)
    with pytest.raises(ValueError, match="duplicate records"):
        table(record, record)


# ---- tables of cases


def test_no_table_of_cases_is_left_out(tables: set[str]) -> None:
    """A module of operator tests uses each table that it defines, or its name is in `WALKED`."""
    for path in Path(__file__).parent.rglob("test_*.py"):
        names = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)]
        stored = {n.id for n in names if isinstance(n.ctx, ast.Store) and n.id.isupper()}
        used = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        assert not stored - used - tables, f"{path.stem}: nothing walks them"
