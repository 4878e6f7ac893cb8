"""Constants that operators prepare differently for other input shapes."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import cpu_policy
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import ModelBuilder

W = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)


def dense() -> bytes:
    """x times a square matrix: [K, units] and [units, K] have the same shape."""
    builder = ModelBuilder()
    x = builder.input((1, 256), np.float32, "x", shape_signature=(-1, 256))
    y = builder.tensor((1, 256))
    builder.operator("FULLY_CONNECTED", [x, builder.constant(W), -1], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_resizing_prepares_them_anew(
    dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row and many are multiplied in other layouts, on a CPU in other dtypes too."""
    delegate = jd.JaxDelegate(platform="cpu")
    policy = cpu_policy(dtype, frozenset(["avx512_bf16"]))  # type: ignore[arg-type]
    context = LoweringContext(platform="cpu", precision=policy)
    monkeypatch.setattr(delegate.compiler, "context", context)
    interpreter = jd.Interpreter(model_content=dense(), experimental_delegates=[delegate])
    for rows in (1, 64, 1):
        x = np.random.default_rng(rows).normal(size=(rows, 256)).astype(np.float32)
        interpreter.resize_tensor_input(0, x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, x)
        interpreter.invoke()
        got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        want = x @ W.T
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max()
