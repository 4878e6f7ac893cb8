"""The device of the tests in this folder, and their comparisons."""

import os
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import Tolerance
from jaxdelegate.testing.running import run_once

PLATFORM = os.environ.get("JAXDELEGATE_GPU_PLATFORM", "gpu")
HALVES = ("float16", "bfloat16")
HALF = Tolerance(of_largest=1e-2)


def has_platform() -> bool:
    try:
        return bool(jax.devices(PLATFORM))
    except RuntimeError:
        return False


NEEDS_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_platform(), reason=f"JAX has no {PLATFORM} here"),
]


def run(
    model: bytes, feeds: Sequence[np.ndarray], **options: object
) -> tuple[list[np.ndarray], jd.JaxDelegate]:
    delegate = jd.JaxDelegate({"platform": PLATFORM, **options})
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    return run_once(interpreter, feeds), delegate


def reference(model: bytes, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    return run_once(jd.Interpreter(model_content=model), feeds)


def stock(model: bytes, feeds: Sequence[np.ndarray], *, exact: bool = False) -> list[np.ndarray]:
    """Run LiteRT with XNNPACK, or its reference kernels."""
    kernels = OpResolverType.BUILTIN_REF if exact else OpResolverType.AUTO
    interpreter = StockInterpreter(model_content=model, experimental_op_resolver_type=kernels)
    return run_once(interpreter, feeds)
