"""Special functions."""

from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Case, of, value
from tests.op_lowering.flex.test_math import case, number

DTYPES = (np.float32, np.float64)
UNARY = ("BesselI0", "BesselI0e", "BesselI1", "BesselI1e")
HOSTED = {
    # TensorFlow 2.17.1: tf.raw_ops.<name>(x=...), float32, of 0.25 and of 3.
    "BesselJ0": [0.98443598, -0.26005191],
    "BesselJ1": [0.12402599, 0.33905897],
    "BesselK0": [1.5415071, 0.034739505],
    "BesselK0e": [1.9793344, 0.69776165],
    "BesselK1": [3.747026, 0.040156431],
    "BesselK1e": [4.8112764, 0.8065635],
    "BesselY0": [-0.93157303, 0.37685004],
    "BesselY1": [-2.7041051, 0.3246744],
    "Dawsn": [0.23983915, 0.17827101],
    "Expint": [-0.54254329, 9.9338331],
    "Spence": [0.97846937, -1.4367464],
}


# The same of several inputs.
HOSTED_OF_SEVERAL = {
    "Betainc": ((0.5, 2, 0.3), 0.73942542),
    "Polygamma": ((1, 0.25), 17.19733),
    "Zeta": ((2, 0.5), 4.9348021),
}


def scanned(dtype: Any, axis: int, **attributes: bool) -> Case:
    label = f"{np.dtype(dtype).name}-{axis}-{list(attributes)}"
    given = {"Tidx": np.dtype(np.int32), **attributes}
    return case("CumulativeLogsumexp", label, [of(dtype, 3, 4), number(axis)], attributes=given)


CASES = [
    *(
        case(name, np.dtype(d).name, [of(d, 3, 4, low=-9, high=9)])
        for name in UNARY
        for d in DTYPES
    ),
    *(case("Ndtri", np.dtype(d).name, [of(d, 3, 4, low=0.01, high=0.99)]) for d in DTYPES),
    *(
        case(name, np.dtype(d).name, [of(d, 3, 4, low=0.2, high=9), of(d, 4, low=0.1, high=9)])
        for name in ("Igamma", "Igammac")
        for d in DTYPES
    ),
    *(scanned(d, 1) for d in DTYPES),
    scanned(np.float32, 0, exclusive=True),
    scanned(np.float32, -1, reverse=True),
    scanned(np.float32, -1, reverse=True, exclusive=True),
]


@pytest.mark.parametrize("name", HOSTED)
def test_values_of_tensorflow_on_the_host(name: str) -> None:
    found = case(name, "", [value([0.25, 3], np.float32)])
    np.testing.assert_allclose(found.run_reference()[0], HOSTED[name], 1e-6)
    assert found.reason(RULES[found.name]) == "JAX has no such function"


@pytest.mark.parametrize("name", HOSTED_OF_SEVERAL)
def test_values_of_several_inputs(name: str) -> None:
    inputs, expected = HOSTED_OF_SEVERAL[name]
    found = case(name, "", [value([x], np.float32) for x in inputs])
    np.testing.assert_allclose(found.run_reference()[0], expected, 1e-6)
    assert "derivative by one input only" in found.reason(RULES[found.name])


def test_an_order_that_is_no_integer_has_no_polygamma() -> None:
    orders = value([-1, 0.5, 1], np.float32)
    (found,) = case("Polygamma", "", [orders, value([2, 2, 2], np.float32)]).run_reference()
    assert np.isnan(found).tolist() == [True, True, False]
