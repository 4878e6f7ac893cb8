"""Simulates all variants of all operators in one compiled program.

A variant is one operator in one scheme, and has a number. The program computes the float network,
and every variant from the float network's values. Then it computes the network again for each
number, with that variant's result in place of the float one, by `jax.vmap` over the numbers. Only
values downstream of the variant depend on the number, so the float network and all variants are
computed once, and weights are not copied.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.function.subgraph import Lowering
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.lowering.computation import LoweredOperator, Weight
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.pjrt import client
from jaxdelegate.quant import jax_affine
from jaxdelegate.sensitivity.grids import Grid, Range
from jaxdelegate.sensitivity.variants import Variant

Known = Mapping[int, Any]
Weights = Mapping[Weight, Any]
# From an operator, all values before it, and its results: other results.
Changed = Callable[[LoweredOperator, Known, Known], Known]
Variants = Sequence[Variant]  # a variant's number is its position

_LARGEST = 3e38  # the quantizer's calibration ignores larger values
_CHUNK_BYTES = 2**28  # one operator's tensors, for all numbers of a run
NOTHING = -1  # not the number of a variant: the float network


@dataclasses.dataclass(frozen=True)
class Deviation:
    """The differences of variants' outputs from the float network's, as sums over samples."""

    signal: np.ndarray  # float64 [outputs], the sum of squares of the float network's outputs
    noise: np.ndarray  # float64 [numbers, outputs], the sum of squares of the differences
    changes: np.ndarray  # int64 [numbers], how many rows have their largest value elsewhere

    def __add__(self, other: "Deviation") -> "Deviation":
        return Deviation(
            self.signal + other.signal, self.noise + other.noise, self.changes + other.changes
        )


class Simulation:
    def __init__(self, lowering: Lowering) -> None:
        self._partition, self._states = lowering.partition, lowering.states
        self._weights, self._arrays = list(lowering.weights), list(lowering.weights.values())
        specs = self._partition.specs
        self.outputs = tuple(i for i in self._partition.outputs if specs[i].dtype == np.float32)

    @property
    def specs(self) -> Mapping[int, TensorSpec]:
        return self._partition.specs

    @property
    def steps(self) -> tuple[LoweredOperator, ...]:
        return self._partition.operators

    @property
    def classes(self) -> int:
        """The number of classes, if the only output is [N, classes]; else 0."""
        shapes = [self.specs[i].shape for i in self.outputs]
        is_scores = len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] > 1
        return shapes[0][1] if is_scores else 0

    # ---- ranges

    def ranges(
        self, samples: Sequence[Mapping[int, Any]], tensors: Sequence[int]
    ) -> dict[int, Range]:
        def program(weights: list[Any], values: list[Any]) -> jax.Array:
            known = self._network(values, self._named(weights), lambda _, __, results: results)
            return jnp.stack([_extent(known[i]) for i in tensors])

        with client.as_programs():
            run = jax.jit(program)
            extents = np.stack([run(self._arrays, self._values(sample)) for sample in samples])
        low, high = extents[..., 0].min(0), extents[..., 1].max(0)
        return {i: (float(a), float(b)) for i, a, b in zip(tensors, low, high, strict=True)}

    # ---- one operator at a time

    def deviation(self, samples: Sequence[Mapping[int, Any]], variants: Variants) -> Deviation:
        total = len(variants)
        fitting = max(1, _CHUNK_BYTES // max(1, *map(self._nbytes, self.steps)))
        size = min(total, fitting)
        numbers = np.arange(-(-total // size) * size).reshape(-1, size)
        numbers = np.where(numbers < total, numbers, NOTHING)
        deviation = self._summed(self._one_at_a_time, samples, variants, numbers)
        return Deviation(deviation.signal, deviation.noise[:total], deviation.changes[:total])

    def _summed(
        self,
        program: Callable[..., tuple[jax.Array, ...]],
        samples: Sequence[Mapping[int, Any]],
        variants: Variants,
        arguments: Iterable[np.ndarray],
    ) -> Deviation:
        last = [*map(jnp.asarray, arguments)]
        with client.as_programs():
            run = jax.jit(functools.partial(program, variants))
            first = (self._arrays, _constants(variants))
            rows = [_joined([run(*first, self._values(s), x) for x in last]) for s in samples]
        return functools.reduce(Deviation.__add__, rows)

    def _nbytes(self, step: LoweredOperator) -> int:
        tensors = (*step.operator.inputs, *step.operator.outputs)
        specs = (self.specs[i] for i in tensors if i in self.specs)
        return sum(int(np.prod(spec.shape)) * 4 for spec in specs if spec.const is None)

    def _one_at_a_time(
        self,
        variants: Variants,
        weights: list[Any],
        constants: Sequence[Mapping[int, Any]],
        values: list[Any],
        numbers: jax.Array,
    ) -> tuple[jax.Array, ...]:
        named, numbered = self._named(weights), _by_operator(variants)
        replaced: dict[int, Known] = {}

        def quantize(step: LoweredOperator, known: Known, results: Known) -> Known:
            for number, variant in numbered[step.operator.index]:
                replaced[number] = self._quantized(step, variant, known, named, constants[number])
            return results

        known = self._network(values, named, quantize)

        def one(number: jax.Array) -> Known:
            def replace(step: LoweredOperator, _: Known, results: Known) -> Known:
                for other, _variant in numbered[step.operator.index]:
                    results = _chosen(number == other, replaced[other], results)
                return results

            return self._outputs(self._network(values, named, replace))

        return _compared(self._outputs(known), jax.vmap(one)(numbers), self.classes)

    # ---- several operators at once

    def together(
        self,
        samples: Sequence[Mapping[int, Any]],
        variants: Variants,
        choices: Sequence[Collection[int]],
    ) -> Deviation:
        """The deviation for each choice, a set of numbers of variants."""
        numbers = range(len(variants))
        chosen = np.array([[n in choice for n in numbers] for choice in ((), *choices)])
        return self._summed(self._all_at_once, samples, variants, [chosen])

    def _all_at_once(
        self,
        variants: Variants,
        weights: list[Any],
        constants: Sequence[Mapping[int, Any]],
        values: list[Any],
        flags: jax.Array,
    ) -> tuple[jax.Array, ...]:
        named, numbered = self._named(weights), _by_operator(variants)

        def one(flags: jax.Array) -> Known:
            def quantize(step: LoweredOperator, known: Known, results: Known) -> Known:
                for number, variant in numbered[step.operator.index]:
                    other = self._quantized(step, variant, known, named, constants[number])
                    results = _chosen(flags[number], other, results)
                return results

            return self._outputs(self._network(values, named, quantize))

        rows = jax.lax.map(one, flags)  # the first row is the float network
        right = {i: y[0] for i, y in rows.items()}
        return _compared(right, {i: y[1:] for i, y in rows.items()}, self.classes)

    # ---- operators

    def _network(self, values: list[Any], weights: Weights, changed: Changed) -> Known:
        """All values by tensor, where `changed` replaces the results of each operator."""
        known = dict(self._partition.unpack(values, {}))
        for step in self.steps:
            results = self._partition.run_step(step, known, weights)
            known.update(changed(step, known, results))
        return known

    def _outputs(self, known: Known) -> Known:
        return {i: known[i] for i in self.outputs}

    def _quantized(
        self,
        step: LoweredOperator,
        variant: Variant,
        known: Known,
        weights: Weights,
        constants: Mapping[int, Any],
    ) -> dict[int, Any]:
        rounded = dict(known)
        rounded.update((i, _simulated(known[i], grid)) for i, grid in variant.inputs.items())
        if variant.dynamic_range is not None:
            index, is_row_by_row = variant.dynamic_range
            if index in known:
                rounded[index] = _rounded_dynamically(known[index], is_row_by_row)
        replaced = {
            w: constants.get(w.tensor, a) if w.subgraph is None else a for w, a in weights.items()
        }
        results = self._partition.run_step(step, rounded, replaced)
        return {
            i: _simulated(y, variant.outputs[i]) if i in variant.outputs else y
            for i, y in results.items()
        }

    # ---- arguments

    def _named(self, weights: list[Any]) -> dict[Weight, Any]:
        return dict(zip(self._weights, weights, strict=True))

    def _values(self, sample: Mapping[int, Any]) -> list[Any]:
        return [*(sample[i] for i in self._partition.inputs), *self._states]


def _by_operator(variants: Variants) -> Mapping[int, Sequence[tuple[int, Variant]]]:
    numbered = collections.defaultdict[int, list[tuple[int, Variant]]](list)
    for number, variant in enumerate(variants):
        numbered[variant.operator].append((number, variant))
    return numbered


def _constants(variants: Variants) -> list[dict[int, Any]]:
    """Constants by number; schemes that quantize weights in the same way share arrays."""
    kept: dict[tuple[int, bytes], Any] = {}
    return [
        {i: kept.setdefault((i, a.tobytes()), a) for i, a in variant.constants.items()}
        for variant in variants
    ]


def _extent(value: jax.Array) -> jax.Array:
    is_valid = jnp.abs(value) < _LARGEST
    low = jnp.min(jnp.where(is_valid, value, np.inf))
    high = jnp.max(jnp.where(is_valid, value, -np.inf))
    is_any = jnp.any(is_valid)
    return jnp.stack([jnp.where(is_any, low, 0), jnp.where(is_any, high, 0)])


def _simulated(value: Any, grid: Grid) -> Any:
    spec = TensorSpec("", (), grid.dtype, grid.quantization)
    return fake_quantization.simulate(value, spec)


def _rounded_dynamically(value: jax.Array, is_row_by_row: bool) -> jax.Array:
    """Round like dynamic range kernels: each row or image by its own range."""
    rows = value if is_row_by_row else value.reshape(value.shape[0], -1)
    q, scale, offset = jax_affine.asymmetric_quantize(rows)
    steps = q.astype(np.int32) - offset[..., None]
    return jnp.reshape(scale[..., None] * steps.astype(np.float32), value.shape)


def _chosen(flag: jax.Array, some: Known, others: Known) -> dict[int, Any]:
    return {i: jnp.where(flag, some[i], others[i]) for i in others}


def _compared(right: Known, wrong: Known, classes: int) -> tuple[jax.Array, ...]:
    """The fields of a `Deviation`; the first axis of `wrong` is that of variants."""
    signal = jnp.stack([_energy(y, 0) for y in right.values()])
    noise = jnp.stack([_energy(wrong[i] - y[None], 1) for i, y in right.items()], -1)
    changes = jnp.zeros(noise.shape[0], np.int64)
    if classes:
        (index,) = right
        moved = jnp.argmax(wrong[index], -1) != jnp.argmax(right[index], -1)[None]
        changes = jnp.sum(moved, -1)
    return signal, noise, changes


def _energy(x: jax.Array, first_axis: int) -> jax.Array:
    axes = tuple(range(first_axis, x.ndim))
    return jnp.sum(jnp.square(x.astype(np.float64)), axes)


def _joined(parts: Sequence[tuple[jax.Array, ...]]) -> Deviation:
    """The deviation of one sample for several sets of variants, concatenated."""
    signal, noise, changes = zip(*(map(np.asarray, part) for part in parts), strict=True)
    return Deviation(signal[0], np.concatenate(noise), np.concatenate(changes))
