"""A lowered partition -> one XLA program, compiled ahead of time, its weights on the device."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.passes.batch_slices import WHOLE_BATCH, BatchSlices
from jaxdelegate.pjrt import client, cudnn
from jaxdelegate.program import Program, stored_states
from jaxdelegate.thunks import calls
from jaxdelegate.whole_imports import whole_imports
from jaxdelegate.xla.jax_compat import watch_jax_cache, without_source_lines
from jaxdelegate.xla.options import Options, compiler_options, platform_of
from jaxdelegate.xla.over_mesh import OverMesh
from jaxdelegate.xla.over_slices import over_slices
from jaxdelegate.xla.runtime_steps import needs_runtime

_LOGGER = logging.getLogger("jaxdelegate")

# Constants from this size on are arguments of the program, resident on the device and shared by all
# shapes and partitions; smaller ones are baked in, where XLA can fold them.
ARGUMENT_BYTES = 64 * 1024


class JaxExecutable:
    """What jax has compiled: called under 64-bit types, as it was compiled."""

    def __init__(self, compiled: jax.stages.Compiled, runtime: client.Runtime) -> None:
        self.compiled, self._runtime = compiled, runtime

    def run(self, constants: Sequence[Any], values: Sequence[Any]) -> Sequence[jax.Array]:
        results: Sequence[jax.Array]
        if client.is_guarded() or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            # The executable itself may not move arrays, or not run at all.
            arrays = list(map(self._runtime.to_device, values))
            with jax.enable_x64(True), jax.disable_jit(False):
                results = self.compiled(*constants, *arrays)
            return results
        here = self._runtime.from_device
        arrays = [v if isinstance(v, np.ndarray) else here(v) for v in values]
        with jax.enable_x64(True):
            results = self.compiled(*constants, *arrays)
        return results

    def start(self, constants: Sequence[Any], values: Sequence[Any]) -> Sequence[jax.Array]:
        return self.run(constants, values)

    def as_text(self) -> str:
        return str(self.compiled.as_text())

    def memory_analysis(self) -> Any:
        return self.compiled.memory_analysis()

    def serialized(self) -> bytes:
        return client.serialized(self.compiled.runtime_executable())


def compile_partition(
    partition: LoweredPartition,
    weights: ModelWeights,
    donate_inputs: bool = False,
    slices: BatchSlices = WHOLE_BATCH,
    over: OverMesh | None = None,
) -> Program:
    """Compile for the device of `weights`, which take in what is missing, one at a time.

    Args:
        partition: what to compile.
        weights: its prepared constants.
        donate_inputs: let results take the place of inputs of the same shape and dtype.
        slices: the slices of the batch on which the program runs the partition; it takes and
            returns whole arrays.
        over: a mesh whose devices all run it, each on its part: the program takes and yields whole
            arrays, and no new states. `weights` are those of a `MeshRuntime`.
    """
    device = weights.runtime.device
    platform = platform_of(device.platform)
    arguments, constants = split_weights(partition, platform)
    with client.as_programs(device):
        prepared = tuple(resident_array(weights, weight, partition) for weight in arguments)
        live = map(partition.outside, (*partition.inputs, *partition.states))
        call, call_lists = _traced(partition, [*prepared, *live], arguments, constants)
        call_lists = tuple(map(weights.runtime.put, call_lists))
        resident = (*call_lists, *prepared)
        function, avals = _on_whole_batch(partition, call, resident, slices, platform)
        if over is None:
            avals = [_on_device(aval, device) for aval in avals]
        else:
            states = [None] * len(partition.states)
            places = [*[None] * len(resident), *partition.inputs, *states]
            function, avals = over.on_each(function, avals, places, len(partition.outputs))
        donated = _replaceable(partition, slices) if donate_inputs else ()
        numbers = tuple(len(resident) + position for position in donated)
        options = functools.partial(_options, partition, platform)
        executable, was_read = _compiled(function, avals, numbers, options, weights.runtime)
    return Program(
        executable=executable,
        weights=prepared,
        inputs=partition.inputs,
        outputs=partition.outputs,
        states=stored_states(partition.states, partition.outside),
        donated=donated,
        was_read=was_read,
        call_lists=call_lists,
        is_on_cpu=platform == "cpu" and over is None,
    )


def _on_whole_batch(
    partition: LoweredPartition,
    call: Callable[..., Any],
    resident: Sequence[Any],
    slices: BatchSlices,
    platform: str,
) -> tuple[Callable[..., Any], list[Any]]:
    """A function of resident arrays and of whole inputs and states, and what these are.

    `call` is a function of the resident arrays (call lists and weights) and of those of one slice.
    """
    n, live = len(resident), (*partition.inputs, *partition.states)
    specs = {i: partition.outside(i) for i in live}
    parts = [(i, specs[i].shape) for i in live]

    def program(*arrays: Any) -> tuple[Any, ...]:
        def once(values: Sequence[Any]) -> tuple[Any, ...]:
            results: tuple[Any, ...] = call(*arrays[:n], *values)
            return results

        return over_slices(once, slices, parts, at_once=platform != "cpu")(arrays[n:])

    program.__name__ = _name(partition)
    types = [(a.shape, a.dtype) for a in resident]
    types += [(slices.shape(i, specs[i].shape), specs[i].dtype) for i in live]
    return program, [jax.ShapeDtypeStruct(*one) for one in types]  # type: ignore[no-untyped-call]


def compile_function(
    function: Callable[..., Any],
    arguments: Sequence[tuple[tuple[int, ...], np.dtype]],
    donated: tuple[int, ...],
    runtime: client.Runtime,
    *,
    exact: bool,
    has_loop_graphs: bool = False,
) -> tuple[JaxExecutable, bool]:
    """Compile a function of arrays for a device.

    Returns the program, and whether it was read from JAX's own compilation cache. `arguments` are
    shapes and dtypes; results may take the memory of those at the positions `donated`. For the
    others see `compiler_options`.
    """
    device = runtime.device
    platform = platform_of(device.platform)
    shapes = [jax.ShapeDtypeStruct(*argument) for argument in arguments]  # type: ignore[no-untyped-call]
    avals = [_on_device(aval, device) for aval in shapes]

    def options(jaxpr: Any) -> Options:
        return compiler_options(
            platform,
            exact=exact,
            in_place=bool(donated),
            is_direct=not donated and _is_direct(platform, jaxpr),
            has_loop_graphs=has_loop_graphs,
        )

    with client.as_programs(device):
        return _compiled(function, avals, donated, options, runtime)


def _compiled(
    function: Callable[..., Any],
    avals: Sequence[Any],
    donated: tuple[int, ...],
    options: Callable[[Any], Options],
    runtime: client.Runtime,
) -> tuple[JaxExecutable, bool]:
    """The program, and whether it was read from JAX's own compilation cache."""
    with without_source_lines():
        # A loaded program takes every argument, used or not.
        traced = jax.jit(function, donate_argnums=donated, keep_unused=True).trace(*avals)
        lowered = traced.lower()
    with watch_jax_cache() as watch:
        compiled = compiled_with(options(traced.jaxpr), lowered)
    was_read = watch()
    if was_read and platform_of(runtime.device.platform) == "gpu":
        for device in runtime.devices:
            cudnn.start(device)
    return JaxExecutable(compiled, runtime), was_read


def _on_device(aval: Any, device: jax.Device) -> Any:
    one = SingleDeviceSharding(device)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=one)  # type: ignore[no-untyped-call]


def resident_array(weights: ModelWeights, weight: Weight, partition: LoweredPartition) -> Any:
    """A prepared constant on the device of `weights`."""
    const = partition.outside(weight.tensor).const
    return weights.get(weight, const, lambda: partition.value(weight))


def _traced(
    partition: LoweredPartition,
    arrays: Sequence[Any],
    arguments: Sequence[Weight],
    constants: Mapping[Weight, np.ndarray | None],
) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """A function of call lists (see `call_batching`) and of such arrays, and the call lists."""

    def once(*values: Any) -> tuple[Any, ...]:
        known: dict[Weight, Any] = dict(zip(arguments, values, strict=False))
        known.update((weight, jnp.asarray(value)) for weight, value in constants.items())
        return partition.call(known, values[len(arguments) :])

    # What it needs of jax.extend brings Pallas along, 20 ms that programs on disk are spared.
    with whole_imports():
        from jaxdelegate.xla import call_batching  # noqa: PLC0415

    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]  # type: ignore[no-untyped-call]
    with without_source_lines():
        return call_batching.traced(once, types, below=ARGUMENT_BYTES)


def _options(partition: LoweredPartition, platform: str, jaxpr: Any) -> Options:
    # Also on a mesh, and if results take the memory of inputs: bits are the same then.
    exact = not partition.precision.is_reduced and not partition.has_integer_products
    return compiler_options(platform, exact=exact, is_direct=_is_direct(platform, jaxpr))


def _is_direct(platform: str, jaxpr: Any) -> bool:
    return platform == "cpu" and calls.why_not() is None and not needs_runtime(jaxpr)


def compiled_with(options: Options, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile with the options that this XLA knows: their names and values are no promise."""
    left = dict(options)
    while True:
        try:
            return lowered.compile(compiler_options=left)  # type: ignore[arg-type]
        except jax.errors.JaxRuntimeError as error:
            unknown = [name for name in left if name in str(error)]
            if not unknown:
                raise
            _LOGGER.info("XLA compiles without %s: %s", ", ".join(unknown), error)
            left = {name: value for name, value in left.items() if name not in unknown}


def _name(partition: LoweredPartition) -> str:
    """What profilers call the program: by its first and last operator."""
    indices = [step.operator.index for step in partition.operators]
    return f"partition_{indices[0]}_{indices[-1]}" if indices else "partition"


def _replaceable(partition: LoweredPartition, slices: BatchSlices) -> tuple[int, ...]:
    """Positions of inputs whose memory an output can take: JAX warns of any other donation."""
    outputs = [(i, partition.outside(i)) for i in partition.outputs]
    free = [(slices.shape(i, spec.shape), spec.dtype) for i, spec in outputs]
    positions = []
    for position, index in enumerate(partition.inputs):
        spec = partition.outside(index)
        whole = slices.shape(index, spec.shape), spec.dtype
        if whole in free:
            free.remove(whole)
            positions.append(position)
    return tuple(positions)


def split_weights(
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
