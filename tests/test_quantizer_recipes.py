"""A small network quantized by each recipe of litert-quantizer runs as in LiteRT."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType

import jaxdelegate as jd
from jaxdelegate.model.records import read_model
from tests.support.networks import small_classifier

quantizer = pytest.importorskip("litert_quantizer.quantizer", reason="needs litert-quantizer")
recipe = pytest.importorskip("litert_quantizer.recipe")

pytestmark = [
    pytest.mark.litert,
    # The calibrator keeps every tensor of its own interpreter.
    pytest.mark.filterwarnings("ignore:Warning. Enabling `experimental_preserve_all_tensors`"),
]
DYNAMIC = ["dynamic_wi8_afp32", "dynamic_wi4_afp32"]
WEIGHT_ONLY = ["weight_only_wi8_afp32", "weight_only_wi4_afp32"]
STATIC = ["static_wi8_ai8", "static_wi8_ai16"]
BLOCKWISE = (
    "dynamic_wi4b32_afp32"  # LiteRT runs it only in XNNPACK: its own kernel ignores a fused RELU
)
# Probabilities of about 1/32: float32 sums in another order.
CLOSE = {"rtol": 2e-6, "atol": 1e-7}


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, 16, 16, 3)).astype(np.float32)


@functools.cache
def quantized(name: str) -> bytes:
    q = quantizer.Quantizer(bytearray(small_classifier()))
    q.load_quantization_recipe(getattr(recipe, name)())
    images = {"serving_default": [{"input": image(seed)} for seed in range(8)]}
    observed = q.calibrate(images, num_threads=1) if q.need_calibration else None
    return bytes(q.quantize(observed).quantized_model)


def answer(interpreter: Any, x: np.ndarray) -> np.ndarray:
    """The stored output; `x` is quantized for an integer input."""
    interpreter.allocate_tensors()
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    if np.dtype(given["dtype"]) != np.float32:
        scale, zero_point = given["quantization"]
        limits = np.iinfo(given["dtype"])
        x = np.clip(np.rint(x / scale) + zero_point, limits.min, limits.max).astype(given["dtype"])
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(result["index"]))


def stock(name: str, x: np.ndarray, kind: OpResolverType = OpResolverType.BUILTIN_REF) -> Any:
    content = quantized(name)
    interpreter = StockInterpreter(
        model_content=content, experimental_op_resolver_type=kind, num_threads=1
    )
    return answer(interpreter, x)


def reference(name: str, x: np.ndarray) -> np.ndarray:
    return answer(jd.Interpreter(model_content=quantized(name)), x)


def delegated(name: str, x: np.ndarray, mode: Any) -> np.ndarray:
    delegate = jd.JaxDelegate(quant_mode=mode, require_full_delegation=True)
    content = quantized(name)
    return answer(jd.Interpreter(model_content=content, experimental_delegates=[delegate]), x)


def in_float_view(name: str, x: np.ndarray) -> np.ndarray:
    return delegated(name, x, "float_view")


def in_integers(name: str, x: np.ndarray) -> np.ndarray:
    return delegated(name, x, "integer")


X = image(99)


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("run", [reference, in_integers])
def test_static_recipes_give_the_same_integers(name: str, run: Callable[..., np.ndarray]) -> None:
    want, got = stock(name, X), run(name, X)
    assert got.dtype == want.dtype == np.dtype(np.int8 if name.endswith("ai8") else np.int16)
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(want)) > 5


@pytest.mark.parametrize(("name", "steps"), [("static_wi8_ai8", 1), ("static_wi8_ai16", 2)])
def test_static_recipes_in_the_float_view(name: str, steps: int) -> None:
    want, got = stock(name, X), in_float_view(name, X)
    assert got.dtype == want.dtype
    assert np.abs(got.astype(np.int64) - want).max() <= steps


@pytest.mark.parametrize("name", DYNAMIC + WEIGHT_ONLY)
@pytest.mark.parametrize("run", [reference, in_integers])
def test_float_activations_give_the_same_reals(name: str, run: Callable[..., np.ndarray]) -> None:
    np.testing.assert_allclose(run(name, X), stock(name, X), **CLOSE)


@pytest.mark.parametrize("name", DYNAMIC + WEIGHT_ONLY)
def test_the_float_view_computes_on_dequantized_weights(name: str) -> None:
    """Dynamic range recipes quantize the same weights as those that dequantize them first."""
    alike = name.replace("dynamic", "weight_only")
    np.testing.assert_allclose(in_float_view(name, X), stock(alike, X), **CLOSE)


@pytest.mark.parametrize("run", [reference, in_integers])
def test_blocks_give_the_same_reals_as_xnnpack(run: Callable[..., np.ndarray]) -> None:
    want = stock(BLOCKWISE, X, OpResolverType.BUILTIN)
    np.testing.assert_allclose(run(BLOCKWISE, X), want, **CLOSE)


def test_the_float_view_dequantizes_blocks() -> None:
    """It does not quantize activations; the kernel rounds them to 8 bits in every layer."""
    want = stock(BLOCKWISE, X, OpResolverType.BUILTIN)
    np.testing.assert_allclose(in_float_view(BLOCKWISE, X), want, rtol=2e-2)


@pytest.mark.parametrize("name", DYNAMIC + WEIGHT_ONLY + STATIC + [BLOCKWISE])
def test_recipes_quantize_the_filters(name: str) -> None:
    """Shows that the other tests run quantized filters."""
    tensors = read_model(quantized(name)).subgraphs[0].tensors
    filters = [t for t in tensors if t.data is not None and t.name.endswith("weights")]
    known = {t.name: t.quantization for t in filters if t.quantization is not None}
    assert {str(t.dtype) for t in filters if t.name in known} == {
        "int4" if "wi4" in name else "int8"
    }
    blocks = {q.blockwise.block_size for q in known.values() if q.blockwise is not None}
    assert blocks == ({32} if name == BLOCKWISE else set())
