"""Every operator case through `jax.jit(apply)` and its gradients, with 64-bit types off and on.

JAX lowers and transposes a program under the settings of the caller that jits or differentiates it.
A rule that needs a 64-bit type then fails there, or JAX truncates the type to 32 bits.

Of the operators' own cases some are traced, and those that bring an equation that was not lowered
yet, with such dtypes, are lowered as well. The slow tests lower all recorded cases, `--exhaustive`
lowers all, and compiles and compares the recorded ones.
"""

import contextlib
import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Case
from jaxdelegate.testing.case import COMPILER_OPTIONS
from tests.support.case_tables import cases_in
from tests.support.op_cases import OpCase, check, find_cases

ROOT = Path(__file__).parents[2]
RECORDED = list(find_cases(ROOT.parent / "shared" / "op_cases"))
PARTS = 32
NO_FILES = {"DENSIFY-zeros-float32-[3, 4]"}  # without a stored value: refused, as by LiteRT
WIDE = pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
absent = pytest.mark.skipif(not RECORDED, reason="the recorded operator cases are not here")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.ERROR, "jaxdelegate")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Explicitly requested dtype")  # it would be cut
        yield


@dataclasses.dataclass(frozen=True)
class Example:
    """A model with one operator, or a few, and inputs."""

    name: str
    content: Callable[[], bytes]
    inputs: Callable[[], Sequence[np.ndarray]]


def recorded(cases: Sequence[OpCase]) -> Iterator[Example]:
    for case in cases:
        yield Example(str(case), lambda c=case: c.model, lambda c=case: c.inputs)  # type: ignore[misc]


def listed(cases: Sequence[Case]) -> Iterator[Example]:
    for case in cases:
        yield Example(str(case), case.model, case.feeds)


@functools.cache
def tables() -> tuple[Case, ...]:
    """The cases of the operators' own tests that XLA runs."""
    found = cases_in(ROOT / "tests" / "op_lowering").items()
    return tuple(c for name, cases in found for c in cases if RULES[name].host_reason is None)


def various() -> list[Case]:
    """The cases with a dtype in a place where no earlier case of the operator has it."""
    known: set[tuple[str, int, str]] = set()
    found = []
    for case in tables():
        given = enumerate(case.inputs)
        kinds = {(case.name, i, str(a.value.dtype)) for i, a in given if a is not None}
        if kinds - known:
            found.append(case)
            known |= kinds
    return found


def faults(examples: Iterator[Example], wide: bool, lowered: set[Any] | None) -> list[str]:
    """The failures; `lowered` are the equations that were lowered before, None: lower all."""
    found = []
    for example in examples:
        with jax.enable_x64(wide):
            try:
                walk(example, lowered)
            except Exception as error:  # whatever JAX raises
                found.append(f"{example.name}: {type(error).__name__}: {str(error)[:300]}")
    return found


def walk(example: Example, lowered: set[Any] | None, **options: Any) -> None:
    inputs = example.inputs()
    if any(x.dtype == object for x in inputs):
        return
    if example.name in NO_FILES:
        with pytest.raises(jd.ModelError, match="must hold data"):
            jd.load(example.content())
        return
    try:
        apply, params = jd.load(example.content(), **options).function()
    except (jd.DelegationError, jd.InterpreterError):
        return  # the host runs it, or it is a rule's case and no file
    traced = jax.jit(apply).trace(params, *inputs)
    for output, wanted in zip(traced.out_info, declared(apply), strict=True):
        assert output.dtype == wanted
    lower(traced, lowered)
    if options:
        return  # computed in integers
    if any(t.spec().is_quantized for t in apply.model.graph.subgraphs[0].tensors):
        walk(example, lowered, quant_mode="integer")
    for derive in derivatives(apply, params, inputs, traced.out_info):
        with contextlib.suppress(jd.GradientError):  # a loop whose length the data decide
            lower(jax.jit(derive).trace(params, *inputs), lowered)


def declared(apply: Any) -> list[np.dtype]:
    graph = apply.model.graph.subgraphs[0]
    return [graph.tensors[i].dtype for i in graph.outputs]


def computes_float64(apply: Any) -> bool:
    tensors = (t for graph in apply.model.graph.subgraphs for t in graph.tensors)
    return any(t.dtype in (np.float64, np.complex128) for t in tensors)


def derivatives(
    apply: Any, params: Any, inputs: Sequence[np.ndarray], outputs: Any
) -> Iterator[Callable[..., Any]]:
    """Gradients only with respect to the weights; and of these, with respect to the inputs."""
    if not any(is_float(y) for y in outputs):
        return
    if not jax.config.jax_enable_x64 and computes_float64(apply):
        return  # JAX itself derives float64 with 64-bit types only: docs/jax.md

    def total(params: Any, *inputs: Any) -> jax.Array:
        floats = (y for y in apply(params, *inputs) if is_float(y))
        return sum((jnp.sum(y.astype(np.float32)) for y in floats), jnp.float32(0))

    if params and all(map(is_float, params.values())):
        yield jax.grad(total)
    positions = tuple(1 + i for i, x in enumerate(inputs) if is_float(x))
    if positions:
        yield jax.grad(jax.checkpoint(total), positions)


def is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def lower(traced: Any, lowered: set[Any] | None) -> None:
    if lowered is None:
        traced.lower()
        return
    kinds = {kind(eqn) for eqn in equations(traced.jaxpr.jaxpr)}
    if kinds - lowered:
        traced.lower()
        lowered |= kinds


def kind(eqn: Any) -> tuple[Any, ...]:
    dtypes = (str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype"))
    return eqn.primitive.name, len(eqn.invars), *dtypes


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, including nested ones."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            inside = value if isinstance(value, list | tuple) else [value]
            for inner in (getattr(each, "jaxpr", each) for each in inside):
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


# The equations that were lowered in this process, by whether 64-bit types were on.
SEEN: dict[bool, set[Any]] = {False: set(), True: set()}


@pytest.mark.parametrize(
    "wide", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["32 bits", "64 bits"]
)
def test_operator_cases_can_be_jitted_and_derived(wide: bool) -> None:
    cases = various()[wide::80]  # other cases with 64-bit types than without
    assert faults(listed(cases), wide, SEEN[wide]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "FlexBesselI0-float64",
        "FlexCombinedNonMaxSuppression-few",  # an index of int64
        "FlexIgamma-float64",
        "FlexSelfAdjointEigV2-vectors",
        "FlexSvd-float64",
    ],
)
def test_functions_that_jax_lowers_by_the_callers_settings(name: str) -> None:
    (case,) = (case for case in tables() if str(case) == name)
    assert faults(listed([case]), wide=False, lowered=None) == []


# A part of the cases; the rest, and all with 64-bit types, with --exhaustive.
SOME_PARTS = [
    pytest.param(
        part,
        wide,
        id=f"{part}-{64 if wide else 32} bits",
        marks=pytest.mark.slow if part == wide == 0 else pytest.mark.exhaustive,
    )
    for part in range(PARTS)
    for wide in (False, True)
]


@absent
@pytest.mark.parametrize(("part", "wide"), SOME_PARTS)
def test_recorded_cases_can_be_jitted_and_derived(part: int, wide: bool) -> None:
    assert faults(recorded(RECORDED[part::PARTS]), wide, None) == []


@pytest.mark.exhaustive
@WIDE
@pytest.mark.parametrize("part", range(PARTS))
def test_all_operator_cases_can_be_jitted_and_derived(part: int, wide: bool) -> None:
    assert faults(listed(tables()[part::PARTS]), wide, None) == []


@absent
@pytest.mark.exhaustive
@WIDE
@pytest.mark.parametrize("part", range(PARTS))
def test_jitted_functions_yield_what_was_recorded(part: int, wide: bool) -> None:
    wrong = []
    for case in RECORDED[part::PARTS]:
        options = {} if case.quantization == "none" else {"quant_mode": "integer"}
        try:
            apply, params = jd.load(case.model, **options).function()
            with jax.enable_x64(wide):
                check(case, functools.partial(jitted, apply, params))
        except jd.DelegationError:
            continue
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    assert wrong == []


def jitted(
    apply: Any, params: Any, _model: bytes, inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    program = jax.jit(apply).lower(params, *inputs).compile(COMPILER_OPTIONS)
    # A compiled program takes what was traced: 64-bit inputs are cut before, where they are off.
    given = [jnp.asarray(x) for x in inputs]
    return [np.asarray(y) for y in program(params, *given)]
