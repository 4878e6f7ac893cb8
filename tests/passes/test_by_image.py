"""What `why_not_by_image` says; which operators pass is in tests/lowering/test_microbatching.py."""

from collections.abc import Mapping

import numpy as np
import pytest

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import NoOptions
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.by_image import why_not_by_image

X, Y, Z, W, S = range(5)
NAMES = "xyzws"


def specs(
    x: tuple[int, ...] = (4, 6), y: tuple[int, ...] = (4, 6), z: tuple[int, ...] = (4, 6)
) -> dict[int, TensorSpec]:
    """x -> y -> z, a constant w and a run-time scalar s."""
    found = {
        i: TensorSpec(NAMES[i], shape, np.dtype(np.float32))
        for i, shape in {X: x, Y: y, Z: z, S: ()}.items()
    }
    const = np.ones((1, 6), np.float32)
    return {**found, W: TensorSpec("w", const.shape, const.dtype, const=const)}


def operators(first: str = "RELU", *more: int, second: str = "TANH") -> list[Operator]:
    return [
        Operator(
            index=n,
            name=name,
            builtin_code=0,
            inputs=inputs,
            outputs=(output,),
            options=NoOptions(),
        )
        for n, (name, inputs, output) in enumerate(((first, (X, *more), Y), (second, (Y,), Z)))
    ]


def variable(given: Mapping[int, TensorSpec]) -> dict[int, TensorSpec]:
    state = TensorSpec("s", (4, 6), np.dtype(np.float32), is_variable=True)
    return {**given, S: state}


@pytest.mark.parametrize(
    ("graph", "given", "reason"),
    [
        (operators(), specs(), None),
        (operators("MUL", W), specs(), None),
        (operators("MUL", S), specs(), "node 0 (MUL) may mix the images of a batch"),
        (operators(second="CUMSUM"), specs(), "node 1 (CUMSUM) may mix the images of a batch"),
        (operators(second="RESHAPE"), specs(z=(1, 24)), "node 1 (RESHAPE) may mix the images"),
        (operators(), specs(x=(0, 6)), "do not hold the same number of images"),
        (operators(), specs(x=()), "do not hold the same number of images"),
        (operators("ADD", S), variable(specs()), "tensor 4 's' is state"),
    ],
)
def test_the_reason_names_the_first_operator(graph, given, reason) -> None:
    found = why_not_by_image(graph, given, [X], [Z])
    assert found is None if reason is None else reason in str(found)


def test_inputs_have_the_same_number_of_images() -> None:
    assert "same number" in str(why_not_by_image(operators(), specs(y=(2, 6)), [X, Y], [Z]))


def test_outputs_hold_images() -> None:
    assert why_not_by_image(operators(), specs(), [X], [W]) == "output 3 'w' holds no images"


def test_one_image_has_the_same_constants() -> None:
    graph, single = operators("MUL", W), specs((1, 6), (1, 6), (1, 6))
    assert why_not_by_image(graph, specs(), [X], [Z], single=single) is None
    other = np.full((1, 6), 2, np.float32)
    single[W] = TensorSpec("w", other.shape, other.dtype, const=other)
    reason = why_not_by_image(graph, specs(), [X], [Z], single=single)
    assert reason == "node 0 (MUL) computes something else for a batch of 1"


def test_one_image_has_its_part_of_every_shape() -> None:
    graph, whole = operators(second="RESHAPE"), specs(z=(8, 3))
    for z, alike in (((2, 3), True), ((3, 2), False), ((6,), False), ((), False)):
        reason = why_not_by_image(graph, whole, [X], [Z], single=specs((1, 6), (1, 6), z))
        assert (reason is None) is alike, z
        assert alike or "node 1 (RESHAPE) computes something else" in str(reason)
