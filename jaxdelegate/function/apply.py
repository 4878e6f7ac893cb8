"""The `apply` of `model.function()`: a pure function that can be jitted, copied and stored."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import export

from jaxdelegate.errors import TensorError
from jaxdelegate.function.arguments import check_names, is_traced
from jaxdelegate.function.mode import AS_STORED, Mode
from jaxdelegate.function.records import Parameter
from jaxdelegate.function.weights import Params
from jaxdelegate.waiting import Expectation

_COMPILATION = Expectation()  # by the caller's jax.jit


def _listen(event: str, duration_secs: float, **_: object) -> None:  # noqa: ARG001 (its name)
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILATION.end()


jax.monitoring.register_event_duration_secs_listener(_listen)


class Function(Protocol):
    """A function that computes a subgraph, or a batch of it."""

    @property
    def params(self) -> Params:
        """The weights by name, in the file's layout."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """A record for each leaf of `params`."""

    def leaves(self, mode: Mode) -> Params:
        """The weights, and the scales that are trained."""

    def shapes(self) -> list[tuple[int | str, ...]]:
        """The inputs' declared shapes; the dimension of a batch of any size is its name."""

    def dtypes(self, io: str = "file") -> list[np.dtype]:
        """The inputs' dtypes."""

    def checked(self, inputs: Sequence[Any], io: str = "file") -> list[Any]:
        """The inputs as arrays, checked."""

    def call(
        self,
        params: Params,
        arrays: Sequence[Any],
        state: Params | None = None,
        mode: Mode = AS_STORED,
    ) -> tuple[tuple[Any, ...], Params]:
        """The outputs and the new state."""

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...] | None:
        """The outputs, by a program compiled as for a delegate; None if JAX must compile it."""

    def initial_state(self, io: str = "file") -> Params:
        """The initial value of each state."""

    def with_random_key(self, key: Any, state: Params | None, io: str = "file") -> Params:
        """The state with random generators seeded by a key."""


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
    """The inputs and outputs of a function, in order."""

    inputs: Sequence[str]
    outputs: Sequence[str]

    def in_order(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Named inputs in the function's order."""
        if set(named) != set(self.inputs):
            raise TensorError(
                f"the inputs are named {sorted(named)}, the model's {sorted(self.inputs)}"
            )
        return tuple(named[name] for name in self.inputs)


@dataclasses.dataclass(frozen=True)
class Apply:
    """A pure function of parameters and inputs: `apply(params, *inputs)`.

    Two for the same model and options are equal, so that `jax.jit` compiles them once.
    """

    model: Any  # hashable, with methods `function_of(signature)` and `names_of(signature)`
    signature: str | None
    mode: Mode

    def __call__(
        self,
        params: Params,
        *inputs: Any,
        state: Params | None = None,
        key: Any = None,
        **named: Any,
    ) -> Any:
        """Compute the outputs for inputs of any shapes that the model accepts.

        Args:
            params: as `model.function()` returned them, perhaps changed; additional leaves are
                ignored.
            *inputs: in the signature's order. A single dictionary has the meaning of `named`.
            state: the new state of the last call, or `model.initial_state()`. None: each call
                starts from the initial state.
            key: a `jax.random.key` that seeds random operators. None: the file's seeds.
            **named: inputs by name.

        Returns:
            Outputs: a tuple, or a dictionary for named inputs. With `state`, the pair
            `(outputs, new_state)`.

        Raises:
            TensorError: an input, a parameter or a state is missing or has a wrong shape or dtype.
            DelegationError: XLA cannot run some operators; lists all of them.
        """
        check_names("params", params, ())
        if inputs and named:
            raise TensorError("call apply with positional or with named inputs, not with both")
        names = self.model.names_of(self.signature)
        by_name = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else named
        function: Function = self.model.function_of(self.signature)
        arrays = function.checked(names.in_order(by_name) if by_name else inputs, self.mode.io)
        states = state if key is None else function.with_random_key(key, state, self.mode.io)
        if any(map(is_traced, (*arrays, *params.values()))):
            text = f"JAX traces and compiles a program that calls {self!r}, once for each shape"
            _COMPILATION.begin(text, "jax.")
        results, new = function.call(params, arrays, states, self.mode)
        outputs = dict(zip(names.outputs, results, strict=True)) if by_name else results
        return outputs if state is None else (outputs, new)

    def inputs(self) -> list[jax.ShapeDtypeStruct]:
        """Declared shapes and dtypes of the inputs; a batch of any size is a symbolic dimension."""
        function: Function = self.model.function_of(self.signature)
        scope = export.SymbolicScope()

        def size(n: int | str) -> Any:
            return n if isinstance(n, int) else export.symbolic_shape(n, scope=scope)[0]

        with jax.enable_x64(True):
            return [
                jax.ShapeDtypeStruct(tuple(map(size, shape)), dtype)  # type: ignore[no-untyped-call]
                for shape, dtype in zip(
                    function.shapes(), function.dtypes(self.mode.io), strict=True
                )
            ]

    def __repr__(self) -> str:
        """The model, the signature, and the inputs."""
        key = "" if self.signature is None else f", signature {self.signature!r}"
        names = self.model.names_of(self.signature).inputs
        few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        return f"<apply(params, {few}) of {self.model!r}{key}>"
