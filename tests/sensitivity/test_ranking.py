"""Operators are ranked as by quantizing them and running stock LiteRT."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    FullyConnectedOptions,
)
from jaxdelegate.sensitivity.records import SensitivityReport
from jaxdelegate.sensitivity.schemes import SCHEMES
from jaxdelegate.testing import ModelBuilder
from sample_tasks.tasks import TASKS

litert = [
    pytest.mark.litert,
    pytest.mark.filterwarnings("ignore:Warning. Enabling `experimental_preserve_all_tensors`"),
]


@pytest.fixture(scope="module")
def report(fragile: bytes, images: list[np.ndarray]) -> SensitivityReport:
    return jd.quantization_sensitivity(fragile, images, "int8,dynamic")


def test_the_fragile_layer_is_named_first(report: SensitivityReport) -> None:
    """It is first in both schemes, since its weights share a grid with the outlier."""
    for scheme in report.schemes:
        first, second = report.ranked(scheme)[:2]
        assert (first.tensor, first.op) == ("dense_4", "FULLY_CONNECTED")
        assert first.errors[scheme].error > 4 * second.errors[scheme].error
    assert report.operators[0].tensor == "dense_4"
    rows = [line.split()[:3] for line in str(report).splitlines()]
    assert next(row for row in rows if row and row[0].isdecimal()) == [
        "5",
        "FULLY_CONNECTED",
        "dense_4",
    ]


def test_without_it_the_error_is_small(report: SensitivityReport) -> None:
    (kept,) = report.float_operators("int8", max_error=0.2)
    assert kept == 5
    assert report.total("int8", [kept]) < report.total("int8") / 5
    bound = report.total("int8", [kept])
    assert report.float_operators("int8", max_total=bound * 1.01) == (kept,)
    assert len(report.float_operators("int8", max_total=bound * 0.99)) == 2
    assert report.float_operators("int8", max_error=math.inf) == ()


@pytest.mark.parametrize("scheme", ["int8", "dynamic"])
class TestRecipe:
    """The recipe in litert-quantizer."""

    pytestmark = litert

    def test_it_keeps_the_layer_in_float(
        self,
        scheme: str,
        report: SensitivityReport,
        fragile: bytes,
        images: list[np.ndarray],
        quantized: Callable[..., bytes],
        stock_error: Callable[..., float],
    ) -> None:
        seen = {"name": "input", "samples": images} if scheme == "int8" else {}
        plain = quantized(fragile, report.recipe(scheme, []), **seen)
        spared = quantized(fragile, report.recipe(scheme, [5]), **seen)
        assert weight_types(plain) == dict.fromkeys(weight_types(plain), "int8")
        types = weight_types(spared)
        assert types.pop("dense_4/weights") == "float32"
        assert set(types.values()) == {"int8"}
        bad, good = (stock_error(fragile, m, images) for m in (plain, spared))
        assert good < bad / 5
        assert bad == pytest.approx(report.whole[scheme].error, rel=0.1)


def weight_types(content: bytes) -> dict[str, str]:
    tensors = read_model(content).subgraphs[0].tensors
    return {t.name: str(t.dtype) for t in tensors if t.name.endswith("/weights")}


def test_activations_of_unequal_channels() -> None:
    """A channel 1000 times as large makes the tensor's writer and readers sensitive, in int8."""
    rng = np.random.default_rng(0)
    first, second, third = (rng.normal(0, 0.3, (8, 8)).astype(np.float32) for _ in range(3))
    first[0] *= 1000
    second[:, 0] /= 1000
    builder = ModelBuilder()
    x = builder.input((1, 8), np.float32, "x")
    for name, weights in (("a", first), ("b", second), ("c", third)):
        y = builder.tensor((1, 8), name=name)
        w = builder.constant(weights, f"{name}/weights")
        builder.operator(
            "FULLY_CONNECTED", [x, w], [y], FullyConnectedOptions(ActivationFunctionType.NONE)
        )
        x = y
    builder.outputs(x)
    samples = [rng.normal(size=(1, 8)).astype(np.float32) for _ in range(4)]
    report = jd.quantization_sensitivity(builder.build(), samples, "int8,int16x8,dynamic")
    assert {o.tensor for o in report.ranked("int8")[:2]} == {"a", "b"}
    errors = {o.tensor: o.errors for o in report.operators}
    assert errors["a"]["int8"].error > 10 * errors["c"]["int8"].error
    assert errors["a"]["int16x8"].error < errors["a"]["int8"].error / 10
    assert errors["a"]["dynamic"].error < errors["a"]["int8"].error / 10  # floats between


@pytest.mark.litert
@pytest.mark.filterwarnings("ignore:Warning. Enabling `experimental_preserve_all_tensors`")
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8", pytest.param("dynamic", marks=pytest.mark.exhaustive)])
def test_errors_are_those_of_quantized_operators(
    scheme: str, quantized: Callable[..., bytes], stock_error: Callable[..., float]
) -> None:
    """A trained network: each operator quantized by litert-quantizer, run by stock LiteRT."""
    task = TASKS["classification"]
    content = task.network()
    pictures = [task.inputs(task.picture(seed)) for seed in range(4)]
    samples = [x.astype(np.float32) for x in pictures]
    report = jd.quantization_sensitivity(content, samples, scheme)
    all_of_them = report.recipe(scheme, [])
    seen = None
    if scheme == "int8":
        seen = quantized.ranges(content, all_of_them, "image", samples)  # type: ignore[attr-defined]
    simulated, real = [], []
    for o in report.ranked(scheme):
        if o.op == "FULLY_CONNECTED":
            continue  # it reads an output of the model, which becomes an integer
        single = quantized(content, only(scheme, o.op, o.tensors), seen)
        simulated.append(o.errors[scheme].error)
        real.append(stock_error(content, single, samples))
    assert len(real) >= 7
    assert rank_correlation(simulated, real) > 0.95
    np.testing.assert_allclose(simulated, real, rtol=0.1)  # XNNPACK rounds in another way


def only(scheme: str, op: str, tensors: tuple[str, ...]) -> list[dict[str, Any]]:
    scope = "".join(f"{name};" for name in tensors)
    return [
        {
            "regex": f"^{scope}$",
            "operation": op,
            "algorithm_key": "min_max_uniform_quantize",
            "op_config": SCHEMES[scheme].config,
        }
    ]


def rank_correlation(a: list[float], b: list[float]) -> float:
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])
