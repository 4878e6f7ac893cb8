"""One subgraph as a JAX function, and as compiled programs."""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.compiler.program import Program, ResidentWeights
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function import forms
from jaxdelegate.function.arguments import check_names, device_of, dtype_of, fitting
from jaxdelegate.function.parameters import Leaves
from jaxdelegate.function.planning import Planned, Plans, Shapes, kept
from jaxdelegate.function.records import Parameter, Scale
from jaxdelegate.function.states import States
from jaxdelegate.function.training import AS_STORED, Trainable, Training
from jaxdelegate.lowering import error_probe, fake_quantization
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.options import DelegateOptions
from jaxdelegate.passes.explicit_state import with_explicit_states
from jaxdelegate.passes.propagation import declared_specs, subgraph_specs
from jaxdelegate.passes.runs import ONCE, Runs
from jaxdelegate.passes.tensor_lists import with_list_updates
from jaxdelegate.pjrt import client
from jaxdelegate.runtime.simple_delegate import DelegateParams
from jaxdelegate.runtime.subgraph import ModelStore

Params = dict[str, Any]
V = TypeVar("V")

_EXPLICIT_AXES = (
    "apply: the inputs lie on a mesh with explicit axes; make it with axis_types=(AxisType.Auto, "
    "...), or call jax.sharding.auto_axes(apply, out_sharding=...)"
)


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A subgraph for certain input shapes, operator by operator, and what it begins with.

    `weights` are those of `partition.preparations`, `states` those of `partition.states`.
    """

    partition: LoweredPartition
    weights: Mapping[Weight, jax.Array]
    states: tuple[jax.Array, ...]


class SubgraphFunction:
    """One subgraph with chosen inputs and outputs, lowered once for every input-shape signature."""

    def __init__(
        self,
        graph: Model,
        subgraph_index: int,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        options: DelegateOptions,
        max_tensor_bytes: int,
        trainable: Trainable,
    ) -> None:
        """Lower nothing yet.

        Args:
            graph: the model.
            subgraph_index: which of its subgraphs.
            inputs: tensors to be given, in the caller's order.
            outputs: tensors to be returned, in the caller's order.
            options: what is computed, and where.
            max_tensor_bytes: see `check_sizes`.
            trainable: grids and scales of the whole file.
        """
        self._trainable = trainable
        self._options, self._max_tensor_bytes = options, max_tensor_bytes
        self._subgraphs = tuple(map(with_list_updates, graph.subgraphs))
        self._raw_subgraph = graph.subgraphs[subgraph_index]
        self._explicit = with_explicit_states(self._raw_subgraph)
        self._subgraph = self._explicit.subgraph
        self._inputs = inputs
        self.outputs = outputs
        self._transformable = JaxDelegate(options, native_kernels=False)
        self._leaves = Leaves(graph.subgraphs, as_floats=options.quant_mode == "float_view")
        self._resident: dict[jax.Device, ResidentWeights] = {}
        self._programs: OrderedDict[Hashable, Program | None] = OrderedDict()
        self._jitted: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
        self._plans = Plans(self._raw_subgraph, inputs, outputs, self._store)
        self._states = States(self._explicit, self._store)
        self._lowered: OrderedDict[Hashable, LoweredPartition] = OrderedDict()
        self._scales: dict[Training, dict[str, Scale]] = {}

    # ---- parameters

    @functools.cached_property
    def _declared(self) -> LoweredPartition:
        return self._as_declared(learns=False)

    def _as_declared(self, *, learns: bool) -> LoweredPartition:
        shapes = tuple(self._subgraph.tensors[i].shape for i in self._inputs)
        context = next(iter(forms.contexts(self._transformable, None).values()))
        return self._partition(shapes, context, learns=learns)

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """What is known of each leaf of `params`, by name."""
        found = {}
        for weight in self._parameters_of(self._declared):
            place = self._place(weight)
            value = self._declared.constant(weight)
            found[self._leaves.name(*place)] = self._leaves.parameter(*place, value)
        return found

    @functools.cached_property
    def params(self) -> Params:
        """The weights by name, in the file's layout."""
        values = {
            self._leaves.name(*self._place(weight)): self._declared.constant(weight)
            for weight in self._parameters_of(self._declared)
        }
        with jax.enable_x64(True), jax.ensure_compile_time_eval():  # also inside of a trace
            return {name: jnp.asarray(value) for name, value in values.items()}

    def leaves(self, training: Training) -> Params:
        """`params`, and the scales that are trained; see `scales`."""
        return {
            **self.params,
            **{name: jnp.asarray(scale.value) for name, scale in self.scales(training).items()},
        }

    def scales(self, training: Training) -> dict[str, Scale]:
        """The scales that are trained, by name: of activations, and of weights put on their grids.

        Raises:
            OptionError: the subgraph has nothing of what is to be trained.
        """
        if training not in self._scales:
            places = [self._place(weight) for weight in self._parameters_of(self._declared)]
            if training.on_grid and not any(map(self._trainable.is_weight, places)):
                raise OptionError("weights='fake_quantized': the model has no quantized weights")
            found = self._used_scales(training, places) if training.learns else set()
            if training.learns and not found:
                raise OptionError("ranges='learned': the model has no scales that can change")
            known = self._trainable.scales
            self._scales[training] = {name: known[name] for name in known if name in found}
        return self._scales[training]

    def _used_scales(self, training: Training, places: Iterable[tuple[int, int]]) -> set[str]:
        partition = self._as_declared(learns=True)
        activations = [self._place(w) for w in partition.preparations if w.is_scale]
        found = {self._trainable.by_place[place] for place in activations}
        of_weights = map(self._trainable.scale_of_weight, places if training.on_grid else ())
        return found | {name for name in of_weights if name is not None}

    def _parameters_of(self, partition: LoweredPartition) -> Iterable[Weight]:
        for weight in partition.preparations:
            if self._is_parameter(partition, weight):
                yield weight

    def _is_parameter(self, partition: LoweredPartition, weight: Weight) -> bool:
        if weight.is_scale:
            return False
        if weight.subgraph is None and weight.tensor not in self._fixed:
            return False  # it follows from the inputs' shapes
        if weight in partition.built_in:
            return False
        dtype = partition.constant(weight).dtype
        return self._leaves.is_parameter(*self._place(weight), dtype)

    @functools.cached_property
    def _fixed(self) -> frozenset[int]:
        """Tensors that are constant whatever comes in."""
        declared = declared_specs(self._subgraph)
        anything = tuple(
            dataclasses.replace(declared[i], is_dynamic=True) for i in self._subgraph.inputs
        )
        specs = subgraph_specs(self._subgraph, anything, self._subgraphs)
        return frozenset(i for i, spec in enumerate(specs) if spec.const is not None)

    def _place(self, weight: Weight) -> tuple[int, int]:
        subgraph = self._raw_subgraph.index if weight.subgraph is None else weight.subgraph
        return subgraph, weight.tensor

    def _weight(
        self, partition: LoweredPartition, weight: Weight, params: Params, training: Training
    ) -> Any:
        """A weight as the partition reads it: a leaf, downcast where it is held so, or a value."""
        value, place = partition.value(weight), self._place(weight)
        scales = self.scales(training)
        if weight.is_scale:
            name = self._trainable.by_place[place]
            return jnp.asarray(params[name] if name in scales else value)
        if not self._is_parameter(partition, weight):
            return jnp.asarray(value)
        leaf = params[self._leaves.name(*place)]
        if training.on_grid:
            leaf = self._trainable.on_grid(place, leaf, {name: params[name] for name in scales})
            leaf = fusion_barrier(leaf)  # operators see an array, as if it came in so
        return downcast(jnp.asarray(leaf), value.dtype)

    # ---- compiled, as delegates compile

    def run(self, arrays: Sequence[Any], runs: Runs = ONCE) -> tuple[jax.Array, ...] | None:
        """Outputs; compiled as delegates compile, with weights laid out once.

        Args:
            arrays: the inputs, as `checked` returns them.
            runs: how many single runs they are for.

        Returns:
            None: JAX traces the inputs, or they are on several devices: see `call`.
        """
        device = device_of(arrays, self._options.platform)
        if device is None:
            return None
        given = zip(self._inputs, arrays, strict=True)
        shapes = tuple(_of_one(i, a.shape, self._subgraph.tensors[i], runs) for i, a in given)
        program = self._program(device, shapes, runs)
        known = dict(zip(self._inputs, arrays, strict=True))
        if program is not None:
            states = self.initial_state() if program.states else {}
            first = {i: _of_all(i, states[self._states.names[i]], runs) for i in program.states}
            results = program([(known | first)[i] for i in (*program.inputs, *program.states)])
            known.update(zip(program.outputs, results, strict=False))
        with jax.enable_x64(True):
            return tuple(jnp.asarray(known[i]) for i in self.outputs)

    def _program(self, device: jax.Device, shapes: Shapes, runs: Runs) -> Program | None:
        """As a delegate compiles it; None: there is nothing to compute."""

        def compiled() -> Program | None:
            index = jax.devices(device.platform).index(device)
            delegate = JaxDelegate(self._options, platform=device.platform, device_index=index)
            plan = self._plans.all_taken(shapes, delegate.lowering_context)
            if not plan.nodes:
                return None
            resident = self._resident.setdefault(device, ResidentWeights(client.of_jax(device)))
            several = None if runs == ONCE else runs
            whole = DelegateParams(plan.nodes, self._inputs, plan.outputs, several)
            program: Program = delegate.compilation.program(
                whole, plan.specs, plan.outputs, resident
            )
            return program

        return kept(self._programs, (device, shapes, runs), compiled)

    # ---- traced

    def call(
        self,
        params: Params,
        arrays: Sequence[Any],
        state: Params | None = None,
        *,
        io: str = "file",
        platform: str | None = None,
        training: Training = AS_STORED,
    ) -> tuple[tuple[Any, ...], Params]:
        """Outputs and the new state. Compiled for each set of shapes, where JAX does not trace it.

        Args:
            params: all leaves, by name; others are passed over.
            arrays: the inputs, as `checked` returns them.
            state: by name; None: the initial one.
            io: "float": quantized inputs, outputs and states are the floats that they stand for.
            platform: the only one to lower for; None: whatever XLA compiles for.
            training: whether weights are put on their grids, and scales are leaves.
        """
        params = self._fitting_params(params, training)
        if state is not None:
            check_names("state", state, self._states.names.values())
        # The inputs' 64-bit dtypes must survive on the way into the jitted function.
        with jax.enable_x64(True):
            run = self._jit(io, platform, training)
            outputs, states = _with_advice(lambda: run(params, tuple(arrays), state))
        return outputs, states

    def lowered(self, shapes: Shapes, params: Params | None = None) -> Lowering:
        """The operators one by one, as JAX can transform them, for the options' device.

        Args:
            shapes: of the inputs.
            params: all leaves, by name; None: the file's.

        Raises:
            DelegationError: an operator that XLA cannot run; lists all of them.
        """
        platform = self._transformable.lowering_context.platform
        (context,) = forms.contexts(self._transformable, platform).values()
        with jax.enable_x64(True):
            partition = self._partition(shapes, context, learns=False)
            given = self.params if params is None else params
            leaves = self._fitting_params(given, AS_STORED)
            weights = {
                w: self._weight(partition, w, leaves, AS_STORED) for w in partition.preparations
            }
            first = self.initial_state() if partition.states else {}
            states = tuple(first[self._states.names[i]] for i in partition.states)
        return Lowering(partition, weights, states)

    def _jit(self, io: str, platform: str | None, training: Training) -> Callable[..., Any]:
        how: dict[str, Any] = {"io": io, "platform": platform, "training": training}
        return kept(
            self._jitted,
            (io, platform, training),
            lambda: jax.jit(functools.partial(self._call, **how)),
        )

    def _call(
        self,
        params: Params,
        arrays: tuple[Any, ...],
        state: Params | None,
        *,
        io: str,
        platform: str | None,
        training: Training,
    ) -> tuple[tuple[Any, ...], Params]:
        shapes = tuple(a.shape for a in arrays)
        states = self.initial_state(io) if state is None else state
        by_platform = {
            name: functools.partial(
                self._lowered_call,
                self._partition(shapes, context, learns=training.learns),
                io,
                training,
            )
            for name, context in self._contexts(shapes, platform).items()
        }
        with jax.enable_x64(True):
            outputs, states = forms.chosen_later(by_platform, params, arrays, states)
        return outputs, states

    def _contexts(self, shapes: Shapes, platform: str | None) -> dict[str, LoweringContext]:
        """Those of the trace in which all operators can be lowered; raises if there are none."""
        contexts = forms.contexts(self._transformable, platform)
        plan = self._plans.plan(shapes)
        possible = {name: c for name, c in contexts.items() if not plan.refused(c)}
        if not possible:
            self._plans.all_taken(shapes, next(iter(contexts.values())))
        return possible

    def _lowered_call(
        self,
        partition: LoweredPartition,
        io: str,
        training: Training,
        params: Params,
        arrays: tuple[Any, ...],
        states: Params,
    ) -> tuple[tuple[Any, ...], Params]:
        weights = {w: self._weight(partition, w, params, training) for w in partition.preparations}
        known = dict(zip(self._inputs, arrays, strict=True))
        known.update((i, states[self._states.names[i]]) for i in partition.states)
        read = (*partition.inputs, *partition.states)
        if io == "float":
            results = self._float_call(partition, weights, [known[i] for i in read])
        else:
            results = partition.call(weights, [known[i] for i in read])
        made = dict(zip((*partition.outputs, *partition.states), results, strict=True))
        known.update(made)
        new = {**states, **{self._states.names[i]: made[i] for i in partition.states}}
        return tuple(jnp.asarray(known[i]) for i in self.outputs), new

    def _float_call(
        self, partition: LoweredPartition, weights: Mapping[Weight, Any], values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """As `partition.call`, on floats in place of quantized integers, in and out."""
        read = [partition.outside(i) for i in (*partition.inputs, *partition.states)]
        if partition.stored:  # a float view: it rounds floats as it would round integers
            indices = (*partition.inputs, *partition.states)
            scales = (partition.scale(i, weights) for i in indices)
            on_grid = map(fake_quantization.simulate, values, read, scales)
            return partition.call(weights, list(on_grid), inside=True)
        results = partition.call(weights, list(map(fake_quantization.leave, values, read)))
        made = (partition.outside(i) for i in (*partition.outputs, *partition.states))
        return tuple(map(fake_quantization.enter, results, made))

    def _fitting_params(self, params: Any, training: Training) -> Params:
        """The leaves that this subgraph reads, and the scales.

        Raises:
            TensorError: one is missing, or has another shape than the file's.
        """
        wanted = {name: parameter.shape for name, parameter in self.parameters.items()}
        wanted |= {name: scale.value.shape for name, scale in self.scales(training).items()}
        check_names("params", params, wanted)
        for name, shape in wanted.items():
            given = jnp.shape(params[name])
            if given != shape:
                raise TensorError(
                    f"apply: params[{name!r}] wants the shape {list(shape)}, got {list(given)}"
                )
        return {name: params[name] for name in wanted}

    # ---- states

    @property
    def has_state(self) -> bool:
        """Whether anything is kept from one call to the next."""
        return bool(self._states.names)

    def initial_state(self, io: str = "file") -> Params:
        """What every state begins with, by name."""
        return self._states.initial(io)

    def drawing_by(self, key: Any, state: Params | None, io: str = "file") -> Params:
        """The state (None: the initial one) with random generators that begin where a key says.

        Raises:
            TensorError: the model draws no random numbers.
        """
        return self._states.drawing_by(key, state, io)

    # ---- inputs

    def tensors(self) -> list[Tensor]:
        """The inputs."""
        return [self._subgraph.tensors[i] for i in self._inputs]

    def shapes(self) -> list[tuple[int | str, ...]]:
        """The inputs' shapes, as declared."""
        return [t.shape for t in self.tensors()]

    def dtypes(self, io: str = "file") -> list[np.dtype]:
        """The inputs' dtypes."""
        return [dtype_of(t, io) for t in self.tensors()]

    def checked(self, inputs: Sequence[Any], io: str = "file") -> list[Any]:
        """The inputs as arrays.

        Raises:
            TensorError: too many or too few, or one of another dtype.
        """
        if len(inputs) != len(self._inputs):
            names = ", ".join(repr(t.name) for t in self.tensors())
            raise TensorError(
                f"the model has {len(self._inputs)} inputs ({names}), got {len(inputs)}"
            )
        return [fitting(t, x, io) for t, x in zip(self.tensors(), inputs, strict=True)]

    # ---- lowering

    def plan(self, shapes: Shapes) -> Planned:
        """The nodes and tensors for such inputs.

        Raises:
            InterpreterError: an operator refuses the shapes.
        """
        return self._plans.plan(shapes)

    def _partition(
        self, shapes: Shapes, context: LoweringContext, *, learns: bool
    ) -> LoweredPartition:
        """All operators as JAX can transform them, with weights in the file's layout."""
        learned = frozenset(self._trainable.by_place if learns else ())
        return kept(
            self._lowered,
            (shapes, context, learns),
            lambda: self._transformable_partition(shapes, context, learned),
        )

    def _transformable_partition(
        self, shapes: Shapes, context: LoweringContext, learned: frozenset[tuple[int, int]]
    ) -> LoweredPartition:
        own_index = self._raw_subgraph.index
        plan = self._plans.all_taken(shapes, context)

        def lower(precision: PrecisionPolicy) -> LoweredPartition:
            own = dataclasses.replace(context, precision=precision)
            return lower_partition(
                [node.operator for node in plan.nodes],
                plan.specs,
                self._inputs,
                plan.outputs,
                Callees(self._subgraphs, own, learned).in_context(),
                raw_weights=True,
                learned={i for s, i in learned if s == own_index},
            )

        delegate = self._transformable
        if delegate.checks_precision:
            return lower(error_probe.guarded(lower, context.precision, delegate.device))
        return lower(context.precision)

    def _store(self) -> ModelStore:
        return ModelStore(self._subgraphs, max_tensor_bytes=self._max_tensor_bytes)


def _with_advice(run: Callable[[], V]) -> V:
    """What `run` returns; what JAX says about shardings is said for users of `apply`, too."""
    try:
        return run()
    except Exception as error:
        if type(error).__name__ == "ShardingTypeError":  # JAX does not export it
            error.add_note(_EXPLICIT_AXES)
        raise


def _of_one(index: int, shape: Shape, tensor: Tensor, runs: Runs) -> Shape:
    """An input's shape in one run, of its shape for all of them."""
    if not runs.are_single or index in runs.shared:
        return shape
    return (1, *shape[1:]) if len(shape) == len(tensor.shape) else shape[1:]


def _of_all(index: int, value: jax.Array, runs: Runs) -> jax.Array:
    """What a state begins with, for all runs."""
    if runs == ONCE:
        return value
    shape = runs.shape(index, value.shape)
    return jnp.broadcast_to(value, (runs.count, *value.shape)).reshape(shape)
