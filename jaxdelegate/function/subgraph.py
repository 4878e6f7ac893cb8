"""One subgraph as a JAX function, and as compiled programs."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate import memory_errors
from jaxdelegate.compile.programs import GraphState
from jaxdelegate.device_errors import is_out_of_memory
from jaxdelegate.errors import DeviceMemoryError, TensorError
from jaxdelegate.function import written_calls
from jaxdelegate.function.arguments import device_of, dtype_of, fitting
from jaxdelegate.function.context import Ends, ModelContext
from jaxdelegate.function.lowerings import Lowerings
from jaxdelegate.function.mode import AS_STORED, Mode
from jaxdelegate.function.records import Parameter, Params
from jaxdelegate.function.weights import FileWeights, PreparedWeights
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.model.records import Tensor
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.batch_slices import WHOLE_BATCH, BatchSlices
from jaxdelegate.pjrt import client
from jaxdelegate.plan.planner import EntryPoint
from jaxdelegate.plan.whole import Shapes, WholePlan, WholePlans
from jaxdelegate.program import Partition, Program
from jaxdelegate.simple_delegate import DelegateParams, GraphKey
from jaxdelegate.text import plural, printable
from jaxdelegate.xla import jax_compat  # noqa: F401 (with what jax imports late)
from jaxdelegate.xla.options import platform_of
from jaxdelegate.xla.over_mesh import OverMesh, placed

V = TypeVar("V")
Place: TypeAlias = jax.Device | OverMesh

_EXPLICIT_AXES = (
    "apply: the inputs are on a mesh with explicit axes; create it with axis_types=("
    "AxisType.Auto, ...), or call jax.sharding.auto_axes(apply, out_sharding=...)"
)


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A subgraph, lowered for certain input shapes, with its weights and initial states.

    `weights` are those of `partition.preparations`, `states` those of `partition.states`.
    """

    partition: LoweredPartition
    weights: Mapping[Weight, jax.Array]
    states: tuple[jax.Array, ...]


class SubgraphFunction:
    """One subgraph with given inputs and outputs, lowered once for each set of input shapes."""

    def __init__(self, model: ModelContext, ends: Ends, key: GraphKey) -> None:
        """Lower nothing yet; `key` identifies the subgraph for programs that are shared."""
        view, most = model.view, model.view.options.max_programs
        entry = EntryPoint(model.subgraphs[ends.subgraph], model.subgraphs, view.limits)
        self._compilers, self._options = model.compilers, view.options
        self._subgraph = entry.subgraph
        _, self._inputs, self.outputs = ends
        self._called = written_calls.Called(key.model, model, ends, entry)
        constants = ((i, entry.declared[i].const) for i in ends.outputs)
        self._constants = {i: value for i, value in constants if value is not None}
        self._plans = WholePlans(entry, ends.inputs, ends.outputs, most)
        self._states = model.states.of(entry.explicit)
        self._lowerings = Lowerings(model, ends, self._plans)
        self._file_weights = FileWeights(model, self._subgraph, self._lowerings)
        declared = tuple(t.shape for t in self.tensors())
        self._prepared = PreparedWeights(model, ends, declared, self._plans)
        self._key, self._state = key, GraphState()
        # Programs that the process still has in memory.
        self._programs: MutableMapping[Hashable, Program] = weakref.WeakValueDictionary()
        self._jitted: LruCache[Hashable, Callable[..., Any]] = LruCache(most)

    # ---- parameters

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self._file_weights.parameters

    @property
    def params(self) -> Params:
        return self._file_weights.params

    def leaves(self, mode: Mode) -> Params:
        return self._weights(mode).leaves(mode)

    def declare(self, shapes: Shapes) -> None:
        """The inputs' shapes for which prepared weights are lowered first."""
        self._prepared.declare(shapes)

    def _weights(self, mode: Mode) -> FileWeights | PreparedWeights:
        is_prepared = mode.is_prepared and self._prepared.computes
        return self._prepared if is_prepared else self._file_weights

    # ---- programs as for a delegate

    def run(
        self,
        arrays: Sequence[Any],
        slices: BatchSlices = WHOLE_BATCH,
        over: OverMesh | None = None,
    ) -> tuple[jax.Array, ...] | None:
        """The outputs, by a program compiled as for a delegate.

        Args:
            arrays: the inputs, as `checked` returns them.
            slices: the slices of the batch to compute one by one.
            over: the mesh of which each device computes its part, by one program for all of them.

        Returns:
            None if JAX traces the inputs, or they are on several devices without a mesh: see
            `call`.
        """
        place = over or device_of(arrays, self._options.platform)
        if place is None:
            return None
        inputs = dict(zip(self._inputs, arrays, strict=True))
        shapes = tuple(self._shape_of_part(i, a.shape, slices, over) for i, a in inputs.items())
        program = self._program(place, shapes, slices)
        known = self._constants | inputs
        if program is not None:
            known.update(self._computed(program, place, known, slices))
        with jax.enable_x64(True), client.on_purpose():
            return tuple(jnp.asarray(known[i]) for i in self.outputs)

    def _shape_of_part(
        self, index: int, shape: Shape, slices: BatchSlices, over: OverMesh | None
    ) -> Shape:
        """An input's shape in one slice of one device's part of a batch."""
        shape = shape if over is None else over.part(index, shape)
        if not slices.are_single or index in slices.shared:
            return shape
        is_stacked = len(shape) != len(self._subgraph.tensors[index].shape)
        return shape[1:] if is_stacked else (1, *shape[1:])

    def _computed(
        self, program: Program, place: Place, known: Mapping[int, Any], slices: BatchSlices
    ) -> Mapping[int, jax.Array]:
        states, names = self._states.for_call() if program.states else {}, self._states.names
        initial = {i: _for_slices(i, states[names[i]], slices) for i in program.states}
        if isinstance(place, OverMesh):
            initial = {i: placed(value, place.sharding(None)) for i, value in initial.items()}
        values = {**known, **initial}
        try:
            results = program([values[i] for i in (*program.inputs, *program.states)])
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            platform = platform_of(_device(place).platform)
            raise DeviceMemoryError(
                f"{printable(self._subgraph.name) or 'The model'} failed to run on {place}: "
                f"{memory_errors.of_program(error, platform, program)}"
            ) from error
        return dict(zip(program.outputs, results, strict=False))

    def _program(self, place: Place, shapes: Shapes, slices: BatchSlices) -> Program | None:
        """The program that a delegate would use; None if all outputs are constant."""
        program = self._programs.get((place, shapes, slices))
        if program is not None:
            return program
        compiler = self._compilers.on(_device(place))
        on_cpu = compiler.platform == "cpu"
        plan = self._plans.all_taken(shapes, compiler.why_not, on_cpu=on_cpu)
        if not plan.nodes:
            return None
        own = None if slices == WHOLE_BATCH else slices
        params = DelegateParams(plan.nodes, self._inputs, plan.outputs, own)
        program = compiler.program(
            Partition(params, plan.specs, plan.outputs),
            graph=self._key,
            shapes=shapes,
            state=self._state,
            over=place if isinstance(place, OverMesh) else None,
        )
        self._programs[place, shapes, slices] = program
        return program

    # ---- traced

    def call(
        self,
        params: Params,
        arrays: Sequence[Any],
        state: Params | None = None,
        mode: Mode = AS_STORED,
    ) -> tuple[tuple[Any, ...], Params]:
        """The outputs and the new state. Compiled for each set of shapes, unless JAX traces it.

        Args:
            params: all leaves by name; others are ignored.
            arrays: the inputs, as `checked` returns them.
            state: the states by name; those of other subgraphs are returned unchanged. None: the
                initial states.
            mode: how it computes.
        """

        def plain(params: Params, arrays: Sequence[Any]) -> tuple[Any, ...]:
            return self._traced(params, arrays, state, mode)[0]

        written = written_calls.outputs_of(
            self._called, self._weights(mode), params, arrays, mode, state=state, plain=plain
        )
        return self._traced(params, arrays, state, mode) if written is None else (written, {})

    def _traced(
        self, params: Params, arrays: Sequence[Any], state: Params | None, mode: Mode
    ) -> tuple[tuple[Any, ...], Params]:
        params = self._weights(mode).fitting(params, mode)
        states = None if state is None else self._states.fitting(state)
        # The jitted function must get the inputs' 64-bit dtypes.
        with jax.enable_x64(True), client.on_purpose():
            run = self._jit(mode, tuple(a.shape for a in arrays))
            outputs, new = _with_advice(lambda: run(params, tuple(arrays), states))
        return outputs, {**new, **{n: v for n, v in (state or {}).items() if n not in new}}

    def lowered(self, shapes: Shapes, params: Params | None = None) -> Lowering:
        """The lowering for the options' device, whose operators can run one by one.

        `params` has all leaves by name; None: the file's.
        """
        platform = self._lowerings.platform
        with jax.enable_x64(True):
            (partition,) = self._lowerings.by_platform(shapes, platform, learns=False).values()
            known = self.params if params is None else params
            leaves = self._file_weights.fitting(known, AS_STORED)
            weights = self._file_weights.read_by(partition, leaves, AS_STORED)
            initial = self.initial_state() if partition.states else {}
            states = tuple(initial[self._states.names[i]] for i in partition.states)
        return Lowering(partition, weights, states)

    def _jit(self, mode: Mode, shapes: Shapes) -> Callable[..., Any]:
        """One function for each set of shapes, so that JAX's programs are evicted with it."""

        def jitted() -> Callable[..., Any]:
            return jax.jit(functools.partial(self._call, mode))

        return self._jitted.get((mode, shapes), jitted)

    def _call(
        self, mode: Mode, params: Params, arrays: tuple[Any, ...], state: Params | None
    ) -> tuple[tuple[Any, ...], Params]:
        states = self._states.for_call(mode.io) if state is None else state
        return self._weights(mode).call(self._compute, mode, params, arrays, states)

    def _compute(
        self,
        partition: LoweredPartition,
        mode: Mode,
        weights: Mapping[Weight, Any],
        arrays: tuple[Any, ...],
        states: Params,
    ) -> tuple[tuple[Any, ...], Params]:
        known = dict(zip(self._inputs, arrays, strict=True))
        known.update((i, states[self._states.names[i]]) for i in partition.states)
        read = (*partition.inputs, *partition.states)
        if mode.io == "float":
            results = self._float_call(partition, weights, [known[i] for i in read])
        else:
            results = partition.call(weights, [known[i] for i in read])
        values = dict(zip((*partition.outputs, *partition.states), results, strict=True))
        known.update(values)
        new = {**states, **{self._states.names[i]: values[i] for i in partition.states}}
        return tuple(jax.tree.map(jnp.asarray, known[i]) for i in self.outputs), new

    def _float_call(
        self, partition: LoweredPartition, weights: Mapping[Weight, Any], values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """`partition.call`, with floats instead of quantized integers as inputs and outputs."""
        read = [partition.outside(i) for i in (*partition.inputs, *partition.states)]
        if partition.stored:  # a float view, which rounds floats to the grids of integers
            indices = (*partition.inputs, *partition.states)
            scales = (partition.scale(i, weights) for i in indices)
            on_grid = map(fake_quantization.simulate, values, read, scales)
            return partition.call(weights, list(on_grid), inside=True)
        results = partition.call(weights, list(map(fake_quantization.leave, values, read)))
        specs = (partition.outside(i) for i in (*partition.outputs, *partition.states))
        return tuple(map(fake_quantization.enter, results, specs))

    # ---- states

    @property
    def has_state(self) -> bool:
        return bool(self._states.names)

    def initial_state(self, io: str = "file") -> Params:
        return self._states.initial(io)

    def with_random_key(self, key: Any, state: Params | None, io: str = "file") -> Params:
        return self._states.with_random_key(key, state, io)

    # ---- inputs

    def tensors(self) -> list[Tensor]:
        return [self._subgraph.tensors[i] for i in self._inputs]

    def shapes(self) -> list[tuple[int | str, ...]]:
        return [t.shape for t in self.tensors()]

    def dtypes(self, io: str = "file") -> list[np.dtype]:
        return [dtype_of(t, io) for t in self.tensors()]

    def checked(self, inputs: Sequence[Any], io: str = "file") -> list[Any]:
        if len(inputs) != len(self._inputs):
            names = ", ".join(repr(t.name) for t in self.tensors())
            count = plural(len(self._inputs), "input")
            raise TensorError(f"the model has {count} ({names}), got {len(inputs)}")
        return [fitting(t, x, io) for t, x in zip(self.tensors(), inputs, strict=True)]

    def plan(self, shapes: Shapes) -> WholePlan:
        return self._plans.plan(shapes)


def _with_advice(run: Callable[[], V]) -> V:
    """Call `run`; add advice for users of `apply` to JAX's errors about shardings."""
    try:
        return run()
    except Exception as error:
        if type(error).__name__ == "ShardingTypeError":  # JAX does not export it
            error.add_note(_EXPLICIT_AXES)
        raise


def _device(place: Place) -> jax.Device:
    """The device, or the device of a mesh for which programs are compiled."""
    return place.device if isinstance(place, OverMesh) else place


def _for_slices(index: int, value: jax.Array, slices: BatchSlices) -> jax.Array:
    if slices == WHOLE_BATCH:
        return value
    shape = slices.shape(index, value.shape)
    return jnp.broadcast_to(value, (slices.count, *value.shape)).reshape(shape)
