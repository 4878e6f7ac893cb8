"""The states of a model: their names and initial values."""

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import TensorError, UnassignedError
from jaxdelegate.function.arguments import selected
from jaxdelegate.function.records import Params, Place, unique_name
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.model.records import Subgraph, Tensor
from jaxdelegate.op_lowering.resources.reference import handle_key, var_handle
from jaxdelegate.passes.explicit_state import ExplicitStates, state_zero, with_explicit_states
from jaxdelegate.pjrt import client

_HANDLE = "VAR_HANDLE"


class ModelStates:
    """The states of all subgraphs of a model, with unique names.

    A resource variable belongs to the model and is identified by its container and `shared_name`:
    it has one name and one initial value in all subgraphs. Variable tensors and random generators
    belong to their subgraph.
    """

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        resources_after: Callable[[Iterable[int]], Mapping[Hashable, np.ndarray]],
    ) -> None:
        """Compute nothing yet; `resources_after` runs subgraphs of the initialization."""
        self._subgraphs, self._resources_after = subgraphs, resources_after
        self._assigned: dict[int, Mapping[Hashable, np.ndarray]] = {}

    @functools.cached_property
    def _names(self) -> Mapping[Place, str]:
        resources = _resource_names(self._subgraphs)
        taken, names = set(resources.values()), {}
        for explicit in map(with_explicit_states, self._subgraphs):
            subgraph = explicit.subgraph
            for tensor in (t for t in subgraph.tensors if t.is_variable):
                name = resources.get(explicit.resources.get(tensor.index))
                if name is None:
                    name = unique_name(tensor.name, (subgraph.index, tensor.index), taken)
                    taken.add(name)
                names[subgraph.index, tensor.index] = name
        return names

    def of(self, explicit: ExplicitStates) -> "States":
        """The states of one subgraph, which may be a part of the file's."""
        subgraph = explicit.subgraph
        variables = [t for t in subgraph.tensors if t.is_variable]
        names = {t.index: self._names[subgraph.index, t.index] for t in variables}
        return States(explicit, names, functools.partial(self._initial_values, subgraph.index))

    def _initial_values(self, subgraph: int) -> Mapping[Hashable, np.ndarray]:
        """The values that initialization assigns to resource variables, by their keys.

        The subgraph's own initialization has priority over those of others.
        """
        others = (s for s in self._subgraphs if s.index != subgraph)
        values: dict[Hashable, np.ndarray] = {}
        for each in (self._subgraphs[subgraph], *others):
            values = {**self._assigned_in(each), **values}
        return values

    def _assigned_in(self, subgraph: Subgraph) -> Mapping[Hashable, np.ndarray]:
        if subgraph.index not in self._assigned:
            called = [
                operator.options.init_subgraph_index  # type: ignore[attr-defined]
                for operator in subgraph.operators
                if operator.name == "CALL_ONCE"
            ]
            self._assigned[subgraph.index] = self._resources_after(called) if called else {}
        return self._assigned[subgraph.index]


def _resource_names(subgraphs: Sequence[Subgraph]) -> dict[Hashable | None, str]:
    names: dict[Hashable | None, str] = {}
    taken: set[str] = set()
    for operator in (o for s in subgraphs for o in s.operators if o.name == _HANDLE):
        o: Any = operator.options
        key = handle_key(var_handle(o, (), ())[0])
        if key not in names:
            name = f"{o.container}/{o.shared_name}" if o.container else o.shared_name or "variable"
            names[key] = f"{name}#{len(names)}" if name in taken else name
            taken.add(names[key])
    return names


class States:
    """Variable tensors, resource variables and random generators of a subgraph; names by tensor."""

    def __init__(
        self,
        explicit: ExplicitStates,
        names: Mapping[int, str],
        initial_values: Callable[[], Mapping[Hashable, np.ndarray]],
    ) -> None:
        """Compute nothing yet; `initial_values` are those that initialization assigns."""
        self._explicit, self.names = explicit, names
        self._variables = [explicit.subgraph.tensors[i] for i in names]
        self._initial_values = initial_values

    @functools.cached_property
    def _resources(self) -> Mapping[Hashable, np.ndarray]:
        return self._initial_values()

    def initial(self, io: str = "file") -> Params:
        """The initial value of each state, by name."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval(), client.on_purpose():
            values = {t: jnp.asarray(self._initial_value(t)) for t in self._variables}
            if io == "float":
                values = {t: fake_quantization.enter(v, t.spec()) for t, v in values.items()}
            return {self.names[t.index]: value for t, value in values.items()}

    def for_call(self, io: str = "file") -> Params:
        """The initial states for a call without states.

        Raises:
            UnassignedError: the subgraph reads a resource variable that neither it nor the model's
                initialization assigns before.
        """
        for index in self._explicit.read_first:
            if self._explicit.resources[index] not in self._resources:
                raise UnassignedError(
                    f"the model reads the variable {self.names[index]!r}, which has not been "
                    "assigned: start with model.initial_state(), call the function of a signature "
                    "that assigns it, and pass on the state that it returns: "
                    "apply(params, *inputs, state=state)"
                )
        return self.initial(io)

    def fitting(self, state: Any) -> Params:
        """Select this subgraph's states from those that a caller gives, and check them."""
        return selected("state", state, {self.names[t.index]: t.shape for t in self._variables})

    def with_random_key(self, key: Any, state: Params | None, io: str = "file") -> Params:
        """The state (None: the initial one) with random generators seeded by a key."""
        generators = [self.names[i] for i in sorted(self._explicit.initial)]
        if not generators:
            raise TensorError("apply: the model draws no random numbers: leave `key` out")
        states = dict(self.for_call(io) if state is None else state)
        for number, name in enumerate(generators):
            seed = jax.random.fold_in(key, number)
            states[name] = jax.random.bits(seed, jnp.shape(states[name])[-1:], jnp.uint32)
        return states

    def _initial_value(self, tensor: Tensor) -> np.ndarray:
        """Zeros, a random generator's seeds, or the value that CALL_ONCE assigns."""
        if tensor.index in self._explicit.initial:
            return self._explicit.initial[tensor.index]()
        value = self._resources.get(self._explicit.resources.get(tensor.index))
        if value is not None:
            return np.asarray(value)
        return np.full(tensor.shape, state_zero(tensor.spec()), tensor.dtype)
