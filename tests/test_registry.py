"""What the tables promise of each other."""

import importlib
from collections.abc import Collection
from pathlib import Path

import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.lowering.rewrites.registry import REWRITES
from jaxdelegate.op_lowering.options import (
    CustomOptions,
    FusedOptions,
    default_options,
)
from jaxdelegate.op_lowering.registry import FUSED, RULES, rule_of
from jaxdelegate.op_lowering.rule import LoweringContext, table
from jaxdelegate.reference import KERNELS

ROOT = Path(__file__).parents[1]

BUILTIN = {name for name in vars(schema.BuiltinOperator) if not name.startswith("_")}


def test_a_version_from_the_future_is_refused() -> None:
    for name, rule in RULES.items():
        context = LoweringContext(op_version=rule.max_version + 1)
        reason = rule.reason(context, default_options(name), (), ())
        assert "is newer than the newest supported version" in (reason or ""), name


def test_missing_inputs_are_refused_not_raised() -> None:
    for name, rule in RULES.items():
        assert rule.reason(LoweringContext(), rule.options_type(), (), ()) is not None, name


@pytest.mark.parametrize("name", sorted(FUSED))
def test_only_rewrites_reach_a_fused_operator(name: str) -> None:
    """A file's custom operator may have any name; its options tell."""
    rule = FUSED[name]
    assert rule_of(name, rule.options_type()) is rule
    assert rule_of(name, CustomOptions()) is None
    assert issubclass(rule.options_type, FusedOptions)
    assert not hasattr(schema.BuiltinOperator, name)


@pytest.mark.parametrize(
    ("folder", "package", "attribute", "listed"),
    [
        ("op_lowering", "jaxdelegate.op_lowering", "RULES", RULES),
        ("op_lowering", "jaxdelegate.op_lowering", "FUSED", FUSED),
        ("jaxdelegate/reference", "jaxdelegate.reference", "KERNELS", KERNELS),
        ("jaxdelegate/lowering/rewrites", "jaxdelegate.lowering.rewrites", "REWRITES", REWRITES),
    ],
    ids=["rules", "fused", "kernels", "rewrites"],
)
def test_a_table_has_every_row_of_every_module_once(
    folder: str, package: str, attribute: str, listed: Collection[str]
) -> None:
    names = []
    for path in sorted((ROOT / folder).rglob("[!_]*.py")):
        if path.stem != "registry":
            place = path.relative_to(ROOT / folder).with_suffix("")
            module = importlib.import_module(".".join((package, *place.parts)))
            names += list(getattr(module, attribute, {}))
    assert sorted(names) == sorted(listed)


def test_a_duplicate_rule_raises() -> None:
    rule = next(iter(RULES.values()))
    with pytest.raises(ValueError, match="duplicate rules"):
        table(rule, rule)
