"""The float view of a GPU or a TPU holds filters and tables of few bits as the file does."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing.running import run_once
from tests.support.decoders import VOCABULARY, WIDTH, quantized_decoder

ROWS = 3


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_equals_the_view_of_floats(lowered: Callable[..., Any], platform: str) -> None:
    partition, (got,) = lowered(quantized_decoder(ROWS), context=LoweringContext(platform))
    (ids,) = np.random.default_rng(1).normal(0, 1, (1, ROWS)).astype(np.int32)
    options: Any = {"platform": "cpu", "quant_mode": "float_view"}
    delegate = jd.JaxDelegate(require_full_delegation=True, **options)
    model = quantized_decoder(ROWS)
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    ids = np.maximum(ids, 0)
    (want,) = run_once(interpreter, [ids])
    assert partition.inputs
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_program_holds_the_bits_of_the_file(lowered: Callable[..., Any], platform: str) -> None:
    partition, _ = lowered(quantized_decoder(ROWS), context=LoweringContext(platform))
    values = [partition.value(weight) for weight in partition.preparations]
    bits = sum(v.size * (4 if v.dtype == ml_dtypes.int4 else 8 * v.itemsize) for v in values)
    table = 8 * VOCABULARY * WIDTH
    assert bits < 8 * len(quantized_decoder(ROWS)) + table  # once for each operator that reads it


def test_a_cpu_and_parameters_are_floats(lowered: Callable[..., Any]) -> None:
    """A CPU's own kernels read integers in integer mode; parameters are differentiated."""
    partition, _ = lowered(quantized_decoder(ROWS))
    assert {partition.value(w).dtype for w in partition.preparations} == {np.dtype(np.float32)}
    params: Any = jd.load(quantized_decoder(ROWS)).function()[1]
    assert {str(value.dtype) for value in jax.tree.leaves(params)} == {"float32"}


def test_a_constant_that_another_operator_reads() -> None:
    """It needs floats, so every operator gets them."""
    subgraph = read_model(quantized_decoder(ROWS)).subgraphs[0]
    specs = {i: t.spec() for i, t in enumerate(subgraph.tensors)}
    table = subgraph.operators[0].inputs[1]
    assert table in fake_quantization.read_as_stored(subgraph.operators, specs)
    reads_first = dataclasses.replace(subgraph.operators[1], index=9, inputs=(table, table))
    assert table not in fake_quantization.read_as_stored([*subgraph.operators, reads_first], specs)
