"""A lowered partition -> one XLA program, compiled ahead of time, its weights on the device."""

import dataclasses
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding

from jaxdelegate.jax_private import watch_jax_cache, without_source_lines
from jaxdelegate.lowered_partition import LoweredPartition, Weight
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.xla_options import Options, compiler_options, platform_of

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
    donated: tuple[int, ...] = ()  # positions in `inputs` whose buffers the program may overwrite
    was_read: bool = False  # from JAX's own compilation cache
    plans: tuple[jax.Array, ...] = ()  # of the chains in it (kernel_chains.py)

    @property
    def constants(self) -> tuple[jax.Array, ...]:
        """What the executable takes ahead of inputs and states."""
        return (*self.plans, *self.weights)

    def __call__(self, values: Sequence[Any]) -> Sequence[jax.Array]:
        """Run on the values of `inputs`, then `states`; returns before the device is done."""
        # An executable compiled under 64-bit types must be called under them too.
        with jax.enable_x64(True):
            return self.executable(*self.plans, *self.weights, *self._given_up(values))

    def _given_up(self, values: Sequence[Any]) -> Sequence[Any]:
        """Host arrays are copied to the device anyway; what lies there others may still read."""
        if not self.donated:
            return values
        own = list(values)
        for position in self.donated:
            if isinstance(own[position], jax.Array):
                own[position] = jax.device_put(own[position], may_alias=False)
        return own


class ResidentWeights:
    """Prepared constants on one device, shared by all shapes and partitions of a model."""

    def __init__(self, device: jax.Device) -> None:
        """Begin empty, on `device`."""
        self.device = device
        self._arrays: dict[Weight, tuple[np.ndarray | None, jax.Array]] = {}
        self._by_digest: MutableMapping[str, jax.Array] = weakref.WeakValueDictionary()

    def find(self, digest: str) -> jax.Array | None:
        """The device array with these elements, dtype and shape, if `share` was told of it."""
        return self._by_digest.get(digest)

    def share(self, digest: str, array: jax.Array) -> jax.Array:
        """The one device array to keep for a digest; what has the same gives up its own copy."""
        kept = self._by_digest.setdefault(digest, array)
        for weight, (const, resident) in self._arrays.items():
            if resident is array:
                self._arrays[weight] = const, kept
        return kept

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


def compile_partition(
    partition: LoweredPartition,
    weights: ResidentWeights,
    donate_inputs: bool = False,
    turns: int = 1,
) -> Program:
    """Compile for the device of `weights`, which take in what is missing, one at a time.

    Args:
        partition: what to compile.
        weights: its prepared constants.
        donate_inputs: let results take the place of inputs of the same shape and dtype.
        turns: the program takes and yields that many times what the partition does, side by side
            along the first dimension of every tensor, and runs it as often.

    Raises:
        LoweringError: a traced shape or dtype is not the propagated one.
    """
    device = weights.device
    platform = platform_of(device.platform)
    arguments, constants = _split_weights(partition, platform)
    with jax.enable_x64(True), jax.default_device(device):
        prepared = tuple(weights.get(weight, partition) for weight in arguments)
        live: list[Any] = [partition.outside(i) for i in (*partition.inputs, *partition.states)]
        call, plans = _traced(partition, [*prepared, *live], arguments, constants)
        plans = jax.device_put(plans, device)
        resident = (*plans, *prepared)
        n = len(resident)

        def program(*arrays: Any) -> tuple[Any, ...]:
            return _in_turns(lambda values: call(*arrays[:n], *values), turns)(arrays[n:])

        program.__name__ = _name(partition)
        sharding = SingleDeviceSharding(device)
        avals = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]
            for shape, dtype in (
                *((a.shape, a.dtype) for a in resident),
                *((_whole(a.shape, turns), a.dtype) for a in live),
            )
        ]
        donated = _replaceable(partition) if donate_inputs else ()
        numbers = tuple(n + position for position in donated)
        with without_source_lines():
            lowered = jax.jit(program, donate_argnums=numbers).lower(*avals)
        with watch_jax_cache() as was_read:
            executable = _compiled(lowered, _options(partition, platform))
    states = stored_states(partition.states, partition.outside)
    inputs, outputs = partition.inputs, partition.outputs
    return Program(executable, prepared, inputs, outputs, states, donated, was_read(), plans)


def _traced(
    partition: LoweredPartition,
    arrays: Sequence[Any],
    arguments: Sequence[Weight],
    constants: Mapping[Weight, np.ndarray | None],
) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """A function of plans (see `kernel_chains`) and of such arrays, and the plans.

    Args:
        partition: what it computes.
        arrays: with the shapes and dtypes of arguments, inputs and states.
        arguments: weights that it takes.
        constants: those that it holds.
    """

    def once(*values: Any) -> tuple[Any, ...]:
        known: dict[Weight, Any] = dict(zip(arguments, values, strict=False))
        known.update((weight, jnp.asarray(value)) for weight, value in constants.items())
        return partition.call(known, values[len(arguments) :])

    # What it needs of jax.extend brings Pallas along, 20 ms that programs on disk are spared.
    from jaxdelegate import kernel_chains  # noqa: PLC0415

    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]  # type: ignore[no-untyped-call]
    with without_source_lines():
        return kernel_chains.traced(once, types, below=ARGUMENT_BYTES)


def _whole(shape: Shape, turns: int) -> Shape:
    return shape if turns == 1 else (shape[0] * turns, *shape[1:])


def _in_turns(
    call: Callable[[Sequence[Any]], tuple[Any, ...]], turns: int
) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """The same on parts of all arrays, one after the other."""
    if turns == 1:
        return call

    def loop(values: Sequence[Any]) -> tuple[Any, ...]:
        parts = tuple(x.reshape(turns, x.shape[0] // turns, *x.shape[1:]) for x in values)
        results: tuple[Any, ...] = lax.map(call, parts)
        return tuple(y.reshape(turns * y.shape[1], *y.shape[2:]) for y in results)

    return loop


def _options(partition: LoweredPartition, platform: str) -> Options:
    exact = not partition.precision.is_reduced and not partition.has_integer_products
    return compiler_options(platform, exact=exact)


def _compiled(lowered: jax.stages.Lowered, options: Options) -> jax.stages.Compiled:
    """Compile; the names of options are no promise of jaxlib's, and no program depends on them."""
    try:
        return lowered.compile(compiler_options=dict(options))  # type: ignore[arg-type]
    except jax.errors.JaxRuntimeError as error:
        if not any(name in str(error) for name in options):
            raise
        return lowered.compile()


def stored_states(
    indices: Sequence[int], spec: Callable[[int], TensorSpec]
) -> dict[int, TensorSpec]:
    """The specs of a program's states as hosts store them."""
    return {i: dataclasses.replace(spec(i), const=None) for i in indices}


def _name(partition: LoweredPartition) -> str:
    """What profilers call the program: by its first and last operator."""
    indices = [step.operator.index for step in partition.steps]
    return f"partition_{indices[0]}_{indices[-1]}" if indices else "partition"


def _replaceable(partition: LoweredPartition) -> tuple[int, ...]:
    """Positions of inputs whose memory an output can take: JAX warns of any other donation."""
    outputs = [partition.outside(i) for i in partition.outputs]
    free = [(spec.shape, spec.dtype) for spec in outputs]
    positions = []
    for position, index in enumerate(partition.inputs):
        spec = partition.outside(index)
        if (spec.shape, spec.dtype) in free:
            free.remove((spec.shape, spec.dtype))
            positions.append(position)
    return tuple(positions)


def _split_weights(
    partition: LoweredPartition, platform: str
) -> tuple[list[Weight], dict[Weight, np.ndarray | None]]:
    """Weights that become arguments, and small ones with their values. Strings never reach XLA."""
    arguments: list[Weight] = []
    constants: dict[Weight, np.ndarray | None] = {}
    for weight in partition.preparations:
        const = partition.specs[weight.tensor].const
        if const is not None and is_argument(const, platform):
            arguments.append(weight)
        else:
            constants[weight] = partition.value(weight)
    return arguments, constants


def is_argument(const: np.ndarray, platform: str) -> bool:
    """Whether programs take a constant as an argument: a large one, and on a GPU every bias.

    XLA:GPU ends a matrix product with a vector that comes in, and not with one that is baked in:
    sums would go through memory in float32.
    """
    is_vector = const.dtype.kind == "f" and 1 < const.size == max(const.shape, default=1)
    return const.nbytes >= ARGUMENT_BYTES or (is_vector and platform == "gpu")
