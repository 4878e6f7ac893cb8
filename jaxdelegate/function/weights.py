"""The weights of a subgraph's function: as in the file, or prepared for a device."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.errors import GradientError, OptionError, TensorError
from jaxdelegate.function.arguments import check_alive, check_names, selected
from jaxdelegate.function.context import Ends, ModelContext
from jaxdelegate.function.lowerings import Lowerings, for_platform
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.records import Parameter, Params, Place, Scale
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.passes.propagation import declared_specs, subgraph_specs
from jaxdelegate.pjrt import client
from jaxdelegate.plan.whole import Shapes, WholePlans
from jaxdelegate.program import Partition
from jaxdelegate.simple_delegate import DelegateParams
from jaxdelegate.xla.aot import resident_array, split_weights

_SOURCE = "model.function(weights='prepared') returns what this apply takes"

Results = tuple[tuple[Any, ...], Params]  # outputs and states
# Computes a partition in a mode from weights, inputs and states.
Compute = Callable[[LoweredPartition, Mode, Mapping[Weight, Any], tuple[Any, ...], Params], Results]


class FileWeights:
    """The leaves that a subgraph reads, in the file's layout, and its trainable scales."""

    def __init__(self, model: ModelContext, subgraph: Subgraph, lowerings: Lowerings) -> None:
        """`subgraph`: with explicit states."""
        self._subgraphs, self._subgraph, self._lowerings = model.subgraphs, subgraph, lowerings
        self._leaves, self._trainable, self._arrays = model.leaves, model.trainable, model.arrays
        self._scales: dict[Mode, dict[str, Scale]] = {}

    @functools.cached_property
    def _declared(self) -> LoweredPartition:
        return self._lowerings.declared(learns=False)

    @functools.cached_property
    def _values(self) -> dict[str, tuple[Place, np.ndarray]]:
        """A place and the file's value of each leaf, by name."""
        places = {w: self._place(w) for w in self._parameters_of(self._declared)}
        return {
            self._leaves.name(place): (place, self._declared.constant(weight))
            for weight, place in places.items()
        }

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """A record for each leaf of `params`, by name."""
        rows = self._values.items()
        return {name: self._leaves.parameter(place, value) for name, (place, value) in rows}

    @property
    def params(self) -> Params:
        """The weights by name, in the file's layout.

        All functions of the model share the arrays; a donated one is created again when it is
        next used.
        """
        arrays = {name: self._arrays.get(name) for name in self._values}
        lost = [name for name, array in arrays.items() if array is None or array.is_deleted()]
        if lost:  # concrete arrays, also during a trace
            with jax.enable_x64(True), jax.ensure_compile_time_eval(), client.on_purpose():
                arrays.update((name, jnp.asarray(self._values[name][1])) for name in lost)
            self._arrays.update((name, arrays[name]) for name in lost)
        return arrays

    def leaves(self, mode: Mode) -> Params:
        """`params`, and the scales that are trained; see `scales`."""
        with client.on_purpose():
            scales = {name: jnp.asarray(s.value) for name, s in self.scales(mode).items()}
        return {**self.params, **scales}

    def scales(self, mode: Mode) -> dict[str, Scale]:
        """The trained scales of activations, and of weights that are rounded to grids, by name."""
        if mode not in self._scales:
            places = [place for place, _ in self._values.values()]
            if mode.on_grid and not any(map(self._trainable.is_weight, places)):
                raise OptionError("weights='fake_quantized': the model has no quantized weights")
            names = self._used_scales(mode, places) if mode.learns else set()
            if mode.learns and not names:
                raise OptionError("ranges='learned': the model has no scales that can change")
            known = self._trainable.scales
            self._scales[mode] = {name: known[name] for name in known if name in names}
        return self._scales[mode]

    def _used_scales(self, mode: Mode, places: Iterable[Place]) -> set[str]:
        partition = self._lowerings.declared(learns=True)
        activations = [self._place(w) for w in partition.preparations if w.is_scale]
        names = {self._trainable.by_place[place] for place in activations}
        of_weights = map(self._trainable.scale_of_weight, places if mode.on_grid else ())
        return names | {name for name in of_weights if name is not None}

    def _parameters_of(self, partition: LoweredPartition) -> Iterable[Weight]:
        return (w for w in partition.preparations if self._is_parameter(partition, w))

    def _is_parameter(self, partition: LoweredPartition, weight: Weight) -> bool:
        if weight.is_scale:
            return False
        if weight.subgraph is None and weight.tensor not in self._fixed:
            return False  # it depends on the inputs' shapes
        if weight in partition.built_in:
            return False
        dtype = partition.constant(weight).dtype
        return self._leaves.is_parameter(self._place(weight), dtype)

    @functools.cached_property
    def _fixed(self) -> frozenset[int]:
        """Tensors that are constant for all inputs."""
        declared = declared_specs(self._subgraph)
        anything = tuple(
            dataclasses.replace(declared[i], is_dynamic=True) for i in self._subgraph.inputs
        )
        specs = subgraph_specs(self._subgraph, anything, self._subgraphs)
        return frozenset(i for i, spec in enumerate(specs) if spec.const is not None)

    def _place(self, weight: Weight) -> Place:
        subgraph = self._subgraph.index if weight.subgraph is None else weight.subgraph
        return subgraph, weight.tensor

    def read_by(self, partition: LoweredPartition, params: Params, mode: Mode) -> dict[Weight, Any]:
        """All weights of a partition, from the leaves."""
        return {w: self._weight(partition, w, params, mode) for w in partition.preparations}

    def _weight(
        self, partition: LoweredPartition, weight: Weight, params: Params, mode: Mode
    ) -> Any:
        """A weight as the partition reads it: a leaf, downcast if necessary, or a constant."""
        value, place = partition.value(weight), self._place(weight)
        scales = self.scales(mode)
        if weight.is_scale:
            name = self._trainable.by_place[place]
            return jnp.asarray(params[name] if name in scales else value)
        if not self._is_parameter(partition, weight):
            return jnp.asarray(value)
        leaf = params[self._leaves.name(place)]
        if mode.on_grid:
            leaf = self._trainable.on_grid(place, leaf, {name: params[name] for name in scales})
            leaf = fusion_barrier(leaf)  # XLA then compiles operators as for an input
        return downcast(jnp.asarray(leaf), value.dtype)

    def fitting(self, params: Any, mode: Mode) -> Params:
        """Select this subgraph's leaves and scales from those that a caller gives; check them."""
        wanted = {name: parameter.shape for name, parameter in self.parameters.items()}
        wanted |= {name: scale.value.shape for name, scale in self.scales(mode).items()}
        return selected("params", params, wanted)

    def call(
        self, compute: Compute, mode: Mode, params: Params, arrays: tuple[Any, ...], states: Params
    ) -> Results:
        """The outputs and states, in each form that XLA may need."""

        def form(partition: LoweredPartition, params: Params, *rest: Any) -> Results:
            return compute(partition, mode, self.read_by(partition, params, mode), *rest)

        shapes = tuple(a.shape for a in arrays)
        lowered = self._lowerings.by_platform(shapes, mode.platform, learns=mode.learns)
        forms = {name: functools.partial(form, partition) for name, partition in lowered.items()}
        with jax.enable_x64(True):
            outputs, states = for_platform(forms, params, arrays, states)
        return outputs, states


@dataclasses.dataclass(frozen=True)
class _Lowered:
    partition: LoweredPartition
    arrays: Mapping[Weight, jax.Array]  # on the device
    constants: Mapping[Weight, Any]  # small ones, which programs contain

    @functools.cached_property
    def named(self) -> Params:
        """The arrays by name, after their tensors; equal arrays have one name."""
        names: dict[int, str] = {}
        counts: dict[str, int] = {}
        for weight, array in self.arrays.items():
            if id(array) in names:
                continue
            name = self.partition.specs[weight.tensor].name or f"tensor_{weight.tensor}"
            counts[name] = counts.get(name, 0) + 1
            names[id(array)] = name if counts[name] == 1 else f"{name}#{counts[name]}"
        by_id = {id(array): array for array in self.arrays.values()}
        return {name: by_id[i] for i, name in names.items()}


class PreparedWeights:
    """Weights for inference, as the programs of a device read them.

    A delegate's compiler lowers the subgraph for the device, once for each set of input shapes.
    """

    def __init__(
        self, model: ModelContext, ends: Ends, declared: Shapes, plans: WholePlans
    ) -> None:
        """`declared`: the shapes of the file."""
        self._inputs, self._declared, self._plans = ends.inputs, declared, plans
        self._compilers = model.compilers
        self._first: dict[str | None, _Lowered] = {}
        self._others: LruCache[Any, _Lowered] = LruCache(model.view.options.max_programs)

    @property
    def computes(self) -> bool:
        """Whether there is an operator to run: all outputs may be inputs or constants."""
        return bool(self._plans.plan(self._declared).nodes)

    def declare(self, shapes: Shapes) -> None:
        """Lower for these shapes first, instead of the file's, which callers may never use."""
        if not self._first:
            self._declared = shapes

    def leaves(self, mode: Mode) -> Params:
        """The weights for the declared shapes, by name; a donated one is created again."""
        first = self._first.get(mode.device)
        if first is None or any(array.is_deleted() for array in first.arrays.values()):
            first = self._first[mode.device] = self._lowered(mode.device, self._declared)
        return dict(first.named)

    def fitting(self, params: Any, mode: Mode) -> Params:
        """Select the weights from those that a caller gives."""
        wanted = self.leaves(mode)
        check_names("params", params, ())
        for name, leaf in wanted.items():
            if name not in params:
                raise TensorError(f"apply: params has no {name!r}: {_SOURCE}")
            check_alive("apply: params", name, params[name])
            got = jnp.asarray(params[name])
            if (got.shape, got.dtype) != (leaf.shape, leaf.dtype):
                raise TensorError(
                    f"apply: params[{name!r}]: expected {leaf.dtype} {list(leaf.shape)}, got "
                    f"{got.dtype} {list(got.shape)}: {_SOURCE}"
                )
        return {name: params[name] for name in wanted}

    def call(
        self, compute: Compute, mode: Mode, params: Params, arrays: tuple[Any, ...], states: Params
    ) -> Results:
        """The outputs and states; differentiating them raises a GradientError."""
        shapes = tuple(a.shape for a in arrays)
        with jax.enable_x64(True):
            lowered, weights = self._read(mode.device, shapes, params)

            def run(values: Any, *rest: Any) -> Results:
                return compute(
                    lowered.partition, mode, dict(zip(weights, values, strict=True)), *rest
                )

            call = jax.custom_jvp(run)
            call.defjvp(_refuse)
            return call(list(weights.values()), arrays, states)

    def _read(
        self, platform: str | None, shapes: Shapes, params: Params
    ) -> tuple[_Lowered, dict[Weight, Any]]:
        """The lowering for these shapes, with its weights; what `params` lacks is constant."""
        lowered = first = self._first[platform]
        if shapes != self._declared:
            lowered = self._others.get((platform, shapes), lambda: self._lowered(platform, shapes))
        replaced = {id(array): params[name] for name, array in first.named.items()}
        arrays = {
            weight: replaced.get(id(array), array) for weight, array in lowered.arrays.items()
        }
        return lowered, {**arrays, **lowered.constants}

    def _lowered(self, platform: str | None, shapes: Shapes) -> _Lowered:
        compiler, shared = self._compilers.preparing(platform)
        weights = ModelWeights(shared.runtime, shared)
        on_cpu = compiler.platform == "cpu"
        plan = self._plans.all_taken(shapes, compiler.why_not, on_cpu=on_cpu)
        params = DelegateParams(plan.nodes, self._inputs, plan.outputs)
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            partition = compiler.compilation.lowered(Partition(params, plan.specs, plan.outputs))
            arguments, constants = split_weights(partition, compiler.platform)
            arrays = {w: resident_array(weights, w, partition) for w in arguments}
        return _Lowered(partition, arrays, constants)


def _refuse(_primals: Any, _tangents: Any) -> NoReturn:
    raise GradientError(
        "weights='prepared' is for inference: its weights are laid out for a device, and its "
        "kernels have no derivatives; model.function() without it has gradients"
    )
