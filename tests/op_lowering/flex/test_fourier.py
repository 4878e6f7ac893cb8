"""Fourier transforms, and complex numbers."""

import numpy as np
import pytest

from jaxdelegate.testing import Arg, Case, Tolerance, assert_close, const, f32, of, value
from tests.op_lowering.flex.test_math import case

C64, C128 = np.complex64, np.complex128


def transform(name: str, x: Arg, *lengths: int) -> Case:
    """`lengths` are those of a real transform."""
    is_wide = x.value.dtype in (np.float64, C128)
    real, complex_ = (np.float64, C128) if is_wide else (np.float32, C64)
    outputs = [real if lengths and x.value.dtype.kind == "c" else complex_]
    more = [const(np.array(lengths, np.int32))] if lengths else []
    label = f"{x.value.dtype}{list(x.value.shape)}-{list(lengths)}"
    attributes = {"Tcomplex": np.dtype(complex_), "Treal": np.dtype(real)}
    return case(name, label, [x, *more], outputs, attributes=attributes, accumulated=64)


CASES = [
    *(transform(f"{kind}FFT", of(C64, 2, 12)) for kind in ("", "I")),
    *(transform(f"{kind}FFT2D", of(C64, 2, 3, 5)) for kind in ("", "I")),
    *(transform(f"{kind}FFT3D", of(C64, 3, 2, 5)) for kind in ("", "I")),
    transform("FFT", of(C128, 7)),
    transform("FFT", of(C64, 0, 4)),
    *(transform("RFFT", f32(2, 9), n) for n in (9, 8, 12, 1)),
    transform("RFFT", of(np.float64, 6), 6),
    transform("RFFT2D", f32(2, 4, 6), 5, 4),
    transform("RFFT3D", f32(3, 4, 5), 3, 4, 5),
    *(transform("IRFFT", of(C64, 2, 5), n) for n in (8, 9, 6, 12, 1)),
    transform("IRFFT2D", of(C64, 2, 4, 4), 4, 6),
    transform("IRFFT2D", of(C64, 3, 3), 5, 5),
    transform("IRFFT3D", of(C64, 2, 3, 4), 2, 3, 6),
    case("Complex", "broadcast", [f32(2, 3), f32(3, seed=1)], [C64]),
    case(
        "Complex",
        "float64",
        [of(np.float64, 3), of(np.float64, 3, seed=1)],
        [C128],
        attributes={"Tout": np.dtype(C128)},
    ),
]
REFUSED = {
    "is float32, not one of": case("FFT", "", [f32(4)], [C64]),
    "depends on data": case("RFFT", "", [f32(4), value(np.int32([4]))], [C64]),
}
IMPOSSIBLE = [
    transform("FFT2D", of(C64, 4)),
    transform("RFFT", f32(4), 0),
    transform("IRFFT", of(C64, 4), 2, 2),
]


@pytest.mark.parametrize(
    ("name", "x", "lengths", "y"),
    [
        # TensorFlow 2.17.1: tf.raw_ops.<name>.
        ("RFFT", np.float32([1, 2, 4, 7]), (4,), [14, -3 + 5j, -4]),
        ("IRFFT", np.array([1 + 5j, 2 - 1j, 3 + 2j], C64), (4,), [2.0, 0.0, 0.0, -1.0]),
    ],
)
def test_values_of_tensorflow(
    name: str, x: np.ndarray, lengths: tuple[int, ...], y: list[complex]
) -> None:
    (found,) = transform(name, value(x), *lengths).run_reference()
    tolerance = Tolerance(1e-6, 1e-6)
    assert_close([found], [np.array(y, found.dtype)], tolerance=tolerance, because="two libraries")
