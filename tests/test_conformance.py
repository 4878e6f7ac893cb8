"""Recorded operator cases and real models, if they are next to the checkout."""

import json
import logging
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.op_cases import OpCase, Run, check, find_cases, through

SHARED = Path(__file__).parents[1].parent / "shared"
OP_CASES = list(find_cases(SHARED / "op_cases"))
QUANTIZED = [case for case in OP_CASES if case.quantization != "none"]
TESTS = sorted({case.path.parent.name for case in OP_CASES})
MODELS = SHARED / "models"
MANIFEST = json.loads((MODELS / "manifest.json").read_text()) if MODELS.exists() else []
FLOAT_KINDS = ("float", "fp16w", "integer", "string", "other")

# Unsupported cases and why. An entry that passes fails its test: remove it.
KNOWN_GAPS: dict[str, str] = {}

INTEGER = through(lambda: [jd.JaxDelegate(quant_mode="integer")])
RUNS = {"reference": through(list), "delegated": through(lambda: [jd.JaxDelegate()])}

absent = pytest.mark.skipif(not OP_CASES, reason="the recorded operator cases are not here")
no_models = pytest.mark.skipif(not MANIFEST, reason="the real models are not here")
pytestmark = pytest.mark.slow

Optimize = Callable[[bool], None]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "jaxdelegate")


def failure(case: OpCase, run: Run, optimize: Optimize) -> str | None:
    optimize(zlib.crc32(str(case).encode()) % 3 == 0)
    try:
        check(case, run)
    except (AssertionError, jd.JaxDelegateError) as error:
        return f"{case}: {error}"
    return None


@absent
@pytest.mark.parametrize("engine", list(RUNS))
@pytest.mark.parametrize("test", TESTS)
def test_recorded_operator_cases(
    test: str, engine: str, optimize: Optimize, is_exhaustive: bool
) -> None:
    """A third of the cases compile as models do, the others with few optimizations.

    Of each operator the first case is delegated and every twelfth one after it; --exhaustive: all.
    """
    cases = [case for case in OP_CASES if case.path.parent.name == test]
    if engine == "delegated" and not is_exhaustive:
        cases = cases[::12]
    failures = [
        failure(case, run_of(case, engine), optimize)
        for case in cases
        if str(case) not in KNOWN_GAPS
    ]
    assert [text for text in failures if text] == []


def run_of(case: OpCase, engine: str) -> Run:
    # The float view computes what the float network would, not what an integer kernel does.
    quantized = case.quantization != "none" and engine == "delegated"
    return INTEGER if quantized else RUNS[engine]


@absent
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(RUNS["reference"], id="reference"),
        pytest.param(INTEGER, id="integer", marks=pytest.mark.exhaustive),  # over a minute
    ],
)
def test_quantized_cases_are_equal(run: Run) -> None:
    equal = np.concatenate([equal_elements(case, run) for case in QUANTIZED])
    assert equal.mean() >= 0.99, f"{equal.sum()} of {equal.size}"


def equal_elements(case: OpCase, run: Run) -> np.ndarray:
    """bool [elements of all outputs]; empty if LiteRT itself is not deterministic."""
    if case.meta.get("nondeterministic"):
        return np.empty(0, bool)
    pairs = zip(run(case.model, case.inputs), case.expected, strict=True)
    return np.concatenate([np.ravel(is_equal(y, want)) for y, want in pairs])


def is_equal(y: np.ndarray, want: np.ndarray) -> np.ndarray:
    equal: np.ndarray = y == want
    return equal | (np.isnan(y) & np.isnan(want)) if want.dtype.kind == "f" else equal


@absent
@pytest.mark.parametrize("name", sorted(KNOWN_GAPS))
def test_known_gaps_are_still_gaps(name: str, optimize: Optimize) -> None:
    case = OpCase(SHARED / "op_cases" / name)
    assert failure(case, RUNS["delegated"], optimize) is not None


def runnable(entry: Mapping[str, Any]) -> bool:
    return bool(entry["litert_runs"]) and entry["kind"] in FLOAT_KINDS


def litert_outputs(path: Path, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """From the reference kernels, or from the others if those lack an operator."""
    kinds = (
        OpResolverType.BUILTIN_REF,
        OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        OpResolverType.AUTO,
    )
    for kind in kinds:
        try:
            return run_once(StockInterpreter(str(path), experimental_op_resolver_type=kind), arrays)
        except (RuntimeError, ValueError):
            if kind is kinds[-1]:
                raise
    raise AssertionError


def assert_stock_agrees(path: Path, arrays: list[np.ndarray]) -> None:
    """The stock interpreter computes the same with a delegate and without."""

    def stock(kernels: OpResolverType, *delegates: jd.JaxDelegate) -> StockInterpreter:
        return StockInterpreter(
            str(path),
            experimental_delegates=list(delegates),
            experimental_op_resolver_type=kernels,
        )

    kernels, delegate = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, jd.JaxDelegate()
    try:
        stock(kernels).allocate_tensors()
    except RuntimeError:  # it has custom operators that only XNNPACK knows
        kernels = OpResolverType.AUTO
    delegated = stock(kernels, delegate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # models that compute NaN do so in both
        want = run_once(stock(kernels), arrays)
        assert_close(run_once(delegated, arrays), want, tolerance=NETWORK)
    assert delegate.last_error is None


@no_models
@pytest.mark.litert
@pytest.mark.usefixtures("compiled_once", "optimized")  # the interpreters share programs
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(m["file"], marks=[pytest.mark.exhaustive] * (number % 4 > 0))
        for number, m in enumerate(filter(runnable, MANIFEST))
    ],
)
def test_real_models(file: str) -> None:
    path = MODELS / file
    reference = jd.Interpreter(path)
    arrays = random_inputs(reference.get_input_details())
    want = litert_outputs(path, arrays)
    assert_close(run_once(reference, arrays), want, tolerance=NETWORK)
    delegated = jd.Interpreter(path, experimental_delegates=[jd.JaxDelegate()])
    assert_close(run_once(delegated, arrays), want, tolerance=NETWORK)
    assert_stock_agrees(path, arrays)


FULLY_DELEGATED = [
    "networks/mobilenet_v1_0.25_224_1_default_1.tflite",
    "networks/image_segmenter__deeplabv3.tflite",
    "zoo/posenet_mnv1_050_353x257.tflite",
    "zoo/ssd_mnv2_300_postprocess.tflite",
    "networks/face_detection_front.tflite",
    "networks/face_blendshapes.tflite",
    "networks/selfie_segmenter.tflite",
    "networks/style_transfer_f16_384.tflite",
]


@no_models
@pytest.mark.parametrize("file", FULLY_DELEGATED)
def test_fully_delegated_models(file: str) -> None:
    delegate = jd.JaxDelegate(require_full_delegation=True)
    jd.Interpreter(MODELS / file, experimental_delegates=[delegate])
    assert delegate.report().n_partitions == 1
