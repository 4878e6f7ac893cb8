"""One subgraph as a JAX function, and as compiled programs."""

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.compiler.aot import ARGUMENT_BYTES
from jaxdelegate.compiler.program import Program, ResidentWeights
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import DelegationError, TensorError
from jaxdelegate.lowering import error_probe
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.lowering.partition import Callees, lower_partition
from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.options import DelegateOptions
from jaxdelegate.passes.explicit_state import state_zero, with_explicit_states
from jaxdelegate.passes.tensor_lists import with_list_updates
from jaxdelegate.pjrt import client
from jaxdelegate.runtime.fitting import remedy
from jaxdelegate.runtime.simple_delegate import DelegateParams, Node
from jaxdelegate.runtime.subgraph import Host, ModelStore

Params = dict[str, Any]
Shapes = tuple[Shape, ...]
Planned = tuple[Sequence[Node], Mapping[int, TensorSpec], tuple[int, ...]]
K = TypeVar("K")
V = TypeVar("V")

_ONCE = "CALL_ONCE"
_SOURCES = {"params": "model.function()", "state": "model.initial_state()"}
_EXPLICIT_AXES = (
    "apply: the inputs lie on a mesh with explicit axes; make it with axis_types=(AxisType.Auto, "
    "...), or call jax.sharding.auto_axes(apply, out_sharding=...)"
)
_SHAPES = 16  # lowerings kept per signature, one per input-shape signature


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
    ) -> None:
        """Lower nothing yet.

        Args:
            graph: the model.
            subgraph_index: which of its subgraphs.
            inputs: tensors to be given, in the caller's order.
            outputs: tensors to be returned, in the caller's order.
            options: what is computed, and where.
            max_tensor_bytes: see `check_sizes`.
        """
        self._options, self._max_tensor_bytes = options, max_tensor_bytes
        self._subgraphs = tuple(map(with_list_updates, graph.subgraphs))
        self._raw_subgraph = graph.subgraphs[subgraph_index]
        self._explicit = with_explicit_states(self._raw_subgraph)
        self._subgraph = self._explicit.subgraph
        self._inputs = inputs
        self._outputs = outputs
        self._transformable = JaxDelegate(options, native_kernels=False)
        self._resident: dict[jax.Device, ResidentWeights] = {}
        self._programs: OrderedDict[tuple[jax.Device, Shapes], Program | None] = OrderedDict()
        self._lowered: OrderedDict[Shapes, LoweredPartition] = OrderedDict()

    @functools.cached_property
    def _declared(self) -> LoweredPartition:
        return self._partition(tuple(self._subgraph.tensors[i].shape for i in self._inputs))

    @functools.cached_property
    def _names(self) -> dict[Weight, str]:
        return _param_names(self._subgraph, self._declared)

    @functools.cached_property
    def params(self) -> Params:
        """The weights by tensor name, in the file's layout."""
        values = {name: self._declared.value(weight) for weight, name in self._names.items()}
        with jax.enable_x64(True), jax.ensure_compile_time_eval():  # also inside of a trace
            return {name: jnp.asarray(value) for name, value in values.items()}

    @functools.cached_property
    def _jit(self) -> Callable[..., Any]:
        return jax.jit(self._apply)

    @functools.cached_property
    def _resources(self) -> Mapping[Hashable, np.ndarray]:
        """What CALL_ONCE assigns to resource variables, by their keys in the store."""
        store = self._store()
        for operator in self._raw_subgraph.operators:
            if operator.name == _ONCE:
                store(operator.options.init_subgraph_index)  # type: ignore[attr-defined]
        return dict(store.resources)

    def _store(self) -> ModelStore:
        return ModelStore(self._subgraphs, max_tensor_bytes=self._max_tensor_bytes)

    def run(self, inputs: tuple[Any, ...]) -> tuple[jax.Array, ...]:
        """Outputs; compiled as delegates compile, with weights laid out once, where JAX lets us."""
        arrays = self._checked(inputs)
        device = _device_of(arrays, self._options.platform)
        if device is None:
            outputs: tuple[jax.Array, ...] = self.apply(self.params, *inputs)
            return outputs
        program = self._program(device, tuple(a.shape for a in arrays))
        known = dict(zip(self._inputs, arrays, strict=True))
        if program is not None:
            states = self.initial_state() if program.states else {}
            first = {i: states[self._name(i)] for i in program.states}
            results = program([(known | first)[i] for i in (*program.inputs, *program.states)])
            known.update(zip(program.outputs, results, strict=False))
        with jax.enable_x64(True):
            return tuple(jnp.asarray(known[i]) for i in self._outputs)

    def _program(self, device: jax.Device, shapes: Shapes) -> Program | None:
        """As a delegate compiles it; None: there is nothing to compute."""

        def compiled() -> Program | None:
            index = jax.devices(device.platform).index(device)
            delegate = JaxDelegate(self._options, platform=device.platform, device_index=index)
            nodes, specs, outputs = self._planned(shapes, delegate)
            if not nodes:
                return None
            resident = self._resident.setdefault(device, ResidentWeights(client.of_jax(device)))
            whole = DelegateParams(tuple(nodes), self._inputs, outputs)
            program: Program = delegate.compilation.program(whole, specs, outputs, resident)
            return program

        return _kept(self._programs, (device, shapes), compiled)

    def apply(self, params: Params, *inputs: Any, state: Params | None = None) -> Any:
        """Outputs for inputs of any shapes the model accepts; with `state`, also the new state.

        Compiled for each set of shapes, where JAX does not trace it anyway.
        """
        self._check_names("params", params, self.params)
        if state is not None:
            self._check_names("state", state, [self._name(t.index) for t in self._variables])
        arrays = self._checked(inputs)
        # The inputs' 64-bit dtypes must survive on the way into the jitted function.
        with jax.enable_x64(True):
            return self._jit(params, *arrays, state=state)

    def _check_names(self, what: str, given: Any, wanted: Collection[str]) -> None:
        if not isinstance(given, Mapping):
            raise TensorError(
                f"apply(params, *inputs, state=None): {what} is a dictionary by tensor name, as "
                f"{_SOURCES[what]} returns it, got {type(given).__name__}"
            )
        missing = [name for name in wanted if name not in given]
        if missing:
            raise TensorError(
                f"apply: {what} has no {missing[0]!r}, and lacks {len(missing)} of {len(wanted)} "
                f"names; {_SOURCES[what]} returns all of them"
            )

    def _apply(self, params: Params, *arrays: Any, state: Params | None = None) -> Any:
        partition = self._partition(tuple(a.shape for a in arrays))
        with jax.enable_x64(True):
            weights = {
                weight: self._weight(partition, weight, params) for weight in partition.preparations
            }
            states = self.initial_state() if state is None else state
            by_index = {i: states[self._name(i)] for i in partition.states}
            given = dict(zip(self._inputs, arrays, strict=True))
            values = [given.get(i, by_index.get(i)) for i in (*partition.inputs, *partition.states)]
            results = _with_advice(lambda: partition.call(weights, values))
        n = len(partition.outputs)
        known = {**given, **dict(zip(partition.outputs, results[:n], strict=True))}
        outputs = tuple(known[i] for i in self._outputs)
        if state is None:
            return outputs
        return outputs, {
            self._name(i): value for i, value in zip(partition.states, results[n:], strict=True)
        }

    def initial_state(self) -> Params:
        """What every state begins with, by name."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return {self._name(t.index): jnp.asarray(self._first_value(t)) for t in self._variables}

    @functools.cached_property
    def _variables(self) -> list[Tensor]:
        return [t for t in self._subgraph.tensors if t.is_variable]

    def _first_value(self, tensor: Tensor) -> np.ndarray:
        """Zeros, a random generator's seeds, or what CALL_ONCE assigns to a resource variable."""
        if tensor.index in self._explicit.initial:
            return self._explicit.initial[tensor.index]()
        value = self._resources.get(self._explicit.resources.get(tensor.index))
        if value is not None:
            return np.asarray(value)
        return np.full(tensor.shape, state_zero(tensor.spec()), tensor.dtype)

    def _name(self, index: int) -> str:
        return self._subgraph.tensors[index].name or f"tensor_{index}"

    def _weight(self, partition: LoweredPartition, weight: Weight, params: Params) -> Any:
        if weight in self._names:
            return params[self._names[weight]]
        return jnp.asarray(partition.value(weight))

    def _checked(self, inputs: tuple[Any, ...]) -> list[Any]:
        if len(inputs) != len(self._inputs):
            names = ", ".join(repr(self._subgraph.tensors[i].name) for i in self._inputs)
            raise TensorError(
                f"the model has {len(self._inputs)} inputs ({names}), got {len(inputs)}"
            )
        return [self._fitting(i, x) for i, x in zip(self._inputs, inputs, strict=True)]

    def _fitting(self, index: int, x: Any) -> Any:
        tensor = self._subgraph.tensors[index]
        array = x if isinstance(x, jax.Array | np.ndarray) else _as_array(x, tensor.dtype)
        is_narrowed = array.dtype.kind == tensor.dtype.kind and isinstance(x, jax.Array)
        if array.dtype != tensor.dtype and is_narrowed and tensor.dtype.itemsize == 8:
            with jax.enable_x64(True):  # without 64-bit types JAX has no such array to offer
                return jnp.asarray(array, tensor.dtype)
        if array.dtype != tensor.dtype:
            what_to_do = remedy(array.dtype, array.shape, tensor.dtype, tensor.shape)
            raise TensorError(
                f"input {index} {tensor.name!r} wants {tensor.dtype} {list(tensor.shape)}, "
                f"got {array.dtype} {list(array.shape)}{what_to_do}"
            )
        symbols = [str(n) for n in array.shape if not isinstance(n, int)]
        if symbols:
            raise TensorError(
                f"input {index} {tensor.name!r} has the symbolic dimension {symbols[0]!r}; models "
                "are lowered for known sizes: export one function for each of them"
            )
        return array

    def _partition(self, shapes: Shapes) -> LoweredPartition:
        return _kept(self._lowered, shapes, lambda: self._transformable_partition(shapes))

    def _transformable_partition(self, shapes: Shapes) -> LoweredPartition:
        """All operators as JAX can transform them, with weights in the file's layout."""
        delegate = self._transformable
        nodes, specs, outputs = self._planned(shapes, delegate)

        def lower(precision: PrecisionPolicy) -> LoweredPartition:
            context = dataclasses.replace(delegate.lowering_context, precision=precision)
            return lower_partition(
                [node.operator for node in nodes],
                specs,
                self._inputs,
                outputs,
                Callees(self._subgraphs, context).in_context(),
                raw_weights=True,
            )

        precision = delegate.lowering_context.precision
        if delegate.checks_precision:
            precision = error_probe.guarded(lower, precision, delegate.device)
        return lower(precision)

    def _planned(self, shapes: Shapes, delegate: JaxDelegate) -> Planned:
        """All nodes, the spec of every tensor, and the outputs that operators make."""
        host = Host(self._raw_subgraph, model=self._store())
        for index, shape in zip(self._inputs, shapes, strict=True):
            host.resize(index, tuple(shape))
        host.plan()
        nodes = [node for node in host.nodes() if node.name != _ONCE]  # see `_resources`
        reasons = [(node, delegate.why_not(node)) for node in nodes]
        left = [f"#{node.index} {node.name}: {reason}" for node, reason in reasons if reason]
        if left:
            raise DelegationError("XLA cannot run the whole model:\n" + "\n".join(left))
        indices = range(len(self._subgraph.tensors))
        made = [i for i in self._outputs if i not in self._inputs]
        specs = {i: host.spec(i) for i in indices}
        return nodes, specs, tuple(dict.fromkeys(made))


def _with_advice(run: Callable[[], V]) -> V:
    """What `run` returns; what JAX says about shardings is said for users of `apply`, too."""
    try:
        return run()
    except Exception as error:
        if type(error).__name__ == "ShardingTypeError":  # JAX does not export it
            error.add_note(_EXPLICIT_AXES)
        raise


def _as_array(x: Any, dtype: np.dtype) -> np.ndarray:
    """An array of what is none. Numbers and lists of them have no dtype: they take the tensor's.

    Integers become integers or floats, but floats only floats.
    """
    array = np.asarray(x)
    is_number = array.dtype.kind in "iuf" and dtype.kind in "iuf"
    if not isinstance(x, int | float | list | tuple) or not is_number:
        return array
    return array if array.dtype.kind == "f" and dtype.kind != "f" else np.asarray(x, dtype)


def _kept(entries: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """The entry of this key, made if there is none; the oldest ones go."""
    if key not in entries:
        entries[key] = make()
    entries.move_to_end(key)
    while len(entries) > _SHAPES:
        entries.popitem(last=False)
    return entries[key]


def _device_of(arrays: Sequence[Any], platform: str | None) -> jax.Device | None:
    """The one device to run on; None for what JAX traces, and for arrays on several devices."""
    if any(isinstance(a, jax.core.Tracer) for a in arrays):
        return None
    devices = {d for a in arrays if isinstance(a, jax.Array) and a.committed for d in a.devices()}
    if len(devices) > 1:
        return None
    return next(iter(devices), None) or _default_device(platform)


def _default_device(platform: str | None) -> jax.Device:
    """The platform's first device; without one, where JAX would put an array."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if platform is not None:
        return jax.local_devices(backend=platform)[0]
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def _param_names(subgraph: Subgraph, partition: LoweredPartition) -> dict[Weight, str]:
    """The constants that are parameters, uniquely named: what is float, and whatever is large."""
    names: dict[Weight, str] = {}
    for weight in partition.preparations:
        const = partition.specs[weight.tensor].const
        is_weight = const is not None and (const.dtype in FLOATS or const.nbytes >= ARGUMENT_BYTES)
        if is_weight:
            name = subgraph.tensors[weight.tensor].name or f"tensor_{weight.tensor}"
            names[weight] = f"{name}#{weight.tensor}" if name in names.values() else name
    return names
