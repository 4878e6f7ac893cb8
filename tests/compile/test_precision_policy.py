"""Options that speak of precision -> policies, for platforms that need not be there."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from jaxdelegate.compile import precision_policy
from jaxdelegate.errors import OptionError
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT16, FLOAT32, PrecisionPolicy
from jaxdelegate.options import DelegateOptions

Processor = tuple[frozenset[str], Callable[[], float]]  # features, and the gain of bfloat16
FAST: Processor = (frozenset(["avx2", "avx512_bf16"]), lambda: 1.9)
SLOW: Processor = (frozenset(["avx2", "avx512_bf16"]), lambda: 1.0)
WITHOUT: Processor = (frozenset(["avx2"]), lambda: 0.0)
FLOAT32_ANYHOW = {"compute_dtype": "float32", "inference_priority1": "min_latency"}
ALL = ("max_precision", "min_latency", "min_memory_usage")


def options(*order: str, **more: object) -> DelegateOptions:
    names = ("inference_priority1", "inference_priority2", "inference_priority3")
    return DelegateOptions.of({**dict(zip(names, order, strict=False)), **more})


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (("max_precision",), ("max_precision", "min_latency", "min_memory_usage")),
        (("min_latency",), ("min_latency", "min_memory_usage", "max_precision")),
        (("min_memory_usage",), ("min_memory_usage", "max_precision", "min_latency")),
        (
            ("max_precision", "min_memory_usage"),
            ("max_precision", "min_memory_usage", "min_latency"),
        ),
        (("min_latency", "min_memory_usage"), ("min_latency", "min_memory_usage", "max_precision")),
        (("min_memory_usage", "min_latency"), ("min_memory_usage", "min_latency", "max_precision")),
    ],
)
def test_auto_priorities_as_in_tflite(given: tuple[str, ...], want: tuple[str, ...]) -> None:
    assert precision_policy.priorities(options(*given)) == want


def test_three_given_priorities_stay() -> None:
    for order in itertools.permutations(ALL):
        assert precision_policy.priorities(options(*order)) == order


@pytest.mark.parametrize(("loss", "first"), [(False, "max_precision"), (True, "min_latency")])
def test_is_precision_loss_allowed_overrides_priorities(loss: bool, first: str) -> None:
    given = options("min_memory_usage", is_precision_loss_allowed=loss)
    assert precision_policy.priorities(given)[0] == first


@pytest.mark.parametrize(
    ("given", "platform", "processor", "storage", "operand"),
    [
        ({}, "gpu", FAST, FLOAT32, FLOAT32),
        ({"is_precision_loss_allowed": False}, "gpu", FAST, FLOAT32, FLOAT32),
        ({"is_precision_loss_allowed": True}, "gpu", WITHOUT, FLOAT16, FLOAT16),
        ({"is_precision_loss_allowed": True}, "tpu", WITHOUT, BFLOAT16, BFLOAT16),
        ({"is_precision_loss_allowed": True}, "cpu", FAST, FLOAT32, BFLOAT16),
        ({"is_precision_loss_allowed": True}, "cpu", SLOW, FLOAT32, FLOAT32),
        ({"is_precision_loss_allowed": True}, "cpu", WITHOUT, FLOAT32, FLOAT32),
        ({"inference_priority1": "min_memory_usage"}, "gpu", WITHOUT, FLOAT16, FLOAT16),
        ({"inference_priority1": "min_latency"}, "cpu", FAST, FLOAT32, BFLOAT16),
        (FLOAT32_ANYHOW, "gpu", WITHOUT, FLOAT32, FLOAT32),
        ({"compute_dtype": "bfloat16"}, "gpu", WITHOUT, BFLOAT16, BFLOAT16),
        ({"compute_dtype": "bfloat16"}, "cpu", SLOW, FLOAT32, BFLOAT16),
        ({"compute_dtype": "bfloat16"}, "cpu", WITHOUT, FLOAT32, FLOAT32),
        ({"compute_dtype": "float16"}, "cpu", FAST, FLOAT32, FLOAT32),
        ({"compute_dtype": "auto"}, "gpu", WITHOUT, FLOAT16, FLOAT16),
        ({"compute_dtype": "auto"}, "cpu", FAST, FLOAT32, BFLOAT16),
        ({"compute_dtype": "auto"}, "cpu", SLOW, FLOAT32, FLOAT32),
        ({"compute_dtype": "tensorfloat32"}, "cpu", FAST, FLOAT32, FLOAT32),
    ],
)  # fmt: skip
def test_storage_and_factors(
    given: dict[str, object],
    platform: str,
    processor: Processor,
    storage: np.dtype,
    operand: np.dtype,
) -> None:
    policy = precision_policy.policy_for(DelegateOptions.of(given), platform, *processor)
    assert (policy.storage, policy.operand) == (storage, operand)
    assert policy.accumulate_float32


def test_the_default_is_true_float32_on_every_platform() -> None:
    for platform in ("cpu", "gpu", "tpu"):
        policy = precision_policy.policy_for(DelegateOptions(), platform, *FAST)
        assert policy == PrecisionPolicy()
        assert policy.dot_precision == "highest"


def test_tensorfloat32_on_a_gpu() -> None:
    policy = precision_policy.policy_for(
        DelegateOptions(compute_dtype="tensorfloat32"), "gpu", *WITHOUT
    )
    assert (policy.is_reduced, policy.dot_precision) == (False, "tensorfloat32")


def test_float16_sums_only_where_asked_for() -> None:
    given = DelegateOptions(is_precision_loss_allowed=True, accumulate_float32=False)
    assert precision_policy.policy_for(given, "gpu", *WITHOUT).total(FLOAT16) == FLOAT16
    assert precision_policy.policy_for(given, "cpu", *FAST).total(BFLOAT16) == FLOAT32


def test_operators_to_keep() -> None:
    given = DelegateOptions(compute_dtype="float16", float32_operators="17, 3,3")
    policy = precision_policy.policy_for(given, "gpu", *WITHOUT)
    assert policy.float32_operators == (3, 17)
    assert policy.of_operator(17).operand == FLOAT32
    assert policy.of_operator(4).operand == FLOAT16


def test_operators_to_keep_are_numbers() -> None:
    with pytest.raises(OptionError, match=r"float32_operators: expected numbers .* got 'SUM'"):
        DelegateOptions(float32_operators="3,SUM")


@pytest.mark.parametrize(
    ("dtype", "platform", "said"),
    [("float16", "cpu", True), ("tensorfloat32", "cpu", True), ("float16", "gpu", False)],
)
def test_a_dtype_that_is_not_used_is_said(dtype: str, platform: str, said: bool) -> None:
    given = DelegateOptions.of({"compute_dtype": dtype})
    policy = precision_policy.policy_for(given, platform, *WITHOUT)
    remark = precision_policy.remark(given, platform, policy)
    assert (remark is not None and "float32" in remark) == said


def test_the_gain_of_bfloat16_is_measured_where_it_decides() -> None:
    def gain() -> float:
        raise AssertionError("measured")

    for given in ({}, {"compute_dtype": "bfloat16"}, {"is_precision_loss_allowed": False}):
        precision_policy.policy_for(DelegateOptions.of(given), "cpu", frozenset(), gain)
    allowed = DelegateOptions(is_precision_loss_allowed=True)
    with pytest.raises(AssertionError, match="measured"):
        precision_policy.policy_for(allowed, "cpu", frozenset(), gain)
