"""The weights of a subgraph: their records and values, and their form for its operators."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.arguments import check_alive, check_names
from jaxdelegate.function.lowerings import Lowerings
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.parameters import Leaves
from jaxdelegate.function.records import Parameter, Scale
from jaxdelegate.function.training import Trainable
from jaxdelegate.lowering.computation import LoweredPartition, Weight
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.passes.propagation import declared_specs, subgraph_specs
from jaxdelegate.pjrt import client

Params = dict[str, Any]


class SubgraphWeights:
    """The leaves that a subgraph reads, and its trainable scales."""

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        subgraph: Subgraph,
        lowerings: Lowerings,
        leaves: Leaves,
        trainable: Trainable,
        arrays: Params,
    ) -> None:
        self._subgraphs, self._subgraph = subgraphs, subgraph
        self._lowerings, self._leaves, self._trainable = lowerings, leaves, trainable
        self._scales: dict[Mode, dict[str, Scale]] = {}
        self._arrays = arrays

    @functools.cached_property
    def _declared(self) -> LoweredPartition:
        return self._lowerings.declared(learns=False)

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """A record for each leaf of `params`, by name."""
        found = {}
        for weight in self._parameters_of(self._declared):
            place = self._place(weight)
            value = self._declared.constant(weight)
            found[self._leaves.name(*place)] = self._leaves.parameter(*place, value)
        return found

    @functools.cached_property
    def _values(self) -> dict[str, np.ndarray]:
        """The file's values of the leaves, by name."""
        return {
            self._leaves.name(*self._place(weight)): self._declared.constant(weight)
            for weight in self._parameters_of(self._declared)
        }

    @property
    def params(self) -> Params:
        """The weights by name, in the file's layout.

        All functions of the model share the arrays; a donated one is created again when it is
        next used.
        """
        found = {name: self._arrays.get(name) for name in self._values}
        lost = [name for name, array in found.items() if array is None or array.is_deleted()]
        if lost:  # concrete arrays, also during a trace
            with jax.enable_x64(True), jax.ensure_compile_time_eval(), client.on_purpose():
                found.update((name, jnp.asarray(self._values[name])) for name in lost)
            self._arrays.update((name, found[name]) for name in lost)
        return found

    def leaves(self, mode: Mode) -> Params:
        """`params`, and the scales that are trained; see `scales`."""
        with client.on_purpose():
            scales = {name: jnp.asarray(s.value) for name, s in self.scales(mode).items()}
        return {**self.params, **scales}

    def scales(self, mode: Mode) -> dict[str, Scale]:
        """The trained scales by name: of activations, and of weights that are rounded to grids."""
        if mode not in self._scales:
            places = [self._place(weight) for weight in self._parameters_of(self._declared)]
            if mode.on_grid and not any(map(self._trainable.is_weight, places)):
                raise OptionError("weights='fake_quantized': the model has no quantized weights")
            found = self._used_scales(mode, places) if mode.learns else set()
            if mode.learns and not found:
                raise OptionError("ranges='learned': the model has no scales that can change")
            known = self._trainable.scales
            self._scales[mode] = {name: known[name] for name in known if name in found}
        return self._scales[mode]

    def _used_scales(self, mode: Mode, places: Iterable[tuple[int, int]]) -> set[str]:
        partition = self._lowerings.declared(learns=True)
        activations = [self._place(w) for w in partition.preparations if w.is_scale]
        found = {self._trainable.by_place[place] for place in activations}
        of_weights = map(self._trainable.scale_of_weight, places if mode.on_grid else ())
        return found | {name for name in of_weights if name is not None}

    def _parameters_of(self, partition: LoweredPartition) -> Iterable[Weight]:
        for weight in partition.preparations:
            if self._is_parameter(partition, weight):
                yield weight

    def _is_parameter(self, partition: LoweredPartition, weight: Weight) -> bool:
        if weight.is_scale:
            return False
        if weight.subgraph is None and weight.tensor not in self._fixed:
            return False  # it depends on the inputs' shapes
        if weight in partition.built_in:
            return False
        dtype = partition.constant(weight).dtype
        return self._leaves.is_parameter(*self._place(weight), dtype)

    @functools.cached_property
    def _fixed(self) -> frozenset[int]:
        """Tensors that are constant for all inputs."""
        declared = declared_specs(self._subgraph)
        anything = tuple(
            dataclasses.replace(declared[i], is_dynamic=True) for i in self._subgraph.inputs
        )
        specs = subgraph_specs(self._subgraph, anything, self._subgraphs)
        return frozenset(i for i, spec in enumerate(specs) if spec.const is not None)

    def _place(self, weight: Weight) -> tuple[int, int]:
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
        leaf = params[self._leaves.name(*place)]
        if mode.on_grid:
            leaf = self._trainable.on_grid(place, leaf, {name: params[name] for name in scales})
            leaf = fusion_barrier(leaf)  # XLA then compiles operators as for an input
        return downcast(jnp.asarray(leaf), value.dtype)

    def fitting(self, params: Any, mode: Mode) -> Params:
        """Select this subgraph's leaves and scales from those that a caller gives; check them."""
        wanted = {name: parameter.shape for name, parameter in self.parameters.items()}
        wanted |= {name: scale.value.shape for name, scale in self.scales(mode).items()}
        check_names("params", params, wanted)
        for name, shape in wanted.items():
            check_alive("apply: params", name, params[name])
            given = jnp.shape(params[name])
            if given != shape:
                raise TensorError(
                    f"apply: params[{name!r}]: expected the shape {list(shape)}, got {list(given)}"
                )
        return {name: params[name] for name in wanted}
