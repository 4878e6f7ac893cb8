"""The tables of operators are consistent."""

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.lowering.rewrites.registry import REWRITES
from jaxdelegate.op_lowering import options
from jaxdelegate.op_lowering.options import (
    OPERATORS,
    CustomOptions,
    FlexOptions,
    FusedOptions,
    Options,
    Pool2D,
    Pool2DOptions,
    Pool3DOptions,
    SoftmaxOptions,
    default_options,
)
from jaxdelegate.op_lowering.records.costs import Operation
from jaxdelegate.op_lowering.registry import FUSED, RULES, rule_of
from jaxdelegate.op_lowering.rule import LoweringContext, Op, OpRule, table
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference import KERNELS

ROOT = Path(__file__).parents[1]

BUILTIN = {name for name in vars(schema.BuiltinOperator) if not name.startswith("_")}


def functions() -> Iterator[tuple[str, str, Callable[..., object] | None, int]]:
    """Operator, field of its record, function, and the position of the options parameter."""
    for name, record in OPERATORS.items():
        yield name, "cost", record.cost, 0
        yield name, "channels", record.product and record.product.channels, 0
    for name, rule in (RULES | FUSED).items():
        yield name, "why_not", rule.why_not, 0
        yield name, "lower", rule.lower, 0
        yield name, "algorithms", rule.algorithms, 0
        yield name, "states", rule.states, 0
    for name, kernel in KERNELS.items():
        yield name, "run", kernel.run, int(kernel.calls)
        yield name, "shapes", kernel.shapes, 0
        yield name, "settled", kernel.settled, 0
        yield name, "inferred_shapes", kernel.inferred_shapes, 1
        yield name, "initial_state", kernel.initial_state, 0


def annotation(function: Callable[..., object], position: int) -> object:
    """The annotation of a parameter."""
    parameters = list(inspect.signature(function).parameters.values())
    annotation = parameters[min(position, len(parameters) - 1)].annotation
    return (
        typing.get_args(annotation)[0]
        if typing.get_origin(annotation) in (Op, Operation)
        else annotation
    )


def takes(wanted: object, options: type[Options]) -> bool:
    """Whether an annotation accepts an options class; a missing one accepts none."""
    if isinstance(wanted, typing.TypeVar):
        return takes(wanted.__bound__, options)
    if isinstance(wanted, types.UnionType):
        return any(takes(one, options) for one in typing.get_args(wanted))
    if typing.Protocol in getattr(wanted, "__bases__", ()):
        hints = typing.get_type_hints(options)
        members = {n: v for c in inspect.getmro(wanted) for n, v in vars(c).items()}
        return all(
            hints.get(name) == inspect.signature(member.fget).return_annotation
            for name, member in members.items()
            if isinstance(member, property)
        )
    return isinstance(wanted, type) and issubclass(options, wanted)


def test_functions_in_the_tables_are_written_for_the_options_of_their_operator() -> None:
    wrong = [
        f"{name}: {what} takes {annotation(function, position)}"
        for name, what, function, position in functions()
        if function is not None
        and not takes(annotation(function, position), OPERATORS[name].options)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("wanted", "options", "right"),
    [
        (SoftmaxOptions, SoftmaxOptions, True),
        (Options, SoftmaxOptions, True),
        (object, SoftmaxOptions, True),
        (Pool2DOptions | SoftmaxOptions, SoftmaxOptions, True),
        (Pool2D, Pool2DOptions, True),
        (Pool2DOptions, SoftmaxOptions, False),
        (Pool2D, SoftmaxOptions, False),
        (Pool2D, Pool3DOptions, False),  # its padding is a string
        (typing.Any, SoftmaxOptions, False),
        (inspect.Parameter.empty, SoftmaxOptions, False),
    ],
)
def test_which_annotations_accept_options(
    wanted: object, options: type[Options], right: bool
) -> None:
    assert takes(wanted, options) is right


def test_a_future_version_is_rejected() -> None:
    for name, rule in RULES.items():
        context = LoweringContext(op_version=rule.max_version + 1)
        reason = rule.reason(Op(context, default_options(name), (), ()))
        assert "is newer than the newest supported version" in (reason or ""), name


def test_missing_inputs_are_a_reason_not_an_error() -> None:
    for name, rule in RULES.items():
        assert rule.reason(Op(LoweringContext(), rule.options_type(), (), ())) is not None, name


@pytest.mark.parametrize("name", sorted(FUSED))
def test_only_rewrites_reach_a_fused_operator(name: str) -> None:
    """A custom operator of a file may have the same name; its options distinguish it."""
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
        ("op_lowering", "jaxdelegate.op_lowering", "RECORDS", OPERATORS),
        ("op_lowering", "jaxdelegate.op_lowering", "KERNELS", KERNELS),
        ("jaxdelegate/lowering/rewrites", "jaxdelegate.lowering.rewrites", "REWRITES", REWRITES),
    ],
    ids=["rules", "fused", "records", "kernels", "rewrites"],
)
def test_a_table_has_every_row_of_every_module_once(
    folder: str, package: str, attribute: str, listed: Collection[str]
) -> None:
    names = []
    for path in sorted((ROOT / folder).rglob("[!_]*.py")):
        if path.stem != "registry" and path != ROOT / "op_lowering" / "options.py":  # collect them
            place = path.relative_to(ROOT / folder).with_suffix("")
            module = importlib.import_module(".".join((package, *place.parts)))
            names += list(getattr(module, attribute, {}))
    assert sorted(names) == sorted(listed)


def test_one_module_has_the_options_of_every_family() -> None:
    for name, record in OPERATORS.items():
        if not issubclass(record.options, FlexOptions):  # a table of attributes defines those
            assert getattr(options, record.options.__name__, None) is record.options, name


def test_a_duplicate_rule_raises() -> None:
    rule = next(iter(RULES.values()))
    with pytest.raises(ValueError, match="duplicate rules"):
        table(rule, rule)


@pytest.mark.parametrize("name", [name for name, r in RULES.items() if r.host_reason is None])
def test_missing_tensors_are_a_reason(name: str) -> None:
    """A file may give an operator any number of outputs, and omit any input or output."""
    rule: OpRule[Options] = RULES[name]
    options, context = rule.options_type(), LoweringContext()

    def specs(count: int, dtype: type, absent: int | None = None) -> tuple[TensorSpec | None, ...]:
        made = (TensorSpec(f"t{i}", (2,), np.dtype(dtype)) for i in range(count))
        return tuple(None if i == absent else spec for i, spec in enumerate(made))

    for dtype in (np.float32, np.int32, np.bool_):
        for n in range(rule.arity, 6):
            for count in range(rule.results):
                assert rule.reason(Op(context, options, specs(n, dtype), specs(count, dtype)))
            for absent in range(rule.results):
                left_out = specs(rule.results, dtype, absent)
                assert rule.reason(Op(context, options, specs(n, dtype), left_out))
            for absent in range(n):
                inputs, outputs = specs(n, dtype, absent), specs(max(rule.results, n), dtype)
                reason = rule.reason(Op(context, options, inputs, outputs))
                assert reason is not None or absent >= rule.arity
