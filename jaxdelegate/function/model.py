"""A .tflite as a pure JAX function: jit, vmap, grad, shard or export it."""

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import jax
import numpy as np

from jaxdelegate.errors import ModelError, OptionError, TensorError
from jaxdelegate.function import exporting, saving
from jaxdelegate.function.apply import Apply
from jaxdelegate.function.arguments import check_alive
from jaxdelegate.function.batching import BatchedFunction
from jaxdelegate.function.functions import Functions, View
from jaxdelegate.function.mode import Io, Mode, Ranges, Weights, checked
from jaxdelegate.function.records import Batching, Parameter, Scale, Signature, TensorInfo
from jaxdelegate.function.sharded import ShardedModel
from jaxdelegate.function.weight_shardings import WeightShardings
from jaxdelegate.function.weights import Params
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.records import Model
from jaxdelegate.options import DelegateOptions
from jaxdelegate.passes.limits import Limits
from jaxdelegate.text import printable

Names = str | Sequence[str]

# Of JaxDelegate's options those that change a program, less what is the caller's here.
_KEYED = {field.name for field in dataclasses.fields(DelegateOptions) if field.metadata["keyed"]}
_OPTIONS = (_KEYED - {"donate_inputs", "device_index"}) | {"max_programs", "max_program_bytes"}


@jax.tree_util.register_pytree_with_keys_class
class CallableModel:
    """A model to call from JAX; `jaxdelegate.load` makes it.

    `model(*inputs)` answers a tuple, `model(**named)` a dictionary, as jax arrays: compiled for
    each set of input shapes as delegates compile, or, called with what JAX traces, part of the
    caller's program. State (variable tensors and the like) begins anew in every call; `function()`
    lets the caller thread it.

    A model is a pytree, whose leaves are its weights: `jax.grad`, `jax.tree.map` and optax take it
    as it is. It can be pickled: the file's content and changed weights are stored.
    """

    def __init__(self, functions: Functions, params: Params | None = None) -> None:
        """Lower nothing yet.

        Args:
            functions: the file, and what of it is computed.
            params: weights in place of the file's.
        """
        self._functions, self._params = functions, params

    # ---- what the model is

    @property
    def graph(self) -> Model:
        """The file as frozen records; of a cut model, what is left of it."""
        return self._functions.graph

    @property
    def source(self) -> Any:
        """What the file was read from: a path, or its content."""
        return self._functions.source

    @property
    def options(self) -> DelegateOptions:
        """What is computed, and where."""
        return self._functions.view.options

    @property
    def signatures(self) -> dict[str, Signature]:
        """The model's signatures by key; empty if the file names none."""
        return self._functions.signatures

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Inputs and computed tensors of the main subgraph, by name, in the order of execution.

        `until` and `from_` take these names. One that another tensor has already, or that is
        empty, shows the tensor's index.
        """
        return self._functions.tensors()

    @property
    def params(self) -> Params:
        """All weights by name, in the file's layout; one leaf for each buffer of the file.

        What follows from constants alone is folded. Quantized weights are the floats that they
        stand for (`quant_mode="integer"`: the integers).
        """
        own = self._own_params()
        return self._functions.leaves() if own is None else own

    def _own_params(self) -> Params | None:
        """Weights in place of the file's; None: there are none.

        Raises:
            TensorError: a jitted function has consumed one of them.
        """
        if self._params is None:
            return None
        for name, leaf in self._params.items():
            check_alive("this model's params", name, leaf)
        return dict(self._params)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """What is known of each leaf of `params`: where the file stores it, and how."""
        return {n: p for f in self._functions.lowerable() for n, p in f.parameters.items()}

    @property
    def batching(self) -> Batching | None:
        """How a batched model computes the main subgraph, and why; None: it is not batched."""
        function = self._functions.function_of(None)
        return function.batching if isinstance(function, BatchedFunction) else None

    def __repr__(self) -> str:
        """The model's name, and its signatures or main inputs and outputs with shapes."""
        name = os.path.basename(self.graph.source)
        lines = [f"{key!r}: {signature}" for key, signature in self.signatures.items()]
        shown = "; ".join(lines) or str(self._functions.main)
        batch = self._functions.view.batch
        return f"<jaxdelegate.Model {name!r}{f' batch {batch}' if batch else ''}: {shown}>"

    # ---- call

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            *inputs: numpy or jax arrays in the main subgraph's input order: the answer is a tuple.
            **named: the same by name, of the signature that has these names (or by tensor name):
                the answer is a dictionary. A single dictionary is taken for named inputs, too.

        Raises:
            TensorError: a missing, superfluous or wrongly typed input.
            DelegationError: an operator that XLA cannot run.
        """
        return self._functions.answered(self._run, inputs, named)

    def _run(self, key: str | None, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        function = self._functions.function_of(key)
        arrays = function.checked(inputs)
        own = self._own_params()
        if own is not None:
            return function.call(own, arrays)[0]
        results = function.run(arrays)
        return function.call(function.params, arrays)[0] if results is None else results

    # ---- a pure function

    def function(
        self,
        signature: str | None = None,
        io: Io = "file",
        platform: str | None = None,
        *,
        weights: Weights = "file",
        ranges: Ranges = "kept",
    ) -> tuple[Apply, Params]:
        """The model as `(apply, params)`: `apply(params, *inputs) -> tuple` is pure and traceable.

        Args:
            signature: which one; None: the main subgraph, inputs and outputs in the file's order.
            io: "float": quantized inputs, outputs and states are float32, on their grids; so an
                integer network has gradients by its inputs. "file": as the file has them.
            platform: "cpu", "gpu" ("cuda", "rocm") or "tpu": the only one that the trace is for.
                None: the one of the options, or whatever XLA will compile for.
            weights: "fake_quantized": every call puts each leaf behind quantized weights on the
                grid of its integers, with a straight-through gradient, so that what is trained is
                what a saved file computes. "file": leaves are taken as they are.
            ranges: "learned": `params` also has the scales (see `scales`), float32; they are used
                in place of the file's, and have gradients. "kept": the file's scales.

        Returns:
            apply: shapes follow the arrays it is given. With `state=` (see `initial_state`) it
                answers `(outputs, new_state)`; with `key=` random operators draw by that key.
            params: the leaves of `self.params` that this signature reads, and learned scales.

        Raises:
            DelegationError: an operator that XLA cannot run; lists all of them.
            OptionError: an unknown value; `weights` or `ranges` where the model has no quantized
                weights, no scales that can change, or is computed in integers.
            ValueError: no such signature.
        """
        mode = checked(Mode(io, platform, weights, ranges), self.options.quant_mode)
        apply = Apply(self._functions, signature, mode)
        own, changed = self._functions.function_of(signature).leaves(mode), self._own_params() or {}
        return apply, {n: changed.get(n, leaf) for n, leaf in own.items()}

    @property
    def scales(self) -> dict[str, Scale]:
        """The scales that `function(ranges="learned")` can train, by their names in `params`.

        Of quantized activations and weights: `"<tensor name>/scale"`. Tensors whose scales the
        kernels want equal have one, under the name of the first. Scales that a kernel demands
        (the output of SOFTMAX), of recurrent and custom operators, of biases (they follow from
        others) and of blocks are none.
        """
        return dict(self._functions.trainable.scales)

    def initial_state(self, signature: str | None = None, io: Io = "file") -> Params:
        """What every state begins with, by name.

        Zeros for variable tensors, seeds for random operators, and for resource variables what the
        model's initialization (CALL_ONCE) assigns, or zeros. A resource variable has the name that
        the file gives it (`shared_name`), in all signatures.

        Args:
            signature: whose; None: of all signatures. The functions of all of them take this one,
                and return it with what they changed.
            io: as for `function`.
        """
        return self._functions.initial_state(signature, io)

    def partition(self, predicate: Callable[[Parameter], bool]) -> tuple[Params, Params]:
        """Some of the weights, and the others: `apply({**some, **others}, x)`.

        Args:
            predicate: whether a leaf is among the first, by its record: its name, shape, dtype,
                tensors and quantization.
        """
        chosen = {name for name, parameter in self.parameters.items() if predicate(parameter)}
        some = {name: leaf for name, leaf in self.params.items() if name in chosen}
        return some, {n: leaf for n, leaf in self.params.items() if n not in chosen}

    def with_params(self, params: Params) -> Self:
        """The same model with other weights, all of them by name.

        Raises:
            TensorError: a leaf is missing or unknown, or has another shape.
        """
        known = self.parameters
        for name in (*known, *params):
            if name in self.scales:
                raise TensorError(
                    f"with_params: {name!r} is a scale, and this takes weights; apply and save "
                    "take both"
                )
            wanted = known[name].shape if name in known else None
            given = np.shape(params[name]) if name in params else None
            if wanted != given:
                raise TensorError(
                    f"with_params: {name!r} wants {_shape(wanted)}, got {_shape(given)}; "
                    "model.params has all leaves"
                )
        return self._like(self._functions, dict(params))

    # ---- back into a file

    def save(
        self,
        path: str | os.PathLike[str],
        params: Params | None = None,
        *,
        rescale: bool = False,
        calibrate: Iterable[Any] | None = None,
    ) -> None:
        """Write the file, all of it, with these weights; everything else stays byte for byte.

        Quantized weights are rounded to their stored grid, halves away from zero; values beyond
        its range are clamped, and a warning says how many. Biases (int32, int64) follow when the
        scales of inputs or weights change. The file appears whole or not at all; it may be the one
        that the model was read from.

        Args:
            path: where to.
            params: leaves by name, in place of the file's. `"<tensor name>/scale"`: a quantized
                tensor's scale, float32 in its stored shape; a weight is put on the new grid.
                None: this model's weights.
            rescale: whether changed weights get new scales that just hold them (zero points stay).
            calibrate: inputs, each a tuple of arrays (or a dictionary by name) as for a call: the
                activations' scales and zero points are chosen anew, by the ranges that are seen.

        Raises:
            TensorError: an unknown name, a wrong shape or dtype, values that the file cannot store.
            ModelError: the file shares what changes with what stays, and cannot be parted.
            OSError: the file cannot be written.
        """
        self._save(path, params, rescale=rescale, calibrate=calibrate)

    def _save(self, path: Any, params: Params | None, **how: Any) -> None:
        saving.save(self._functions, path, self._all(params), **how)

    def exact(self, params: Params | None = None) -> Self:
        """The model that integer kernels run: what `save` would write, with quant_mode="integer".

        Args:
            params: as for `save`; None: this model's weights.

        Raises:
            TensorError, ModelError: as for `save`; or weights lie in files next to the model.
        """
        return self._like(saving.exact(self._functions, self._all(params)), None)

    def _all(self, params: Params | None) -> Params | None:
        return self._own_params() if params is None else params

    # ---- other models of the same file

    def batched(self, size: int | str) -> Self:
        """The model for a batch of images, whatever its graph fixes: as many single runs at once.

        Inputs [1, ...] become [size, ...]; other inputs stay what they are, the same for all
        images; if there are only others, each becomes [size, *shape]. Outputs [1, ...] become
        [size, ...], others [size, *shape]; each state [size, *shape]. The graph itself runs on the
        whole batch if every operator is known to compute each image by itself and all shapes come
        out so; otherwise jax.vmap of the single run does: see `batching`.

        Args:
            size: of the batch. A name ("b"): any size, also a symbolic dimension of `jax.export`.

        Raises:
            OptionError: no positive number and no name.
        """
        is_size = isinstance(size, int) and size > 0 and not isinstance(size, bool)
        if not is_size and not (isinstance(size, str) and size.isidentifier()):
            raise OptionError(f"batched: want a positive number, or a name as 'b', got {size!r}")
        return self._viewed(batch=size)

    def sharded(
        self,
        mesh: jax.sharding.Mesh,
        batch: str | Sequence[str] | None = "data",
        *,
        weights: WeightShardings = "replicated",
    ) -> ShardedModel:
        """The model over the devices of a mesh, of this process and of others: call it likewise.

        Where the batch is divided the model is the one that `batched` makes: inputs [1, ...] become
        [n, ...], and so on; n is a multiple of the devices along the axis. The images of a batch do
        not see each other, so their parts need not either.

        Args:
            mesh: of devices of one platform.
            batch: the axis, or axes, over which the batch is divided. None: every device has it
                whole, and weights are divided.
            weights: "replicated": every device has all of them. An axis: weights and biases of
                convolutions and products are divided along it by output channels, where these
                divide. A dictionary from name patterns (`fnmatch`) to `PartitionSpec`s, the first
                that fits; or a function (name, shape) -> PartitionSpec or None (whole).
                `model.parameters` has names and shapes.

        Raises:
            DelegationError: an operator that XLA cannot run.
            OptionError: an axis that the mesh does not have, a weight that cannot be divided so, a
                mesh of another platform than the model's, or nothing that is divided.
        """
        return ShardedModel(self._functions, self._own_params(), mesh, batch, weights)

    def until(self, tensors: Names) -> Self:
        """The model that answers these tensors instead of its outputs, and computes no more.

        Args:
            tensors: one name or several, of `self.tensors`.

        Raises:
            TensorError: an unknown name; offers the closest ones.
        """
        return self._viewed(outputs=_names(tensors))

    def from_(self, tensors: Names) -> Self:
        """The model that is given these tensors instead of its inputs.

        Args:
            tensors: one name or several, of `self.tensors`; together with constants and states,
                the outputs must follow from them.

        Raises:
            TensorError: an unknown name, or the tensors do not suffice.
        """
        return self._viewed(inputs=_names(tensors))

    def export(
        self,
        platforms: str | Sequence[str] = ("cpu", "cuda", "tpu"),
        batch: int | str | None = None,
        *,
        signature: str | None = None,
        io: Io = "file",
        state: bool = False,
    ) -> dict[str, jax.export.Exported]:
        """The model as StableHLO for each platform, lowered as suits it; none has to be there.

        `exported.call(params, *inputs)` answers the outputs as `apply` does, and
        `exported.serialize()` the bytes that `jax.export.deserialize` reads. Weights are arguments:
        they are the same for all platforms, and stored once (`numpy.savez(file, **params)`).

        Args:
            platforms: "cpu", "cuda", "rocm", "tpu".
            batch: as for `batched`; a name becomes a symbolic dimension. None: what the file
                declares.
            signature: as for `function`.
            io: as for `function`.
            state: whether the exported functions take and return state, as `apply(..., state=)`.

        Raises:
            DelegationError: an operator that XLA cannot run on a platform.
            OptionError: an unknown platform.
        """
        model = self if batch is None else self.batched(batch)
        names = (platforms,) if isinstance(platforms, str) else tuple(platforms)
        return {n: exporting.exported(model, n, signature, io, state) for n in names}

    def _viewed(self, **changes: Any) -> Self:
        view = self._functions.view
        again = sorted(name for name in changes if getattr(view, name) is not None)
        if again:
            before = getattr(view, again[0])
            raise OptionError(
                f"{again[0]}: this model has been given {before!r} already; begin with the whole"
            )
        functions = Functions(
            self._functions.file, dataclasses.replace(view, **changes), self.source
        )
        return self._like(functions, self._own_params())

    def _like(self, functions: Functions, params: Params | None) -> Self:
        return type(self)(functions, params)

    # ---- pytree, copy, pickle

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Params]], Any]:
        """The weights, and what is static."""
        return ((jax.tree_util.GetAttrKey("params"), self.params),), self._functions

    def tree_flatten(self) -> tuple[tuple[Params], Any]:
        """The weights, and what is static."""
        return (self.params,), self._functions

    @classmethod
    def tree_unflatten(cls, static: Functions, children: tuple[Params]) -> Self:
        """The model with these weights, or whatever JAX puts in their place."""
        return cls(static, children[0])

    def __copy__(self) -> Self:
        """The same functions, with weights that can be exchanged."""
        return self._like(self._functions, self._own_params())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The same functions, which never change, and weights of its own."""
        return self._like(self._functions, copy.deepcopy(self._own_params(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """The file's content, the options, and weights that are not the file's."""
        params = self._own_params()
        host = None if params is None else jax.tree.map(np.asarray, params)
        return type(self), (self._functions, host)


def load(
    source: Any,
    options: Mapping[str, Any] | DelegateOptions | None = None,
    *,
    max_tensor_bytes: int | None = None,
    max_host_memory: int | None = None,
    **more: Any,
) -> CallableModel:
    """Read a .tflite for use from JAX.

    Args:
        source: a path, or the file's content as bytes.
        options: those of JaxDelegate that say what is computed and where: platform, quant_mode,
            compute_dtype and the like. Those of partitions and of the cache do not apply here.
        **more: single options, which win over `options`.
        max_tensor_bytes: how much one tensor may take; more is an error before anything is
            allocated, since a damaged file may declare any shape. None: 2 GiB.
        max_host_memory: bytes that the tensors may take at once where a CPU computes them, counted
            operator by operator (XLA may need less). None: four fifths of the machine's memory, or
            of what its control group allows.

    Raises:
        ModelError: the file cannot be opened or is damaged.
        OptionError: an unknown or impossible option, or one that does not apply here.
    """
    given = DelegateOptions.of(options, **more)
    wrong = sorted(set(given.changed()) - _OPTIONS)
    if wrong:
        raise OptionError(
            f"load: {wrong[0]} is an option of delegates in interpreters; "
            f"here these apply: {', '.join(sorted(_OPTIONS))}"
        )
    graph = open_model(source)
    if not graph.subgraphs:
        raise ModelError(
            f"{printable(graph.source)}: Model.subgraphs: at least one is needed, got none"
        )
    limits = Limits.of(max_tensor_bytes, max_host_memory)
    return CallableModel(Functions(graph, View(given, limits), source))


def save(
    source: Any,
    path: str | os.PathLike[str],
    params: Params | None = None,
    *,
    fold_normalizations: bool = False,
    dtype: Literal["float16"] | None = None,
    rescale: bool = False,
    calibrate: Iterable[Any] | None = None,
) -> None:
    """Write a .tflite with other weights or scales, trained or not: see `Model.save`.

    Any constant of numbers can be replaced by its tensor's name; the model need not be one that
    XLA can run.

    Args:
        source: a model, a path, or a file's content.
        path: where to; it may be the source.
        params: as for `Model.save`.
        fold_normalizations: remove MUL, DIV, ADD and SUB by constants of each channel directly
            behind or before a float32 convolution or FULLY_CONNECTED, which gets other weights and
            a bias for it, and their fused activation. The results are equal but for rounding.
            The log names what is folded, and says where nothing is: the file stays as it is then.
        dtype: "float16": store float32 weights as float16, with a DEQUANTIZE operator for each, as
            TFLite's converter does. Scalars, and what custom operators read, stay float32.
        rescale: as for `Model.save`.
        calibrate: as for `Model.save`.

    Raises:
        OptionError: another dtype.
        TensorError: see `Model.save`; or folded weights that are not finite, or values beyond the
            range of float16.
        ModelError: see `Model.save`; or a file that cannot be written anew, as `dtype` and
            `fold_normalizations` need.
        OSError: the file cannot be written.
    """
    if dtype not in (None, "float16"):
        raise OptionError(f"save: dtype: want 'float16' or None, got {dtype!r}")
    model = source if isinstance(source, CallableModel) else load(source)
    how = {"rescale": rescale, "calibrate": calibrate}
    model._save(path, params, fold=fold_normalizations, half=dtype is not None, **how)


def _names(tensors: Names) -> tuple[str, ...]:
    return (tensors,) if isinstance(tensors, str) else tuple(tensors)


def _shape(shape: Sequence[int] | None) -> str:
    return "nothing" if shape is None else f"an array of the shape {list(shape)}"
