import pytest

from jaxdelegate.op_lowering.options import ResizeBilinearOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Case, const, f32

MODES = {
    "plain": ResizeBilinearOptions(),
    "aligned": ResizeBilinearOptions(align_corners=True),
    "half": ResizeBilinearOptions(half_pixel_centers=True),
}
SIZES = [
    ((1, 3, 4, 2), (6, 8)),
    ((2, 5, 7, 3), (3, 2)),
    ((1, 4, 4, 1), (4, 4)),
    ((1, 3, 3, 1), (1, 1)),
]
CASES = [
    Case(
        "RESIZE_BILINEAR",
        f"{mode}-{shape}-{size}",
        [f32(*shape), const(size, "int32")],
        options,
        version=3,
    )
    for mode, options in MODES.items()
    for shape, size in SIZES
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowering_matches_the_reference(case: Case) -> None:
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


@pytest.mark.litert
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_matches_litert(case: Case) -> None:
    case.check(case.run_reference(), case.run_litert())
