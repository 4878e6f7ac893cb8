"""Compares a partition in float32 and in reduced precision to find operators that need float32.

Each operator runs three times in one program: in float32; in reduced precision; and in reduced
precision on inputs computed in float32, to separate its own error from that of its inputs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.lowering.computation import LoweredOperator, LoweredPartition
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.pjrt import client
from jaxdelegate.report.precision import OperatorPrecision

# The tolerance of half-precision results, relative to the largest value of each tensor.
ERROR_BOUND = 1e-2

Lower = Callable[[PrecisionPolicy], LoweredPartition]
Rows = tuple[OperatorPrecision, ...]


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """The errors of one partition's operators, and the indices of those to keep in float32."""

    operators: Rows
    float32_operators: tuple[int, ...]


def probe(
    lower: Lower,
    policy: PrecisionPolicy,
    values: Sequence[Any],
    device: jax.Device,
    error_bound: float = ERROR_BOUND,
) -> ProbeResult:
    """Find the operators whose own error under a policy exceeds the bound."""
    policy = dataclasses.replace(policy, rounds_exactly=True)
    rows = compare(lower(policy.in_float32()), lower(policy), values, device)
    wrong = {o.index for o in rows if o.is_wrong(error_bound)}.union(_first_to_lose(rows))
    return ProbeResult(rows, tuple(sorted(wrong.union(policy.float32_operators))))


def _first_to_lose(rows: Rows) -> list[int]:
    """If no operator loses values on exact inputs, the first one whose results lose values.

    Those that read infinities lose values too, but do not need float32.
    """
    is_own = any(o.own_lost for o in rows)
    return [] if is_own else [o.index for o in rows if o.lost][:1]


def guarded(lower: Lower, policy: PrecisionPolicy, device: jax.Device) -> PrecisionPolicy:
    """The policy with the operators in float32 that need it on seeded random values."""
    if not policy.is_reduced:
        return policy
    partition = lower(policy.in_float32())
    inputs = [partition.outside(i) for i in (*partition.inputs, *partition.states)]
    result = probe(lower, policy, seeded_values(inputs), device)
    return dataclasses.replace(policy, float32_operators=result.float32_operators)


def compare(
    exact: LoweredPartition,
    reduced: LoweredPartition,
    values: Sequence[Any],
    device: jax.Device,
) -> Rows:
    """Run both on the same values; a row for each operator with float results."""
    probed: list[tuple[LoweredOperator, tuple[int, ...]]] = []

    def program(exact_w: list[Any], reduced_w: list[Any], values: list[Any]) -> jax.Array:
        exact_weights = dict(zip(exact.preparations, exact_w, strict=True))
        reduced_weights = dict(zip(reduced.preparations, reduced_w, strict=True))
        known = exact.unpack(values, exact_weights)
        known_reduced = reduced.unpack(values, reduced_weights)
        numbers = []
        for step, other in zip(exact.operators, reduced.operators, strict=True):
            # Without the barrier, XLA recomputes earlier operators for each statistic.
            own, right, wrong = jax.lax.optimization_barrier(  # type: ignore[no-untyped-call]
                (
                    reduced.run_step(other, known, reduced_weights),
                    exact.run_step(step, known, exact_weights),
                    reduced.run_step(other, known_reduced, reduced_weights),
                )
            )
            known, known_reduced = {**known, **right}, {**known_reduced, **wrong}
            floats = tuple(i for i in step.outputs if i in own and _is_probed(exact.specs.get(i)))
            if floats:
                probed.append((other, floats))
                numbers.append(_numbers(floats, known, known_reduced, own))
        return jnp.stack(numbers) if numbers else jnp.zeros((0, 5))

    with client.as_programs(device):
        placed = [
            [jax.device_put(p.value(weight), device) for weight in p.preparations]
            for p in (exact, reduced)
        ]
        numbers = np.asarray(jax.jit(program)(*placed, list(values)))
    rows = zip(probed, numbers, strict=True)
    return tuple(_row(reduced, *which, row) for which, row in rows)


def _is_probed(spec: TensorSpec | None) -> bool:
    return spec is not None and spec.dtype == np.float32 and 0 not in spec.shape


def _numbers(
    indices: Sequence[int],
    exact: Mapping[int, Any],
    reduced: Mapping[int, Any],
    own: Mapping[int, Any],
) -> jax.Array:
    """Largest magnitude, error, own error, lost, own lost: for all results of one operator."""
    rows = []
    for i in indices:
        y = exact[i].astype(np.float32)
        finite = jnp.isfinite(y)
        largest = jnp.max(jnp.where(finite, jnp.abs(y), 0))
        scale = jnp.where(largest > 0, largest, 1)
        errors, lost = zip(*(_difference(y, finite, a[i]) for a in (reduced, own)), strict=True)
        rows.append(jnp.stack([largest, *(e / scale for e in errors), *lost]))
    return jnp.max(jnp.stack(rows), axis=0)


def _difference(y: jax.Array, finite: jax.Array, other: Any) -> tuple[jax.Array, jax.Array]:
    """The largest difference where both are finite, and the number of values only finite in `y`."""
    other = other.astype(np.float32)
    both = finite & jnp.isfinite(other)
    error = jnp.max(jnp.where(both, jnp.abs(other - y), 0))
    return error, jnp.sum(finite & ~both).astype(np.float32)


def _row(
    partition: LoweredPartition, step: LoweredOperator, floats: tuple[int, ...], numbers: np.ndarray
) -> OperatorPrecision:
    largest, error, own, lost, own_lost = map(float, numbers)
    return OperatorPrecision(
        index=step.operator.index,
        op=step.name,
        tensor=partition.specs[floats[0]].name,
        largest=largest,
        error=error,
        own_error=own,
        lost=int(lost),
        own_lost=int(own_lost),
        is_reduced=any(i in partition.reduced for i in floats),
        leaves=any(i in partition.outputs for i in floats),
    )


def seeded_values(specs: Sequence[TensorSpec], seed: int = 0) -> list[np.ndarray]:
    """Values for tensors: floats in [-1, 1], quantized ones over their range, others zero."""
    rng = np.random.default_rng(seed)
    return [_seeded(rng, spec) for spec in specs]


def _seeded(rng: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    if spec.is_variable:
        return np.zeros(spec.shape, spec.dtype)
    if spec.is_quantized and spec.dtype.kind in "iu":
        info = np.iinfo(spec.dtype)
        return rng.integers(info.min, info.max, spec.shape, spec.dtype, endpoint=True)
    if spec.dtype in FLOATS:
        return rng.uniform(-1, 1, spec.shape).astype(spec.dtype)
    return np.zeros(spec.shape, spec.dtype)
