"""What a subgraph keeps from one call to the next: by name, and what it begins with."""

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.records import unique_names
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.model.records import Tensor
from jaxdelegate.passes.explicit_state import ExplicitStates, state_zero
from jaxdelegate.runtime.subgraph import ModelStore

ONCE = "CALL_ONCE"

State = dict[str, Any]


class States:
    """Variable tensors, resource variables and random generators of a subgraph."""

    def __init__(self, explicit: ExplicitStates, store: Callable[[], ModelStore]) -> None:
        """Compute nothing yet.

        Args:
            explicit: the subgraph, with a variable tensor for each of them.
            store: makes an empty store of the model, for its initialization.
        """
        self._explicit, self._store = explicit, store
        self._variables = [t for t in explicit.subgraph.tensors if t.is_variable]
        indices = [t.index for t in self._variables]
        self.names: Mapping[int, str] = dict(
            zip(indices, unique_names(explicit.subgraph, indices), strict=True)
        )

    def initial(self, io: str = "file") -> State:
        """What every state begins with, by name."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            first = {t: jnp.asarray(self._first_value(t)) for t in self._variables}
            if io == "float":
                first = {t: fake_quantization.enter(v, t.spec()) for t, v in first.items()}
            return {self.names[t.index]: value for t, value in first.items()}

    def drawing_by(self, key: Any, state: State | None, io: str = "file") -> State:
        """The state (None: the initial one) with random generators that begin where a key says.

        Raises:
            TensorError: the model draws no random numbers.
        """
        generators = [self.names[i] for i in sorted(self._explicit.initial)]
        if not generators:
            raise TensorError("apply: the model draws no random numbers: leave `key` out")
        states = dict(self.initial(io) if state is None else state)
        for number, name in enumerate(generators):
            own = jax.random.fold_in(key, number)
            states[name] = jax.random.bits(own, jnp.shape(states[name])[-1:], jnp.uint32)
        return states

    @functools.cached_property
    def _resources(self) -> Mapping[Hashable, np.ndarray]:
        """What CALL_ONCE assigns to resource variables, by their keys in the store."""
        store = self._store()
        for operator in self._explicit.subgraph.operators:
            if operator.name == ONCE:
                store(operator.options.init_subgraph_index)  # type: ignore[attr-defined]
        return dict(store.resources)

    def _first_value(self, tensor: Tensor) -> np.ndarray:
        """Zeros, a random generator's seeds, or what CALL_ONCE assigns to a resource variable."""
        if tensor.index in self._explicit.initial:
            return self._explicit.initial[tensor.index]()
        value = self._resources.get(self._explicit.resources.get(tensor.index))
        if value is not None:
            return np.asarray(value)
        return np.full(tensor.shape, state_zero(tensor.spec()), tensor.dtype)
