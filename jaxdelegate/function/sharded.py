"""A model over the devices of a mesh: `Model.sharded`."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.apply import Function
from jaxdelegate.function.arguments import check_alive, check_names
from jaxdelegate.function.batching import BatchedFunction
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Io, Mode, checked
from jaxdelegate.function.weight_shardings import (
    REPLICATED,
    Specs,
    WeightShardings,
    check_axes,
    weight_specs,
)
from jaxdelegate.function.weights import Params
from jaxdelegate.options import DelegateOptions
from jaxdelegate.pjrt.client import on_purpose
from jaxdelegate.xla.options import platform_of
from jaxdelegate.xla.over_mesh import WHOLE, OverMesh, constrained, joined, over, placed

Batch = str | Sequence[str] | None


class ShardedModel:
    """A model over a mesh, to call as the model itself; `Model.sharded` makes it.

    `sharded(*inputs)` answers a tuple, `sharded(**named)` a dictionary, of jax arrays on the mesh:
    their first dimension is divided as that of the inputs. State begins anew in every call.

    With whole weights on every device each device runs the program that a delegate compiles for its
    part of the batch, native kernels included, and no device waits for another: a part has the bits
    that one device computes for it. With divided weights, or weights in place of the file's, the
    program is that of `function()`.

    Attributes:
        mesh: where it runs, with `AxisType.Auto` axes.
    """

    def __init__(
        self,
        functions: Functions,
        params: Params | None,
        mesh: Mesh,
        batch: Batch,
        weights: WeightShardings,
    ) -> None:
        """Place nothing yet; see `Model.sharded`."""
        axes = _batch_axes(batch, mesh)
        _check_mesh(mesh, functions.view.options)
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
        self._made: Params = {}
        self._applies: dict[tuple[str | None, Mode], ShardedApply] = {}
        self.mesh: Mesh = self._over.mesh

    @property
    def params(self) -> Params:
        """All weights by name, in the file's layout, on the mesh.

        Raises:
            TensorError: a jitted function has consumed a weight in place of the file's.
        """
        made = self._made
        if not made or any(leaf.is_deleted() for leaf in made.values()):
            own = self._own_params
            leaves = self._functions.leaves() if own is None else own
            for name, leaf in leaves.items():
                check_alive("sharded: this model's params", name, leaf)
                if name not in made or made[name].is_deleted():
                    made[name] = placed(leaf, self._sharding(name))
        return dict(made)

    def _sharding(self, name: str) -> NamedSharding:
        return NamedSharding(self.mesh, self._specs.get(name, WHOLE))

    def function(
        self, signature: str | None = None, io: Io = "file"
    ) -> tuple["ShardedApply", Params]:
        """The model as `(apply, params)`; `apply(params, *inputs) -> tuple` is pure and traceable.

        It can be put in `jax.jit` and `jax.grad`. Inputs are arrays of the whole batch, laid out
        on the mesh by `apply` where they are not yet.

        Args:
            signature: which one; None: the main subgraph.
            io: as for `Model.function`.

        Raises:
            DelegationError: an operator that XLA cannot run; lists all of them.
            OptionError: an unknown value.
            ValueError: no such signature.
        """
        apply = self._apply(signature, io)
        own = self._functions.function_of(signature).params
        return apply, {name: self.params[name] for name in own}

    def _apply(self, signature: str | None, io: Io = "file") -> "ShardedApply":
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
            *inputs: in the main subgraph's input order: arrays of the host or of one device, or
                jax arrays on the mesh. In a program of several processes arrays of the host are
                this process's part of the batch, and arrays on the mesh are whole.
            **named: the same by name, of the signature that has these names.

        Raises:
            TensorError: an input is missing, of another dtype, or its batch cannot be divided
                equally among the devices.
            DelegationError: an operator that XLA cannot run.
        """
        return self._functions.answered(self._run, inputs, named)

    def _run(self, key: str | None, inputs: Sequence[Any]) -> tuple[Any, ...]:
        function = self._functions.function_of(key)
        apply = self._apply(key)
        arrays = apply.laid_out(function.checked(inputs))
        self._check_size(arrays, apply)
        if not self._specs and self._own_params is None and isinstance(function, BatchedFunction):
            results = function.run_over(self._over, arrays)
            if results is not None:
                return results
        return apply.on_mesh(self.params, arrays)

    def _check_size(self, arrays: Sequence[Any], apply: "ShardedApply") -> None:
        """Whether the batch is the one that `batched` was given."""
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


class ShardedApply:
    """A pure function of parameters and a whole batch: `apply(params, *inputs)`, over a mesh.

    `ShardedModel.function` makes it.
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
            functions: the model's; for a batch of any size if batches are divided.
            signature: which one; None: the main subgraph.
            mode: how it is computed.
            over_mesh: how batches are divided.
            specs: how weights are; those without one are whole on every device.
        """
        self._functions, self._signature, self._mode = functions, signature, mode
        self._over, self._specs = over_mesh, specs
        self._function: Function = functions.function_of(signature)
        self._jitted = jax.jit(self._call)

    @property
    def input_names(self) -> Sequence[str]:
        """Of the inputs, in order."""
        return self._functions.names_of(self._signature).inputs

    @property
    def is_batched(self) -> list[bool]:
        """Whether each input is divided along its first dimension."""
        function = self._function
        if not self._over.axes or not isinstance(function, BatchedFunction):
            return [False for _ in self.input_names]
        return function.is_batched

    def __call__(self, params: Params, *inputs: Any, **named: Any) -> Any:
        """Outputs of a whole batch, divided as the inputs are.

        Args:
            params: as `ShardedModel.function` returned them, perhaps changed.
            *inputs: in the signature's order: the outputs are a tuple. What JAX traces, or arrays
                as for a call of the sharded model.
            **named: inputs by name: the outputs are a dictionary.

        Raises:
            TensorError: an input or a parameter that is missing or does not fit, a batch that
                cannot be divided equally, or a state.
        """
        if {"state", "key"} & named.keys() and not {"state", "key"} & set(self.input_names):
            raise TensorError(
                "apply of a sharded model takes no state and no key: every call begins anew. To "
                "keep states on a mesh put apply of model.function() in jax.shard_map"
            )
        if inputs and named:
            raise TensorError("call apply with positional or with named inputs, not with both")
        check_names("params", params, ())
        names = self._functions.names_of(self._signature)
        given = names.in_order(named) if named else inputs
        arrays = self.laid_out(self._function.checked(given, self._mode.io))
        results = self.on_mesh(params, arrays)
        return dict(zip(names.outputs, results, strict=True)) if named else results

    def laid_out(self, arrays: Sequence[Any]) -> list[Any]:
        """Checked inputs on the mesh; what JAX traces stays, for `on_mesh` to lay out.

        Raises:
            TensorError: a batch that cannot be divided equally.
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
        """Outputs of what `laid_out` answered."""
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
        f"input {name!r} {list(shape)}: {whose} is {size}, and axis {axes} of the mesh wants a "
        f"multiple of {parts}, as {near}: add images of zeros at the end and cut the outputs"
    )


def _batch_axes(batch: Batch, mesh: Any) -> tuple[str, ...]:
    """The axes of the batch.

    Raises:
        OptionError: no mesh, an axis that it does not have, or the same one twice.
    """
    if not isinstance(mesh, Mesh):
        raise OptionError(
            f"sharded: mesh: want a jax.sharding.Mesh, as jax.make_mesh makes it, got "
            f"{type(mesh).__name__}"
        )
    axes = () if batch is None else (batch,) if isinstance(batch, str) else tuple(batch)
    check_axes("batch", axes, mesh)
    if len(set(axes)) != len(axes):
        raise OptionError(f"sharded: batch: an axis is named twice: {axes}")
    return axes


def _check_mesh(mesh: Mesh, options: DelegateOptions) -> None:
    """Whether the model is for the devices of a mesh.

    Raises:
        OptionError: it is not.
    """
    there = sorted({platform_of(d.platform) for d in mesh.devices.flat})
    if options.platform is not None and there != [options.platform]:
        raise OptionError(
            f"sharded: the model was loaded with platform={options.platform!r}, and the mesh has "
            f"devices of {', '.join(there)}: load it without platform, or make the mesh of "
            f"jax.devices({options.platform!r})"
        )
    if len(there) > 1:
        raise OptionError(
            f"sharded: the mesh has devices of {' and '.join(there)}; want those of one platform"
        )
    if not mesh.local_devices:
        raise OptionError(
            f"sharded: no device of the mesh is of this process, number {jax.process_index()}; "
            "make the mesh of jax.devices(), or call only in processes that have a part of it"
        )
    is_several = len({d.process_index for d in mesh.devices.flat}) > 1
    if is_several and options.inference_preference == "sustained_speed":
        raise OptionError(
            "sharded: inference_preference='sustained_speed' measures in every process, and the "
            "programs of several processes have to be equal: use 'balanced' or the default"
        )


def _of_any_batch(functions: Functions) -> Functions:
    """The same functions for a batch of any size, as `Model.batched` makes them."""
    view = dataclasses.replace(functions.view, batch="b")
    return Functions(functions.file, view, functions.source)
