"""Lists, grids and configurations are litert-quantizer's own."""

import inspect
import json
from typing import Any

import numpy as np
import pytest

from jaxdelegate.sensitivity import grids, variants
from jaxdelegate.sensitivity.schemes import SCHEMES

policy = pytest.importorskip("litert_quantizer.default_policy", reason="needs litert-quantizer")
tensors = pytest.importorskip(
    "litert_quantizer.algorithms.uniform_quantize.uniform_quantize_tensor"
)
common = pytest.importorskip("litert_quantizer.algorithms.uniform_quantize.common_quantize")
qtyping = pytest.importorskip("litert_quantizer.qtyping")
recipes = pytest.importorskip("litert_quantizer.recipe")

# Our schemes in its policy and its recipes.
NAMES = {
    "int8": ("static_wi8_ai8", "static_wi8_ai8"),
    "int16x8": ("static_wi8_ai16", "static_wi8_ai16"),
    "dynamic": ("dynamic_wi8_afp32", "dynamic_wi8_afp32"),
    "int4": ("dynamic_wi4_afp32_blockwise", "dynamic_wi4b32_afp32"),
}
# Not operators of a file, or only for its own composites.
VIRTUAL = {"INPUT", "OUTPUT", "STABLEHLO_COMPOSITE"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_operators(scheme: str) -> None:
    listed = json.loads(policy.DEFAULT_JSON_POLICY)["ops_per_config"][NAMES[scheme][0]]
    named = {"TRANSPOSE_CONV" if op == "CONV_2D_TRANSPOSE" else op for op in listed}
    assert SCHEMES[scheme].operators == named - VIRTUAL


@pytest.mark.parametrize("scheme", SCHEMES)
def test_configuration(scheme: str) -> None:
    (rule,) = getattr(recipes, NAMES[scheme][1])()
    assert SCHEMES[scheme].config == rule["op_config"]


def params(values: np.ndarray, axis: Any, bits: int, *, symmetric: bool, granularity: str) -> Any:
    """The quantizer's scale and zero point for values that share them over `axis`."""
    low, high = values.min(axis, keepdims=True), values.max(axis, keepdims=True)
    kind = getattr(qtyping.QuantGranularity, granularity)
    point, scale = tensors.tensor_zp_scale_from_min_max(low, high, bits, symmetric, kind)
    return scale, point


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("limits", [(-1.0, 3.0), (0.5, 2.0), (-7.0, -1.0), (0.0, 0.0)])
def test_activations(bits: int, limits: tuple[float, float]) -> None:
    values = np.array(limits, np.float32)
    scale, point = params(values, None, bits, symmetric=bits == 16, granularity="TENSORWISE")
    grid = grids.grid_of(limits, bits)
    np.testing.assert_allclose(grid.scale, scale.item(), rtol=1e-6)
    assert grid.zero_point == point.item()


@pytest.mark.parametrize("axis", [0, 3])
def test_weights_by_channel(axis: int) -> None:
    values = np.random.default_rng(axis).normal(size=(4, 3, 3, 8)).astype(np.float32)
    values[(slice(None),) * axis + (1,)] = 0
    others = tuple(i for i in range(4) if i != axis)
    scale, point = params(values, others, 8, symmetric=True, granularity="CHANNELWISE")
    own = qtyping.UniformQuantParams(
        scale=scale, zero_point=point, num_bits=8, symmetric=True, quantized_dimension=axis
    )
    want = tensors.uniform_quantize(values, own) * scale
    np.testing.assert_allclose(grids.by_channel(values, axis), want, rtol=1e-6)
    np.testing.assert_allclose(grids.channel_scales(values, axis), scale.reshape(-1), rtol=1e-6)


def test_weights_in_blocks() -> None:
    values = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    blocks = values.reshape(5, 2, 32)
    scale, _ = params(blocks, -1, 4, symmetric=True, granularity="BLOCKWISE_32")
    own = qtyping.UniformQuantParams(
        scale=scale[..., 0],
        zero_point=np.zeros((5, 2), np.int32),
        num_bits=4,
        symmetric=True,
        quantized_dimension=1,
        block_size=32,
    )
    q = tensors.uniform_quantize(values, own, is_blockwise_quant=True)
    want = (q.reshape(5, 2, 32) * scale).reshape(5, 64)
    np.testing.assert_allclose(grids.in_blocks(values, 32), want, rtol=1e-6)
    values[0, :32] = 0  # the quantizer divides by zero here
    assert not grids.in_blocks(values, 32)[0, :32].any()


def test_biases() -> None:
    bias, scales = np.array([0.3, 5.0], np.float32), np.array([0.1, 1e-6], np.float32)
    own = qtyping.UniformQuantParams(
        scale=scales, zero_point=np.zeros(2, np.int32), num_bits=8, quantized_dimension=0
    )
    data = qtyping.UniformQuantParams(
        scale=np.array([0.5], np.float32),
        zero_point=np.zeros(1, np.int32),
        num_bits=8,
        quantized_dimension=None,
    )
    found = tensors.symmetric_quantize_bias_tensor(bias, data, own)
    got = grids.bias_on_grid(bias, np.float32(0.5), scales)
    np.testing.assert_allclose(got, found.quantized_data * found.scale, rtol=1e-6)


def test_biases_saturate() -> None:
    """The bias of a channel without weights does not fit in int32."""
    got = grids.bias_on_grid(np.float32([5.0]), np.float32(0.5), np.float32([1e-11]))
    np.testing.assert_allclose(got, (2.0**31 - 1) * 0.5e-11, rtol=1e-6)


def test_fixed_results() -> None:
    """SOFTMAX, LOGISTIC and TANH have the grids that kernels require."""
    for bits in (8, 16):
        grid = grids.fixed_grid("TANH", bits)
        assert grid is not None
        assert (float(grid.scale), grid.zero_point) == (2.0 ** (1 - bits), 0)
    softmax = grids.fixed_grid("SOFTMAX", 8)
    assert softmax is not None
    assert (float(softmax.scale), softmax.zero_point) == (1 / 256, -128)
    assert grids.fixed_grid("ADD", 8) is None


def test_shared_scales() -> None:
    """The operators whose tensors share a scale, from the source of the quantizer's functions."""
    inspected = {
        name: source_of(name)
        for name in SCHEMES["int8"].operators
        if hasattr(common, f"materialize_{name.lower()}")
    }
    assert len(inspected) > 35
    for name, source in inspected.items():
        assert (name in variants.SAME_AS_INPUT) == ("SAME_AS_INPUT_SCALE" in source), name
        assert (name in variants.SAME_AS_OUTPUT) == ("SAME_AS_OUTPUT_SCALE" in source), name


def source_of(operator: str) -> str:
    return inspect.getsource(getattr(common, f"materialize_{operator.lower()}"))
