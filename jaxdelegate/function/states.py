"""What a model keeps from one call to the next: by name, and what it begins with."""

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.arguments import check_alive, check_names
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.model.records import Subgraph, Tensor
from jaxdelegate.op_lowering.resources.reference import handle_key, var_handle
from jaxdelegate.passes.explicit_state import ExplicitStates, state_zero, with_explicit_states
from jaxdelegate.pjrt import client

_HANDLE, _ASSIGN = "VAR_HANDLE", "ASSIGN_VARIABLE"

State = dict[str, Any]


class ModelStates:
    """The states of all subgraphs of a model: no two of them have one name.

    A resource variable belongs to the model, by its container and `shared_name`: it has one name
    and one first value, whichever subgraphs use it. Variable tensors and random generators belong
    to their subgraph.
    """

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        resources_after: Callable[[Iterable[int]], Mapping[Hashable, np.ndarray]],
    ) -> None:
        """Compute nothing yet.

        Args:
            subgraphs: of the model.
            resources_after: runs subgraphs of its initialization.
        """
        self._subgraphs, self._resources_after = subgraphs, resources_after
        self._assigned: dict[int, Mapping[Hashable, np.ndarray]] = {}

    @functools.cached_property
    def _names(self) -> Mapping[tuple[int, int], str]:
        """By subgraph and tensor."""
        resources = _resource_names(self._subgraphs)
        taken, names = set(resources.values()), {}
        for explicit in map(with_explicit_states, self._subgraphs):
            subgraph = explicit.subgraph
            for tensor in (t for t in subgraph.tensors if t.is_variable):
                name = resources.get(explicit.resources.get(tensor.index))
                if name is None:
                    name = _unique(subgraph.index, tensor, taken)
                    taken.add(name)
                names[subgraph.index, tensor.index] = name
        return names

    def of(self, explicit: ExplicitStates) -> "States":
        """Those of one subgraph, which may be a part of the file's."""
        subgraph = explicit.subgraph
        variables = [t for t in subgraph.tensors if t.is_variable]
        names = {t.index: self._names[subgraph.index, t.index] for t in variables}
        return States(explicit, names, functools.partial(self._first_values, subgraph.index))

    def _first_values(self, subgraph: int) -> Mapping[Hashable, np.ndarray]:
        """What initialization assigns to resource variables, by their keys in the store.

        The subgraph's own counts first, then what that of others assigns to other variables.
        """
        others = (s for s in self._subgraphs if s.index != subgraph)
        found: dict[Hashable, np.ndarray] = {}
        for each in (self._subgraphs[subgraph], *others):
            found = {**self._assigned_in(each), **found}
        return found

    def _assigned_in(self, subgraph: Subgraph) -> Mapping[Hashable, np.ndarray]:
        """What the CALL_ONCE operators of a subgraph assign."""
        if subgraph.index not in self._assigned:
            called = [
                operator.options.init_subgraph_index  # type: ignore[attr-defined]
                for operator in subgraph.operators
                if operator.name == "CALL_ONCE"
            ]
            self._assigned[subgraph.index] = self._resources_after(called) if called else {}
        return self._assigned[subgraph.index]


def _resource_names(subgraphs: Sequence[Subgraph]) -> dict[Hashable | None, str]:
    """A name for each resource variable, by its key in the store."""
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


def _unique(subgraph: int, tensor: Tensor, taken: set[str]) -> str:
    """As parameters are named."""
    name = tensor.name or f"tensor_{tensor.index}"
    if name not in taken:
        return name
    return f"{name}#{tensor.index}" if subgraph == 0 else f"{name}#{subgraph}.{tensor.index}"


class States:
    """Variable tensors, resource variables and random generators of a subgraph.

    Attributes:
        names: by tensor.
    """

    def __init__(
        self,
        explicit: ExplicitStates,
        names: Mapping[int, str],
        first_values: Callable[[], Mapping[Hashable, np.ndarray]],
    ) -> None:
        """Compute nothing yet.

        Args:
            explicit: the subgraph, with a variable tensor for each of them.
            names: of these.
            first_values: what initialization assigns to resource variables.
        """
        self._explicit, self.names = explicit, names
        self._variables = [explicit.subgraph.tensors[i] for i in names]
        self._first_values = first_values

    @functools.cached_property
    def _resources(self) -> Mapping[Hashable, np.ndarray]:
        return self._first_values()

    def initial(self, io: str = "file") -> State:
        """What every state begins with, by name."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval(), client.on_purpose():
            first = {t: jnp.asarray(self._first_value(t)) for t in self._variables}
            if io == "float":
                first = {t: fake_quantization.enter(v, t.spec()) for t, v in first.items()}
            return {self.names[t.index]: value for t, value in first.items()}

    def begin(self, io: str = "file") -> State:
        """The same, for a call that is given no state.

        Raises:
            TensorError: the subgraph reads a resource variable that neither it nor the model's
                initialization assigns.
        """
        operators = self._explicit.subgraph.operators
        assigned = {i for o in operators if o.name == _ASSIGN for i in o.inputs}
        for index, key in self._explicit.resources.items():
            if index not in assigned and key not in self._resources:
                raise TensorError(
                    f"the model reads the variable {self.names[index]!r}, which nothing has "
                    "assigned: begin with model.initial_state(), call a function of a signature "
                    "that assigns it, and pass on the state that it returns: "
                    "apply(params, *inputs, state=state)"
                )
        return self.initial(io)

    def fitting(self, state: Any) -> State:
        """The states of this subgraph among those that a caller gives.

        Raises:
            TensorError: one is missing, or has another shape than the file's.
        """
        check_names("state", state, self.names.values())
        for tensor in self._variables:
            name = self.names[tensor.index]
            check_alive("apply: state", name, state[name])
            given, wanted = jnp.shape(state[name]), tensor.shape
            if given != wanted:
                raise TensorError(
                    f"apply: state[{name!r}] wants the shape {list(wanted)}, got {list(given)}"
                )
        return {name: state[name] for name in self.names.values()}

    def with_random_key(self, key: Any, state: State | None, io: str = "file") -> State:
        """The state (None: the initial one) with random generators that begin where a key says.

        Raises:
            TensorError: the model draws no random numbers.
        """
        generators = [self.names[i] for i in sorted(self._explicit.initial)]
        if not generators:
            raise TensorError("apply: the model draws no random numbers: leave `key` out")
        states = dict(self.begin(io) if state is None else state)
        for number, name in enumerate(generators):
            own = jax.random.fold_in(key, number)
            states[name] = jax.random.bits(own, jnp.shape(states[name])[-1:], jnp.uint32)
        return states

    def _first_value(self, tensor: Tensor) -> np.ndarray:
        """Zeros, a random generator's seeds, or what CALL_ONCE assigns to a resource variable."""
        if tensor.index in self._explicit.initial:
            return self._explicit.initial[tensor.index]()
        value = self._resources.get(self._explicit.resources.get(tensor.index))
        if value is not None:
            return np.asarray(value)
        return np.full(tensor.shape, state_zero(tensor.spec()), tensor.dtype)
