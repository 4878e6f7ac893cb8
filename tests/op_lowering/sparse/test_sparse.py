import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import NoOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.sparse.reference import densified
from jaxdelegate.op_lowering.spec import DimensionSparsity, Sparsity, Specs, TensorSpec
from jaxdelegate.testing import Arg, Case, ModelBuilder
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import scaled

DENSE, CSR = False, True


def compress(nodes: list[np.ndarray], kinds: Sequence[bool]) -> tuple[Any, list[np.ndarray]]:
    """Levels and stored values of arrays whose dimensions are the levels, recursively."""
    if not kinds:
        return (), nodes
    size = nodes[0].shape[0]
    if kinds[0] is DENSE:
        levels, values = compress([node[i] for node in nodes for i in range(size)], kinds[1:])
        return (DimensionSparsity(size), *levels), values
    kept = [[i for i in range(size) if np.any(node[i] != 0)] for node in nodes]
    segments = np.int32(np.cumsum([0, *map(len, kept)]))
    indices = np.int32([i for row in kept for i in row])
    below = [node[i] for node, row in zip(nodes, kept, strict=True) for i in row]
    levels, values = compress(below, kinds[1:])
    return (DimensionSparsity(0, segments, indices), *levels), values


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse(Case):
    """DENSIFY of a tensor that the file stores sparse."""

    dense: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    sparsity: Sparsity | None = None

    def specs(self) -> tuple[Specs, Specs]:
        inputs, outputs = super().specs()
        spec = dataclasses.replace(inputs[0], shape=self.dense.shape, sparsity=self.sparsity)
        return (spec,), (dataclasses.replace(outputs[0], shape=self.dense.shape),)

    def model(self) -> bytes:
        builder = ModelBuilder(str(self))
        (stored,), (spec,) = self.inputs, self.specs()[1]
        assert stored is not None
        x = builder.constant(stored.value, shape=self.dense.shape, sparsity=self.sparsity)
        y = builder.tensor(self.dense.shape, spec.dtype)
        builder.operator("DENSIFY", [x], [y], NoOptions())
        builder.outputs(y)
        return builder.build()


def random(dtype: Any, shape: Sequence[int], density: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    return np.where(rng.random(shape) < density, rng.integers(1, 9, shape), 0).astype(dtype)


def sparse(
    label: str,
    dense: np.ndarray,
    kinds: Sequence[bool],
    order: Sequence[int] | None = None,
    blocks: dict[int, int] | None = None,
    **details: Any,
) -> Sparse:
    """`kinds`: dense or compressed, by level; `order`: of levels; `blocks`: size by dimension."""
    blocks = blocks or {}
    order = tuple(range(len(kinds))) if order is None else tuple(order)
    cut = dense.reshape([n for i, s in enumerate(dense.shape) for n in _cut(s, blocks.get(i))])
    outer = np.cumsum([0, *(1 + (i in blocks) for i in range(dense.ndim))])
    axes = [*outer[:-1], *(outer[i] + 1 for i in blocks)]  # dimensions, then blocks
    levels, stored = compress([cut.transpose([axes[i] for i in order])], kinds)
    return Sparse(
        "DENSIFY",
        f"{label}-{dense.dtype}-{list(dense.shape)}",
        [Arg(np.array(stored, dense.dtype), is_const=True)],
        dense=dense,
        sparsity=Sparsity(order, tuple(blocks), levels),
        **details,
    )


def _cut(size: int, block: int | None) -> list[int]:
    return [size] if block is None else [size // block, block]


MATRIX = random(np.float32, (8, 12))
CASES = [
    sparse("rows", MATRIX, [DENSE, CSR]),
    sparse("columns", MATRIX, [DENSE, CSR], order=[1, 0]),
    sparse("both", random(np.float32, (8, 12), 0.05), [CSR, CSR]),
    sparse("dense", MATRIX, [DENSE, DENSE], order=[1, 0]),
    sparse("outer", random(np.float32, (8, 12), 0.05), [CSR, DENSE]),
    sparse("vector", random(np.float32, (20,)), [CSR]),
    sparse("zeros", np.zeros((3, 4), np.float32), [DENSE, CSR], litert="needs a stored value"),
    sparse("blocks", MATRIX, [DENSE, CSR, DENSE, DENSE], blocks={0: 4, 1: 2}),
    sparse("1x4", MATRIX, [DENSE, CSR, DENSE], blocks={1: 4}),
    sparse("16x1", random(np.float32, (32, 3), 0.1), [CSR, CSR, DENSE], [1, 0, 2], {0: 16}),
    sparse("turned", MATRIX, [CSR, CSR, DENSE, DENSE], [1, 0, 3, 2], {0: 4, 1: 2}),
    sparse("filter", random(np.float32, (8, 3, 3, 4)), [DENSE, DENSE, DENSE, CSR]),
    sparse("filter-order", random(np.float32, (8, 3, 3, 4)), [DENSE, CSR, CSR, CSR], [3, 1, 0, 2]),
    *(
        sparse("rows", random(dtype, (5, 6)), [DENSE, CSR], litert=litert)
        for dtype, litert in (
            (np.float16, None),
            (np.int8, None),
            (np.int32, NO_KERNEL),
            (np.uint8, NO_KERNEL),
            (ml_dtypes.bfloat16, NO_KERNEL),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_undoes_the_compression(case: Sparse) -> None:
    case.check(case.run_reference(), [case.dense])


def test_dense_constants_stay() -> None:
    case = dataclasses.replace(
        CASES[0], inputs=[Arg(MATRIX, is_const=True)], dense=MATRIX, sparsity=None
    )
    case.check(case.run_reference(), [MATRIX])
    case.check(case.run_lowered(RULES["DENSIFY"]), [MATRIX])


def reason(inputs: Specs, outputs: Specs) -> str | None:
    return RULES["DENSIFY"].reason(Op(LoweringContext(), NoOptions(), inputs, outputs))


def test_refuses_run_time_values_and_other_dtypes() -> None:
    inputs, outputs = CASES[0].specs()
    late = (dataclasses.replace(inputs[0], const=None),)
    assert "computed at run time" in (reason(late, outputs) or "")
    other = (dataclasses.replace(outputs[0], dtype=np.dtype(np.float16)),)
    assert "is float16, but 'in0' is float32" in (reason(inputs, other) or "")


def test_quantized_weights_keep_their_scale() -> None:
    scale = scaled(0.5)
    case = next(c for c in CASES if "int8" in str(c))
    specs = [
        tuple(dataclasses.replace(s, quantization=scale) for s in side) for side in case.specs()
    ]
    assert reason(*specs) is None


def test_densified_needs_a_constant_with_all_its_values() -> None:
    with pytest.raises(ValueError, match="is not constant"):
        densified(TensorSpec("w", (2, 2), np.dtype(np.float32)))
    spec = CASES[0].specs()[0][0]
    with pytest.raises(ValueError, match="shape mismatch"):
        densified(dataclasses.replace(spec, const=np.ones(2, np.float32)))
