"""The options that speak of precision, for one platform -> its precision policy.

Source of the priorities: delegates/gpu/api.cc, ResolveAutoPriority and GetPosition;
delegates/gpu/delegate.cc for is_precision_loss_allowed; delegates/gpu/cl/api.cc for what the place
of MAX_PRECISION means.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Literal

from jaxdelegate.kernels import library as kernels
from jaxdelegate.kernels.processor import cpu_features
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT16, PrecisionPolicy
from jaxdelegate.options import DelegateOptions, Priority

Priorities = tuple[Priority, Priority, Priority]
Dtype = Literal["float32", "tensorfloat32", "float16", "bfloat16"]

_REDUCED = {"float16": FLOAT16, "bfloat16": BFLOAT16}
_MISSING_ORDER: tuple[Priority, ...] = ("min_latency", "max_precision", "min_memory_usage")
_BEHIND: dict[Priority, tuple[Priority, Priority]] = {
    "min_latency": ("min_memory_usage", "max_precision"),
    "min_memory_usage": ("max_precision", "min_latency"),
    "max_precision": ("min_latency", "min_memory_usage"),
}
# Instruction sets with bfloat16 dot products, by their names in /proc/cpuinfo.
_BFLOAT16_DOTS = frozenset(("avx512_bf16", "amx_bf16"))
# Of bfloat16 where it may be used but need not be: rounding operands takes time, too. A Zen 4 gains
# 1.9; a processor whose bfloat16 instruction takes twice as long as that of float32 gains nothing.
_LEAST_GAIN = 1.4
# Below these XLA:CPU's float32 product is the faster one: measured on AVX512-BF16, where a single
# row costs ten times as much in bfloat16.
_CPU_ROWS, _CPU_COLUMNS = 32, 64


def priorities(options: DelegateOptions) -> Priorities:
    """The three priorities in force, no "auto" left."""
    first, second, third = (
        options.inference_priority1,
        options.inference_priority2,
        options.inference_priority3,
    )
    if options.is_precision_loss_allowed is not None:
        loss = options.is_precision_loss_allowed
        first, second, third = ("min_latency" if loss else "max_precision"), "auto", "auto"
    if second == "auto":
        return (first, *_BEHIND[first])
    if third == "auto":
        third = next(p for p in _MISSING_ORDER if p not in (first, second))
    return first, second, third


def compute_dtype(options: DelegateOptions, platform: str, gain: Callable[[], float]) -> Dtype:
    """The dtype that the options ask for on a platform ("auto": the reduced one).

    Args:
        options: the delegate's.
        platform: "cpu", "gpu" or "tpu".
        gain: how many times the speed of float32 products bfloat16 has on the host's CPU.
    """
    asked = options.compute_dtype
    if asked is not None and asked != "auto":
        return asked
    is_precise = asked is None and priorities(options)[0] == "max_precision"
    return "float32" if is_precise else reduced_dtype(platform, gain)


def reduced_dtype(platform: str, gain: Callable[[], float]) -> Dtype:
    """What precision loss means on a platform; float32 where reduced precision gains nothing."""
    if platform == "gpu":
        return "float16"
    return "bfloat16" if platform == "tpu" or gain() >= _LEAST_GAIN else "float32"


def policy_here(options: DelegateOptions, platform: str) -> PrecisionPolicy:
    """The precision policy of the options on a platform, with this host's CPU."""
    return policy_for(options, platform, cpu_features(), kernels.bfloat16_gain)


def policy_for(
    options: DelegateOptions,
    platform: str,
    features: AbstractSet[str],
    gain: Callable[[], float],
) -> PrecisionPolicy:
    """The precision policy of the options on a platform; for `gain` see `compute_dtype`.

    `features` are the host CPU's instruction sets, named as in /proc/cpuinfo.
    """
    dtype = compute_dtype(options, platform, gain)
    kept = kept_operators(options)
    if platform == "cpu":
        policy = cpu_policy(dtype, features)
    else:
        policy = device_policy(dtype, platform, options.accumulate_float32 is not False)
    return dataclasses.replace(policy, float32_operators=kept if policy.is_reduced else ())


def quant_mode(options: DelegateOptions, platform: str) -> Literal["float_view", "integer"]:
    """How quantized operators run on a platform; on a GPU as TFLite's delegate runs them."""
    if options.quant_mode != "auto":
        return options.quant_mode
    return "integer" if platform == "cpu" else "float_view"


def kept_operators(options: DelegateOptions) -> tuple[int, ...]:
    """The operators that `float32_operators` names."""
    names = (options.float32_operators or "").split(",")
    return tuple(sorted({int(name) for name in names if name.strip()}))


def cpu_policy(dtype: Dtype, features: AbstractSet[str]) -> PrecisionPolicy:
    """On a CPU: float32, with bfloat16 factors in matrix products where it has them.

    XLA:CPU computes float16, and bfloat16 convolutions, in float32 after all. Our kernel decides
    for itself (`op_lowering.convolution.cpu_kernel`).
    """
    if dtype != "bfloat16" or not features & _BFLOAT16_DOTS:
        return PrecisionPolicy()
    return PrecisionPolicy(
        operand=BFLOAT16,
        least_rows=_CPU_ROWS,
        least_columns=_CPU_COLUMNS,
        reduces_convolutions=False,
    )


def device_policy(
    dtype: Dtype, platform: str = "gpu", accumulate_float32: bool = True
) -> PrecisionPolicy:
    """On a GPU or TPU: reduced storage and operands, float32 sums unless told otherwise.

    A TPU's matrix unit has no tensorfloat32; it computes float32 there.
    """
    if dtype == "tensorfloat32" and platform == "gpu":
        return PrecisionPolicy(dot_precision="tensorfloat32")
    if dtype not in _REDUCED:
        return PrecisionPolicy()
    return PrecisionPolicy(
        storage=_REDUCED[dtype],
        operand=_REDUCED[dtype],
        accumulate_float32=accumulate_float32,
        rounds_convolutions=platform == "gpu",
    )


def emulated_policy(dtype: Dtype) -> PrecisionPolicy:
    """A GPU's policy on any device: every rounding that may happen on a GPU happens.

    For operators that are lowered as for a GPU (LoweringContext.on_gpu).
    """
    return dataclasses.replace(device_policy(dtype), rounds_exactly=True)


def remark(options: DelegateOptions, platform: str, policy: PrecisionPolicy) -> str | None:
    """The warning that a requested dtype is ignored; None if it is used."""
    asked = options.compute_dtype
    used = policy.is_reduced or policy.dot_precision != "highest"
    if asked in (None, "float32", "auto") or used:
        return None
    return f"compute_dtype={asked!r} has no effect: this {platform.upper()} computes in float32"
