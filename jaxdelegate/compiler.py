"""A lowered partition -> one XLA program, compiled ahead of time, its weights on the device."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxdelegate.lowering import LoweredPartition, Weight
from jaxdelegate.op_lowering.spec import TensorSpec

# Constants from this size on are arguments of the program, resident on the device and shared by all
# shapes and partitions; smaller ones are baked in, where XLA can fold them.
ARGUMENT_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled partition: call it with the inputs and states, get outputs and new states."""

    executable: Callable[..., Sequence[jax.Array]]
    weights: tuple[jax.Array, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: Mapping[int, TensorSpec]  # as hosts store them

    def __call__(self, values: Sequence[Any]) -> Sequence[jax.Array]:
        """Run on the values of `inputs`, then `states`; returns before the device is done."""
        # An executable compiled under 64-bit types must be called under them too.
        with jax.enable_x64(True):
            return self.executable(*self.weights, *values)


class ResidentWeights:
    """Prepared constants on one device, shared by all shapes and partitions of a model."""

    def __init__(self, device: jax.Device) -> None:
        """Begin empty, on `device`."""
        self.device = device
        self._arrays: dict[Weight, tuple[np.ndarray | None, jax.Array]] = {}

    def get(self, weight: Weight, partition: LoweredPartition) -> jax.Array:
        """The device array, moved there at its first use.

        A constant that was folded from shapes may change with a resize; it is replaced then.
        """
        const = partition.outside(weight.tensor).const
        if weight in self._arrays:
            source, kept = self._arrays[weight]
            if source is const or np.array_equal(source, const):  # type: ignore[arg-type]
                return kept
        resident: jax.Array = jax.device_put(partition.value(weight), self.device)
        self._arrays[weight] = (const, resident)
        return resident


def compile_partition(partition: LoweredPartition, weights: ResidentWeights) -> Program:
    """Compile for the device of `weights`, which take in what is missing, one at a time.

    Raises:
        LoweringError: a traced shape or dtype is not the propagated one.
    """
    arguments, constants = _split_weights(partition)

    def program(*arrays: Any) -> tuple[Any, ...]:
        known: dict[Weight, Any] = dict(zip(arguments, arrays, strict=False))
        known.update((weight, jnp.asarray(value)) for weight, value in constants.items())
        return partition.call(known, arrays[len(arguments) :])

    with jax.enable_x64(True), jax.default_device(weights.device):
        resident = tuple(weights.get(weight, partition) for weight in arguments)
        sharding = SingleDeviceSharding(weights.device)
        live: list[Any] = [partition.outside(i) for i in (*partition.inputs, *partition.states)]
        avals = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)  # type: ignore[no-untyped-call]
            for a in [*resident, *live]
        ]
        executable = jax.jit(program).lower(*avals).compile()
    states = {i: dataclasses.replace(partition.outside(i), const=None) for i in partition.states}
    return Program(executable, resident, partition.inputs, partition.outputs, states)


def _split_weights(
    partition: LoweredPartition,
) -> tuple[list[Weight], dict[Weight, np.ndarray | None]]:
    """Weights that become arguments, and small ones with their values. Strings never reach XLA."""
    arguments: list[Weight] = []
    constants: dict[Weight, np.ndarray | None] = {}
    for weight in partition.preparations:
        const = partition.specs[weight.tensor].const
        if const is not None and const.nbytes >= ARGUMENT_BYTES:
            arguments.append(weight)
        else:
            constants[weight] = partition.value(weight)
    return arguments, constants
