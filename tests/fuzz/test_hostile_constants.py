"""Operators with hostile constants: each runs, or raises a JaxDelegateError."""

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering.legality import RULE_RAISED, context_for, why_not
from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import (
    AddOptions,
    CombinerType,
    EmbeddingLookupSparseOptions,
    TensorType,
    VarHandleOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes.propagation import gather, subgraph_specs
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.fuzz.hostile_constants import HostileConstants
from tests.fuzz.run_hostile_constants import SIDES, check
from tests.fuzz.run_mutations import Tally
from tests.support.quantized import scaled

TWO_SCALES = Quantization(np.float32([0.5, 0.25]), np.int64([0, 0]))


def segments(name: str, ids: np.ndarray, count: np.ndarray) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((3,)), builder.tensor((2,))
    builder.operator(name, [x, builder.constant(ids), builder.constant(count)], [y])
    builder.outputs(y)
    return builder.build()


def lookup(shape: np.ndarray) -> bytes:
    builder = ModelBuilder()
    ids, y = builder.input((2,), np.int32), builder.tensor((2, 2))
    places = builder.constant(np.int32([[0, 0], [1, 0]]))
    weights, table = (builder.constant(np.ones(s, np.float32)) for s in (2, (3, 2)))
    inputs = [ids, places, builder.constant(shape), weights, table]
    options = EmbeddingLookupSparseOptions(CombinerType.SUM)
    builder.operator("EMBEDDING_LOOKUP_SPARSE", inputs, [y], options)
    builder.outputs(y)
    return builder.build()


def assignment_of_nothing() -> bytes:
    builder = ModelBuilder()
    handle = builder.tensor((1,), DTYPES[TensorType.RESOURCE])
    x, y = builder.input((1,)), builder.tensor((1,))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions("", "a"))
    builder.operator("ASSIGN_VARIABLE", [handle], [])
    builder.operator("ABS", [x], [y])
    builder.outputs(y)
    return builder.build()


def scalar_with_two_scales() -> bytes:
    builder = ModelBuilder()
    x, y = (
        make((2,), np.int8, quantization=scaled(0.5)) for make in (builder.input, builder.tensor)
    )
    number = builder.constant(np.int8(3), quantization=TWO_SCALES)
    builder.operator("ADD", [x, number], [y], AddOptions())
    builder.outputs(y)
    return builder.build()


def two_for_one() -> bytes:
    builder = ModelBuilder()
    x, more, y = builder.input((2,)), builder.input((2,)), builder.tensor((2,))
    builder.operator("ABS", [x, more], [y])
    builder.outputs(y)
    return builder.build()


NAN, IDS = np.float32([0, np.nan, 0]), np.int32([0, 1, 0])
REFUSED = {
    "a count of NaN": segments("UNSORTED_SEGMENT_PROD", IDS, np.float32([np.nan])),
    "an infinite count": segments("UNSORTED_SEGMENT_MAX", IDS, np.float32([np.inf])),
    "a negative count": segments("UNSORTED_SEGMENT_MIN", IDS, np.int32([-1])),
    "ids of NaN": segments("UNSORTED_SEGMENT_SUM", NAN, np.int32([2])),
    "a negative shape": lookup(np.int32([-(2**31), 1])),
    "no value": assignment_of_nothing(),
    "too many inputs": two_for_one(),
    "two scales of a number": scalar_with_two_scales(),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("quant_mode", [None, "float_view", "integer"])
def test_the_interpreter_refuses(what: str, quant_mode: str | None) -> None:
    delegates = [] if quant_mode is None else [jd.JaxDelegate(quant_mode=quant_mode)]
    with pytest.raises(jd.InterpreterError, match=r"Node number \d \([A-Z_]+\) failed to"):
        run(jd.Interpreter(model_content=REFUSED[what], experimental_delegates=delegates))


def run(interpreter: jd.Interpreter) -> None:
    interpreter.allocate_tensors()
    interpreter.invoke()


def test_changes_are_the_same_each_time() -> None:
    first, second = HostileConstants(0), HostileConstants(0)
    assert [first.damaged(n) for n in range(20)] == [second.damaged(n) for n in range(20)]
    assert len({first.damaged(n)[1] for n in range(20)}) == 20


@pytest.mark.filterwarnings("ignore")  # numpy warns when NaN and complex numbers become integers
def test_the_reference_runs_or_refuses_and_the_rules_give_reasons() -> None:
    """Checks without a compiler what runs or is refused, and why."""
    hostile, ran = HostileConstants(0), 0
    for number in range(150):
        _name, content, _changes = hostile.damaged(number)
        with contextlib.suppress(jd.JaxDelegateError):
            run(jd.Interpreter(model_content=content))
            ran += 1
        with contextlib.suppress(jd.JaxDelegateError):
            assert not [r for r in reasons(content) if r.startswith(RULE_RAISED)], number
    assert ran > 25


def reasons(content: bytes) -> Iterator[str]:
    """The reasons of the rules in both quantized modes for a model's operators."""
    for subgraph in jd.load(content).graph.subgraphs:
        specs = subgraph_specs(subgraph, None, ())
        for operator in subgraph.operators:
            inputs, outputs = (gather(specs, i) for i in (operator.inputs, operator.outputs))
            for context in (LoweringContext(), LoweringContext(quant_mode="integer")):
                of_it = context_for(context, operator, dict(enumerate(specs)))
                yield why_not(of_it, operator, inputs, outputs) or ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_operator_with_hostile_constants_runs_or_is_refused() -> None:
    tally = Tally()
    assert check(range(70), 0, tally) == 0
    for side in SIDES:
        assert tally.counts[side]["ran"] > 6
        assert tally.counts[side]["refused: InterpreterError"] > 12
