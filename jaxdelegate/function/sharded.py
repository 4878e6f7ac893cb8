"""A model over the devices of a mesh: `Model.sharded`."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from jax.sharding import Mesh, NamedSharding

from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.arguments import check_alive, check_names
from jaxdelegate.function.batching import BatchedFunction
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Io, Mode, checked
from jaxdelegate.function.records import Params, positional_and_named
from jaxdelegate.function.weight_shardings import (
    REPLICATED,
    Specs,
    WeightShardings,
    check_axes,
    weight_specs,
)
from jaxdelegate.options import DelegateOptions
from jaxdelegate.pjrt.client import on_purpose
from jaxdelegate.xla.options import platform_of
from jaxdelegate.xla.over_mesh import WHOLE, OverMesh, constrained, joined, over, placed

Batch = str | Sequence[str] | None
_NOT_PICKLED = (
    "a sharded model cannot be pickled or copied, because its mesh has devices of this process: "
    "pickle the model, and call its `sharded` in each process"
)


class ShardedModel:
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
    ) -> tuple["ShardedApply", Params]:
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

    def _check_size(self, arrays: Sequence[Any], apply: "ShardedApply") -> None:
        """Check that the batch has the size given to `batched`."""
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

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: the mesh has devices of this process.

        Raises:
            TypeError: always.
        """
        raise TypeError(_NOT_PICKLED)

    def __repr__(self) -> str:
        """The model's name, and the mesh."""
        name = os.path.basename(self._functions.graph.source)
        return f"<jaxdelegate sharded model {name!r} over {self._over}>"


class ShardedApply:
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

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: the mesh has devices of this process.

        Raises:
            TypeError: always.
        """
        raise TypeError(_NOT_PICKLED)

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


def _batch_axes(batch: Batch, mesh: Any) -> tuple[str, ...]:
    """The axes of the batch, checked."""
    if not isinstance(mesh, Mesh):
        raise OptionError(
            f"sharded: mesh: expected a jax.sharding.Mesh, as jax.make_mesh returns it, got "
            f"{type(mesh).__name__}"
        )
    axes = () if batch is None else (batch,) if isinstance(batch, str) else tuple(batch)
    check_axes("batch", axes, mesh)
    if len(set(axes)) != len(axes):
        raise OptionError(f"sharded: batch: duplicate axis: {axes}")
    return axes


def _check_mesh(mesh: Mesh, options: DelegateOptions) -> None:
    """Check that the model can run on a mesh with these options."""
    platforms = sorted({platform_of(d.platform) for d in mesh.devices.flat})
    if options.platform is not None and platforms != [options.platform]:
        raise OptionError(
            f"sharded: the model was loaded with platform={options.platform!r}, but the mesh has "
            f"devices of {', '.join(platforms)}: load it without platform, or make the mesh of "
            f"jax.devices({options.platform!r})"
        )
    if len(platforms) > 1:
        raise OptionError(
            f"sharded: the mesh has devices of {' and '.join(platforms)}; expected one platform"
        )
    if not mesh.local_devices:
        raise OptionError(
            f"sharded: the mesh has no device of this process, number {jax.process_index()}; "
            "make the mesh of jax.devices(), or call only in processes that have a part of it"
        )
    is_several = len({d.process_index for d in mesh.devices.flat}) > 1
    if is_several and options.inference_preference == "sustained_speed":
        raise OptionError(
            "sharded: inference_preference='sustained_speed' measures in every process, but the "
            "programs of all processes must be equal: use 'balanced' or the default"
        )


def _of_any_batch(functions: Functions) -> Functions:
    """The functions for a batch of any size, as for `Model.batched`."""
    view = dataclasses.replace(functions.view, batch="b")
    return Functions(functions.file, view, functions.source)
