"""Real models in the stock interpreter, with the delegate and without it."""

import json
import logging
import warnings
from pathlib import Path

import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.testing.running import random_inputs, run_once

MODELS = Path(__file__).parents[3] / "shared" / "models"
MANIFEST = json.loads((MODELS / "manifest.json").read_text()) if MODELS.exists() else []
FLOAT_KINDS = ("float", "fp16w", "integer", "string", "other")
FLOATS = sorted(m["file"] for m in MANIFEST if m["kind"] in FLOAT_KINDS and m["litert_runs"])

pytestmark = [
    pytest.mark.slow,
    pytest.mark.litert,
    pytest.mark.skipif(not MANIFEST, reason="the real models are not here"),
]


# The second choice: custom operators that only XNNPACK knows.
KERNELS = (OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.AUTO)


def stock(content: bytes, kernels: OpResolverType, *delegates: jd.SimpleDelegate) -> Interpreter:
    return Interpreter(
        model_content=content,
        experimental_delegates=list(delegates),
        experimental_op_resolver_type=kernels,
    )


def runnable(content: bytes) -> OpResolverType:
    try:
        stock(content, KERNELS[0]).allocate_tensors()
    except RuntimeError:
        return KERNELS[1]
    return KERNELS[0]


@pytest.mark.parametrize("name", FLOATS)
def test_float_models_agree(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "jaxdelegate")
    content = (MODELS / name).read_bytes()
    kernels, delegate = runnable(content), jd.JaxDelegate()
    plain, delegated = stock(content, kernels), stock(content, kernels, delegate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # models that compute NaN do so in both
        arrays = random_inputs(plain.get_input_details())
        assert_close(run_once(delegated, arrays), run_once(plain, arrays), tolerance=NETWORK)
    assert delegate.last_error is None
