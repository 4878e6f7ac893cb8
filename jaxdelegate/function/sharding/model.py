"""A model over the devices of a mesh: `Model.sharded`."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh, NamedSharding

from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.arguments import check_alive
from jaxdelegate.function.batching import BatchedFunction
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Io, Mode, checked
from jaxdelegate.function.records import Params
from jaxdelegate.function.sharding.apply import ShardedApply
from jaxdelegate.function.sharding.meshes import Batch, OnMesh, batch_axes, check_mesh
from jaxdelegate.function.sharding.weight_specs import REPLICATED, WeightShardings, weight_specs
from jaxdelegate.xla.over_mesh import WHOLE, over, placed


class ShardedModel(OnMesh):
    """A model over a mesh, with the calls of the model itself; `Model.sharded` returns it.

    `sharded(*inputs)` returns a tuple, `sharded(**named)` a dictionary, of jax arrays on the mesh:
    their first dimension is divided like that of the inputs. Every call starts from the initial
    state.

    With replicated weights each device runs the program that a delegate compiles for its part of
    the batch, with native kernels and without communication: results are bit for bit those of one
    device. With divided weights, or weights that replace the file's, the program is that of
    `function()`.

    Attributes:
        mesh: the mesh, with `AxisType.Auto` axes.
    """

    def __init__(
        self,
        functions: Functions,
        params: Params | None,
        mesh: Mesh,
        batch: Batch,
        weights: WeightShardings,
    ) -> None:
        """Check the arguments, see `Model.sharded`; move nothing to the mesh yet."""
        axes = batch_axes(batch, mesh)
        check_mesh(mesh, functions.view.options)
        if not axes and isinstance(weights, str) and weights == REPLICATED:
            raise OptionError(
                "sharded: batch=None and weights='replicated' divide nothing; name an axis of the "
                f"mesh for one of them: {', '.join(map(repr, mesh.axis_names))}"
            )
        if isinstance(weights, str) and weights in axes:
            raise OptionError(
                f"sharded: {weights!r} is the axis of the batch; to divide weights along it too, "
                "give their PartitionSpecs by name"
            )
        self._size = functions.view.batch
        self._functions = functions if not axes else _of_any_batch(functions)
        self._over = over(mesh, axes)
        parameters = {n: p for f in functions.lowerable() for n, p in f.parameters.items()}
        self._specs = weight_specs(weights, mesh, functions.graph, parameters)
        self._own_params = params
        self._arrays: Params = {}
        self._applies: dict[tuple[str | None, Mode], ShardedApply] = {}
        self.mesh: Mesh = self._over.mesh

    @property
    def params(self) -> Params:
        """All weights by name, in the file's layout, on the mesh.

        Raises:
            TensorError: a weight that replaces the file's was donated to a jitted function.
        """
        arrays = self._arrays
        if not arrays or any(leaf.is_deleted() for leaf in arrays.values()):
            changed = self._own_params
            leaves = self._functions.leaves() if changed is None else changed
            for name, leaf in leaves.items():
                check_alive("sharded: this model's params", name, leaf)
                if name not in arrays or arrays[name].is_deleted():
                    arrays[name] = placed(leaf, self._sharding(name))
        return dict(arrays)

    def _sharding(self, name: str) -> NamedSharding:
        return NamedSharding(self.mesh, self._specs.get(name, WHOLE))

    def function(
        self, signature: str | None = None, io: Io = "file"
    ) -> tuple[ShardedApply, Params]:
        """The model as `(apply, params)`; `apply(params, *inputs) -> tuple` is pure and traceable.

        `jax.jit` and `jax.grad` accept it. Inputs are arrays of the whole batch; `apply` moves them
        to the mesh if necessary.

        Args:
            signature: the key of a signature; None: the main subgraph.
            io: as for `Model.function`.

        Raises:
            DelegationError: XLA cannot run some operators; lists all of them.
            OptionError: an unknown value.
            ValueError: no such signature.
        """
        apply = self._apply(signature, io)
        leaves = self._functions.function_of(signature).params
        return apply, {name: self.params[name] for name in leaves}

    def _apply(self, signature: str | None, io: Io = "file") -> ShardedApply:
        mode = checked(Mode(io), self._functions.view.options.quant_mode)
        key = signature, mode
        if key not in self._applies:
            self._applies[key] = ShardedApply(
                self._functions, signature, mode, self._over, self._specs
            )
        return self._applies[key]

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the model on a batch.

        Args:
            *inputs: in the main subgraph's input order: arrays on the host or on one device, or jax
                arrays on the mesh. If several processes run the program, arrays on the host are
                this process's part of the batch, and arrays on the mesh the whole batch.
            **named: arrays by name; they run the signature with these input names.

        Raises:
            TensorError: an input is missing or has a wrong dtype, or its batch cannot be divided
                equally among the devices.
            DelegationError: XLA cannot run some operators.
        """
        return self._functions.called(self._run, inputs, named)

    def _run(self, key: str | None, inputs: Sequence[Any]) -> tuple[Any, ...]:
        function = self._functions.function_of(key)
        apply = self._apply(key)
        arrays = apply.laid_out(function.checked(inputs))
        self._check_size(arrays, apply)
        if not self._specs and self._own_params is None and isinstance(function, BatchedFunction):
            results = function.run(arrays, self._over)
            if results is not None:
                return results
        return apply.on_mesh(self.params, arrays)

    def _check_size(self, arrays: Sequence[Any], apply: ShardedApply) -> None:
        if not isinstance(self._size, int):
            return
        for name, array, is_batched in zip(
            apply.input_names, arrays, apply.is_batched, strict=True
        ):
            if is_batched and array.shape[0] != self._size:
                raise TensorError(
                    f"input {name!r}: the model is for batches of {self._size}, got "
                    f"{list(array.shape)}; model.batched('b') takes any size"
                )

    def __repr__(self) -> str:
        """The model's name, and the mesh."""
        name = os.path.basename(self._functions.graph.source)
        return f"<jaxdelegate sharded model {name!r} over {self._over}>"


def _of_any_batch(functions: Functions) -> Functions:
    view = dataclasses.replace(functions.view, batch="b")
    return Functions(functions.file, view, functions.source)
