import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    RandomOptions,
    RngAlgorithm,
    StablehloRngBitGeneratorOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, const, f32, of, value

SEEDS = [(1, 0), (0, 1), (1234, 5678), (-5, 7), (2**33 + 5, 2**40 + 7), (-1, 2**31)]
SHAPES: list[Shape] = [(7,), (3, 5), (1, 1, 1), (2, 3, 4, 5), (1000,)]
INVOKES = 3


def drawn(name: str, label: str, seeds: tuple[int, int], *inputs: Arg, **details: Any) -> Case:
    """An operator with its generator's state after its inputs."""
    options = RandomOptions(*seeds)
    (state,) = KERNELS[name].initial_state(options)  # type: ignore[misc]
    return Case(name, label, [*inputs, Arg(state, is_variable=True)], options, **details)


def shaped(name: str, seeds: tuple[int, int], shape: Shape, make: Any = const) -> Case:
    label = f"{seeds}-{list(shape)}-{make.__name__}"
    return drawn(name, label, seeds, make(np.int32(shape)), outputs=[np.float32])


def sampled(
    label: str, logits: Arg, n: int, dtype: Any = np.int64, make: Any = const, **details: Any
) -> Case:
    count = make(np.array(n, np.int32))
    return drawn("MULTINOMIAL", label, (3, 77), logits, count, outputs=[dtype], **details)


def shapes_by_seeds(name: str) -> list[Case]:
    return [
        *(shaped(name, seeds, shape) for seeds in SEEDS for shape in SHAPES[:1]),
        *(shaped(name, SEEDS[2], shape, make) for shape in SHAPES for make in (const, value)),
    ]


UNIFORM = shapes_by_seeds("RANDOM_UNIFORM")
NORMAL = shapes_by_seeds("RANDOM_STANDARD_NORMAL")
ODD = np.float32([[1, 2, np.nan, 0], [-np.inf, -np.inf, np.nan, np.inf], [np.inf, 1, 90, -90]])
MULTINOMIAL = [
    *(
        sampled(f"{b}x{c}-{n}-{np.dtype(d).name}-{make.__name__}", f32(b, c), n, d, make)
        for b, c, n, d in (
            (2, 5, 34, np.int64),
            (1, 2, 7, np.int32),
            (3, 4, 1, np.int32),
            (5, 9, 13, np.int64),
            (1, 1, 4, np.int32),
        )
        for make in (const, value)
    ),
    sampled("not-finite", value(ODD), 21),
    sampled("nothing", f32(2, 3), 0, litert="refuses empty tensors"),
    sampled("no-batch", f32(0, 3), 2, litert="refuses empty tensors"),
]
EMPTY = [
    dataclasses.replace(shaped(name, (1, 2), (3, 0)), litert="refuses empty tensors")
    for name in ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
]
DRAWN = [*UNIFORM, *NORMAL, *MULTINOMIAL, *EMPTY]
RUN_TIME = [c for c in DRAWN if c.label.endswith("value")]
COMPILED_IN_PART = True
CASES = [c for c in DRAWN if c not in RUN_TIME]


def again(case: Case, state: np.ndarray) -> Case:
    return dataclasses.replace(case, inputs=[*case.inputs[:-1], Arg(state, is_variable=True)])


def litert_invokes(case: Case) -> list[list[np.ndarray]]:
    """Outputs of several invokes of one stock interpreter, which keeps the state."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    stateless = dataclasses.replace(case, inputs=case.inputs[:-1])
    interpreter = Interpreter(
        model_content=stateless.model(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    results = []
    for _ in range(INVOKES):
        for detail, array in zip(interpreter.get_input_details(), stateless.feeds(), strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results.append(
            [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]
        )
    return results


@pytest.mark.parametrize("case", [UNIFORM[0], NORMAL[0], MULTINOMIAL[0]], ids=str)
def test_lowering_continues_from_the_state(case: Case) -> None:
    later = again(case, case.run_lowered(RULES[case.name])[-1])
    later.check(later.run_lowered(RULES[case.name]), later.run_reference())
    assert not np.array_equal(later.run_reference()[0], case.run_reference()[0])


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in DRAWN if c.litert is None], ids=str)
def test_reference_matches_litert(case: Case) -> None:
    for want in litert_invokes(case):
        *got, state = case.run_reference()
        case.check(got, want)
        case = again(case, state)


WORD = 2**32 - 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([WORD, 0, 0, 0], [1, 1, 0, 0]),
        ([WORD - 1, WORD, WORD, 5], [0, 0, 0, 6]),
        ([WORD, WORD, WORD, WORD], [1, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("run", ["run_reference", "run_lowered"])
def test_the_counter_carries(run: str, before: list[int], after: list[int]) -> None:
    case = again(shaped("RANDOM_UNIFORM", (1, 2), (8,)), np.uint32([*before, 3, 4]))
    arguments = [RULES[case.name]] if run == "run_lowered" else []
    y, state = getattr(case, run)(*arguments)
    assert state.tolist() == [*after, 3, 4]
    case.check([y], case.run_reference()[:1])


def test_states_without_seeds_differ() -> None:
    make = KERNELS["RANDOM_UNIFORM"].initial_state
    assert make is not None
    states = [make(RandomOptions(*seeds))[0] for seeds in ((0, 0), (0, 0), (2**32, 0))]
    assert len({state.tobytes() for state in states}) == 3


def bits(algorithm: RngAlgorithm, state: list[int], shape: Shape, dtype: Any = np.uint32) -> Case:
    return Case(
        "STABLEHLO_RNG_BIT_GENERATOR",
        f"{algorithm.name}-{state}-{np.dtype(dtype).name}-{shape}",
        [value(state, np.uint64)],
        StablehloRngBitGeneratorOptions(algorithm),
        outputs=[np.uint64, dtype],
        litert=None if np.prod(shape) else "refuses empty tensors",
        shapes=[(len(state),), shape],
    )


STATES = [[1, 2], [2**64 - 1, 2**64 - 2], [1, 2, 3], [2**63 + 7, 2**32 - 2, 5]]
BITS = [
    bits(algorithm, state, shape, dtype)
    for algorithm in RngAlgorithm
    for state in STATES
    if len(state) == 2 or algorithm is not RngAlgorithm.THREEFRY
    for shape, dtype in (
        ((3, 5), np.uint32),
        ((33,), np.int32),
        ((2, 2, 3), np.uint64),
        ((7,), np.int64),
        ((), np.uint64),
        ((0, 2), np.uint32),
    )
]


LOWERED = BITS


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in BITS if c.litert is None], ids=str)
def test_bits_match_litert(case: Case) -> None:
    case.check(case.run_reference(), case.run_litert())


@pytest.mark.parametrize("case", [BITS[0], UNIFORM[0]], ids=str)
def test_64_bit_types_may_be_off(case: Case) -> None:
    with jax.enable_x64(False):
        case.check(case.run_lowered(RULES[case.name]), case.run_reference())


THREEFRY = RngAlgorithm.THREEFRY
UNSEEDED = shaped("RANDOM_UNIFORM", (1, 2), (3,))
REFUSED = {
    "not uint32 [6]": again(UNSEEDED, np.zeros(6, np.int64)),
    "state is not among the inputs": dataclasses.replace(
        UNSEEDED, inputs=[UNSEEDED.inputs[0], of(np.uint32, 6)]
    ),
    "needs 2 inputs": dataclasses.replace(UNSEEDED, inputs=UNSEEDED.inputs[:1]),
    "'out0' is float16": dataclasses.replace(UNSEEDED, outputs=[np.float16]),
    "'in0' is float16": sampled("half", of(np.float16, 2, 3), 2),
    "'out0' is int8": sampled("int8", f32(2, 3), 2, np.int8),
    "from 0 classes": sampled("classes", f32(2, 0), 2),
    "draw -1 samples": sampled("negative", f32(2, 3), -1),
    "expected logits [batch, classes]": sampled("rank", f32(2, 3, 4), 2),
    "THREEFRY has no state of [3]": bits(THREEFRY, [1, 2, 3], (3,)),
    "PHILOX has no state of [4]": bits(RngAlgorithm.PHILOX, [1, 2, 3, 4], (3,)),
    "'out1' is uint8": bits(RngAlgorithm.PHILOX, [1, 2], (3,), np.uint8),
}


STOPPED = {
    ("must be float32", TypeError): dataclasses.replace(UNSEEDED, outputs=[np.float16]),
    "MULTINOMIAL: logits": sampled("classes", f32(2, 0), 2),
    "the state must be uint64": bits(THREEFRY, [1, 2, 3], (3,)),
}


@pytest.mark.parametrize("sizes", [[[1, 2]], [3, -1]])
def test_an_invalid_shape_is_refused(sizes: list[Any]) -> None:
    with pytest.raises(ValueError, match="vector of sizes"):
        shaped("RANDOM_UNIFORM", (1, 2), sizes, value).run_reference()
