"""The pure function of a sharded model."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxdelegate.errors import TensorError
from jaxdelegate.function.arguments import check_names
from jaxdelegate.function.batching import BatchedFunction
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.records import Params, positional_and_named
from jaxdelegate.function.sharding.meshes import OnMesh
from jaxdelegate.function.sharding.weight_specs import Specs
from jaxdelegate.pjrt.client import on_purpose
from jaxdelegate.xla.over_mesh import WHOLE, OverMesh, constrained, joined, placed


class ShardedApply(OnMesh):
    """A pure function of parameters and a whole batch, over a mesh: `apply(params, *inputs)`.

    `ShardedModel.function` returns it.
    """

    def __init__(
        self,
        functions: Functions,
        signature: str | None,
        mode: Mode,
        over_mesh: OverMesh,
        specs: Specs,
    ) -> None:
        """Lower nothing yet.

        Args:
            functions: the model's functions; for a batch of any size if batches are divided.
            signature: the key of a signature; None: the main subgraph.
            mode: how it computes.
            over_mesh: the division of batches.
            specs: the division of weights; those without a spec are replicated.
        """
        self._functions, self._signature, self._mode = functions, signature, mode
        self._over, self._specs = over_mesh, specs
        self._function = functions.function_of(signature)
        self._jitted = jax.jit(self._call)

    @property
    def input_names(self) -> Sequence[str]:
        """The names of the inputs, in order."""
        return self._functions.names_of(self._signature).inputs

    @property
    def is_batched(self) -> list[bool]:
        """For each input, whether it is divided along its first dimension."""
        function = self._function
        if not self._over.axes or not isinstance(function, BatchedFunction):
            return [False for _ in self.input_names]
        return function.is_batched

    def __call__(self, params: Params, *inputs: Any, **named: Any) -> Any:
        """Compute the outputs for a whole batch, divided like the inputs.

        Args:
            params: as `ShardedModel.function` returned them, perhaps changed.
            *inputs: in the signature's order: traced arrays, or arrays as for a call of the sharded
                model.
            **named: inputs by name.

        Returns:
            Outputs: a tuple, or a dictionary for named inputs.

        Raises:
            TensorError: an input or a parameter is missing or has a wrong shape or dtype, a batch
                cannot be divided equally, or a state is given.
        """
        if {"state", "key"} & named.keys() and not {"state", "key"} & set(self.input_names):
            raise TensorError(
                "apply of a sharded model accepts neither state nor key: every call starts from "
                "the initial state. To keep states on a mesh, use the apply of model.function() in "
                "jax.shard_map"
            )
        check_names("params", params, ())
        inputs, by_name = positional_and_named("apply", inputs, named)
        names = self._functions.names_of(self._signature)
        ordered = names.in_order(by_name) if by_name else inputs
        arrays = self._function.checked(ordered, self._mode.io)
        results = self.on_mesh(params, self.laid_out(arrays))
        return names.named(results) if by_name else results

    def laid_out(self, arrays: Sequence[Any]) -> list[Any]:
        """Move checked inputs to the mesh, except traced ones, which `on_mesh` lays out.

        Raises:
            TensorError: a batch cannot be divided equally.
        """
        rows = zip(self.input_names, arrays, self.is_batched, strict=True)
        return [self._laid_out(name, x, is_batched) for name, x, is_batched in rows]

    def _laid_out(self, name: str, x: Any, is_batched: bool) -> Any:
        sharding = self._input(is_batched)
        is_traced = isinstance(x, jax.core.Tracer)
        is_own = not is_traced and _is_of_one_process(x, sharding)
        parts = self._over.local_parts if is_own else self._over.parts
        if is_batched and x.shape[0] % parts:
            raise TensorError(_indivisible(name, x.shape, parts, self._over, is_own))
        if is_traced:
            return x
        return joined(x, sharding) if is_own else placed(x, sharding)

    def _input(self, is_batched: bool) -> NamedSharding:
        spec = self._over.batch if is_batched else WHOLE
        return NamedSharding(self._over.mesh, spec)

    def on_mesh(self, params: Params, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for inputs that `laid_out` returned."""
        with jax.enable_x64(True), on_purpose():
            results: tuple[Any, ...] = self._jitted(params, tuple(arrays))
        return results

    def _call(self, params: Params, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        mesh = self._over.mesh
        leaves = {
            name: constrained(leaf, NamedSharding(mesh, self._specs.get(name, WHOLE)))
            for name, leaf in params.items()
        }
        inputs = tuple(map(constrained, arrays, map(self._input, self.is_batched)))
        if not self._specs:
            specs = tuple(self._input(is_batched).spec for is_batched in self.is_batched)
            return tuple(self._over.mapped(self._outputs, (WHOLE, specs))(leaves, inputs))
        outputs = self._outputs(leaves, inputs)
        return tuple(constrained(y, NamedSharding(mesh, self._over.batch)) for y in outputs)

    def _outputs(self, params: Params, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._function.call(params, arrays, None, self._mode)[0]

    def __repr__(self) -> str:
        """The inputs, and the mesh."""
        return f"<apply(params, {', '.join(self.input_names)}) over {self._over}>"


def _is_of_one_process(x: Any, sharding: NamedSharding) -> bool:
    """Whether several processes run the mesh, and an array is one process's own."""
    if sharding.is_fully_addressable:
        return False
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def _indivisible(name: str, shape: Sequence[int], parts: int, on: OverMesh, is_own: bool) -> str:
    size, axes = shape[0], " x ".join(map(repr, on.axes))
    whose = "this process's part of the batch" if is_own else "the batch"
    below, above = size // parts * parts, -(-size // parts) * parts
    near = f"{below} or {above}" if below else str(above)
    return (
        f"input {name!r} {list(shape)}: {whose} is {size}, but axis {axes} of the mesh needs a "
        f"multiple of {parts}, such as {near}: pad the batch with images of zeros and drop their "
        "outputs"
    )
