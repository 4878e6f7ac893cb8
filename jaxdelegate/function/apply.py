"""The `apply` of `model.function()`: a pure function that can be jitted, copied and stored."""

import dataclasses
from typing import Any

import jax
from jax import export

from jaxdelegate.function.arguments import check_names, is_traced
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.records import Params, positional_and_named
from jaxdelegate.waiting import Expectation

_COMPILATION = Expectation()  # by the caller's jax.jit


def _listen(event: str, duration_secs: float, **_: object) -> None:  # noqa: ARG001 (its name)
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILATION.end()


jax.monitoring.register_event_duration_secs_listener(_listen)


@dataclasses.dataclass(frozen=True)
class Apply:
    """A pure function of parameters and inputs: `apply(params, *inputs)`.

    Two for the same model and options are equal, so that `jax.jit` compiles them once.
    """

    model: Functions
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
        inputs, by_name = positional_and_named("apply", inputs, named)
        names = self.model.names_of(self.signature)
        function = self.model.function_of(self.signature)
        arrays = function.checked(names.in_order(by_name) if by_name else inputs, self.mode.io)
        states = state if key is None else function.with_random_key(key, state, self.mode.io)
        if any(map(is_traced, (*arrays, *params.values()))):
            text = f"JAX traces and compiles a program that calls {self!r}, once for each shape"
            _COMPILATION.begin(text, "jax.")
        results, new = function.call(params, arrays, states, self.mode)
        outputs = names.named(results) if by_name else results
        return outputs if state is None else (outputs, new)

    def inputs(self) -> list[jax.ShapeDtypeStruct]:
        """Declared shapes and dtypes of the inputs; a batch of any size is a symbolic dimension."""
        function = self.model.function_of(self.signature)
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
