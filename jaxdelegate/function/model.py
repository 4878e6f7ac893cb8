"""A .tflite as a pure JAX function: jit, vmap, grad, shard or export it."""

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import jax
import numpy as np

from jaxdelegate.errors import ModelError, OptionError, TensorError
from jaxdelegate.function import exporting
from jaxdelegate.function.apply import Apply
from jaxdelegate.function.arguments import check_alive, check_leaves, check_saved
from jaxdelegate.function.batching import BatchedFunction
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Io, Mode, Ranges, Weights, checked
from jaxdelegate.function.records import Batching, Parameter, Params, Scale, Signature, TensorInfo
from jaxdelegate.function.saving import saving
from jaxdelegate.function.saving.saving import FileIo
from jaxdelegate.function.sharding.model import ShardedModel
from jaxdelegate.function.sharding.weight_specs import WeightShardings
from jaxdelegate.model.records import Model
from jaxdelegate.options import DelegateOptions

Names = str | Sequence[str]


@exporting.storable
@jax.tree_util.register_pytree_with_keys_class
class CallableModel:
    """A model to call from JAX, returned by `jaxdelegate.load`.

    `model(*inputs)` returns a tuple of jax arrays, `model(**named)` a dictionary. Calls run
    programs that are compiled for each set of input shapes, as a delegate's are; when JAX traces
    the inputs, the model becomes part of the caller's program. Every call starts from the initial
    state (variable tensors, resource variables, random generators); with `function()` the caller
    can pass states from call to call.

    A model is a pytree whose leaves are its weights: `jax.grad`, `jax.tree.map` and optax accept
    it. It can be pickled, with the file's content and changed weights.
    """

    def __init__(self, functions: Functions, params: Params | None = None) -> None:
        """Lower nothing yet; use `jaxdelegate.load`.

        Args:
            functions: the model's functions.
            params: weights that replace the file's.
        """
        self._functions, self._params = functions, params

    # ---- properties

    @property
    def graph(self) -> Model:
        """The file as frozen records, without the operators that were cut off."""
        return self._functions.graph

    @property
    def source(self) -> Any:
        """The path or content that the file was read from."""
        return self._functions.source

    @property
    def options(self) -> DelegateOptions:
        """The options."""
        return self._functions.view.options

    @property
    def signatures(self) -> dict[str, Signature]:
        """The model's signatures by key; empty if the file has none. A part has one."""
        return self._functions.signatures

    @property
    def inputs(self) -> dict[str, TensorInfo]:
        """The inputs of the main subgraph by name, in the order of `model(*inputs)`.

        Each has name, shape (-1: a free dimension), dtype and quantization, as in `signatures`.
        """
        return dict(self._functions.main.inputs)

    @property
    def outputs(self) -> dict[str, TensorInfo]:
        """The outputs of the main subgraph by name, in the order that `model(*inputs)` returns."""
        return dict(self._functions.main.outputs)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Inputs and computed tensors of the main subgraph, by name, in the order of execution.

        `until` and `from_` accept these names. Empty and duplicate names are made unique by the
        tensor's index.
        """
        return self._functions.tensors()

    @property
    def params(self) -> Params:
        """All weights by name, in the file's layout; one leaf for each buffer of the file.

        Tensors that depend only on constants are folded. Quantized weights are dequantized
        (`quant_mode="integer"`: the integers).
        """
        changed = self._own_params()
        return self._functions.leaves() if changed is None else changed

    def _own_params(self) -> Params | None:
        """The weights that replace the file's, if any; checks that none was donated."""
        if self._params is None:
            return None
        for name, leaf in self._params.items():
            check_alive("this model's params", name, leaf)
        return dict(self._params)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """A record for each leaf of `params`: where the file stores it, and how."""
        return {n: p for f in self._functions.lowerable() for n, p in f.parameters.items()}

    @property
    def batching(self) -> Batching | None:
        """How a batched model computes the main subgraph, and why; None if it is not batched."""
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
            *inputs: numpy or jax arrays in the main subgraph's input order. A single dictionary has
                the meaning of `named`.
            **named: arrays by name; they run the signature with these input names, or the main
                subgraph if they are its tensors' names.

        Returns:
            Outputs as jax arrays: a tuple, or a dictionary for named inputs.

        Raises:
            TensorError: an input is missing or superfluous, or has a wrong dtype.
            DelegationError: XLA cannot run some operators.
        """
        return self._functions.called(self._run, inputs, named)

    def _run(self, key: str | None, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        function = self._functions.function_of(key)
        arrays = function.checked(inputs)
        changed = self._own_params()
        if changed is not None:
            return function.call(changed, arrays)[0]
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
            signature: the key of a signature; None: the main subgraph, with inputs and outputs in
                the file's order.
            io: "float": quantized inputs, outputs and states are float32, rounded to their grids,
                so that integer networks have gradients with respect to their inputs. "file": their
                dtypes are the file's.
            platform: "cpu", "gpu" ("cuda", "rocm") or "tpu": the only platform of the trace. None:
                the options' platform, or any that XLA may compile for.
            weights: "fake_quantized": every call rounds the leaves of quantized weights to the
                grids of their integers, with a straight-through gradient, so that training sees the
                values of a saved file. "file": leaves are used unchanged. "prepared": for
                inference, as fast and as small as in a delegate: `params` are the weights as a
                device's programs read them (packed, in their layout), for `platform` or the
                options' device, by names of their own. Operators run as in a delegate with the
                options given to `load` (`quant_mode` is "auto" unless it was set). It has no
                gradients, and such `params` cannot be saved.
            ranges: "learned": `params` also contains the scales (see `scales`), float32, which
                replace the file's and have gradients. "kept": the file's scales.

        Returns:
            apply: a function for any input shapes. With `state=` (see `initial_state`) it returns
                `(outputs, new_state)`; `key=` seeds random operators.
            params: the leaves of `self.params` that this signature reads, and learned scales.

        Raises:
            DelegationError: XLA cannot run some operators; lists all of them.
            OptionError: an unknown value; or `weights` or `ranges` for a model without quantized
                weights or scales that can change, or that is computed in integers.
            ValueError: no such signature.
        """
        mode = checked(Mode(io, platform, weights, ranges), self.options.quant_mode)
        apply = Apply(self._functions, signature, mode)
        if mode.is_prepared and self._params is not None:
            raise OptionError(
                "weights='prepared' prepares the weights of a file, but this model has others: "
                "model.save(path), then load(path)"
            )
        leaves, changed = (
            self._functions.function_of(signature).leaves(mode),
            self._own_params() or {},
        )
        return apply, {n: changed.get(n, leaf) for n, leaf in leaves.items()}

    @property
    def scales(self) -> dict[str, Scale]:
        """The scales that `function(ranges="learned")` can train, by their names in `params`.

        They belong to quantized activations and weights: `"<tensor name>/scale"`. Tensors whose
        scales must be equal share one, named after the first tensor. Not included are scales that a
        kernel requires (the output of SOFTMAX), those of recurrent and custom operators, of biases
        (they follow from others) and of blocks.
        """
        return dict(self._functions.trainable.scales)

    def initial_state(self, signature: str | None = None, io: Io = "file") -> Params:
        """The initial value of each state, by name.

        Zeros for variable tensors, seeds for random operators, and for resource variables the value
        that the model's initialization (CALL_ONCE) assigns, or zeros. A resource variable has the
        same name in all signatures, its `shared_name` in the file.

        Args:
            signature: the key of a signature; None: the states of all signatures, which the
                functions of all of them accept and return updated.
            io: as for `function`.
        """
        return self._functions.initial_state(signature, io)

    def partition(self, predicate: Callable[[Parameter], bool]) -> tuple[Params, Params]:
        """Divide the weights in two: `apply({**some, **others}, x)`.

        Args:
            predicate: whether a leaf belongs to the first part, from its record: its name, shape,
                dtype, tensors and quantization.
        """
        chosen = {name for name, parameter in self.parameters.items() if predicate(parameter)}
        some = {name: leaf for name, leaf in self.params.items() if name in chosen}
        return some, {n: leaf for n, leaf in self.params.items() if n not in chosen}

    def with_params(self, params: Params) -> Self:
        """A copy of the model with other weights, all of them by name.

        Raises:
            TensorError: a leaf is missing or unknown, or has another shape.
        """
        check_leaves("with_params(params)", params)
        known = self.parameters
        for name in (*known, *params):
            if name in self.scales:
                raise TensorError(
                    f"with_params: {name!r} is a scale, but only weights can be replaced; apply "
                    "and save accept both"
                )
            wanted = known[name].shape if name in known else None
            shape = np.shape(params[name]) if name in params else None
            if wanted != shape:
                raise TensorError(
                    f"with_params: {name!r}: expected {_shape(wanted)}, got {_shape(shape)}; "
                    "model.params has all leaves"
                )
        return self._like(self._functions, dict(params))

    # ---- saving

    def save(
        self,
        path: str | os.PathLike[str],
        params: Params | None = None,
        *,
        rescale: bool = False,
        calibrate: Iterable[Any] | None = None,
        io: FileIo | tuple[FileIo, FileIo] = "file",
    ) -> None:
        """Write the file with these weights; everything else stays byte for byte.

        A part of a model (`until`, `from_`) is written as a file of its own, with its operators and
        constants, and one signature for its inputs and outputs. A batched model is written with the
        batch in its shapes, free for a name. Both are rewritten with the schema of ai-edge-litert.

        Quantized weights are rounded to their stored grid, halves away from zero; values outside
        its range are clamped, with a warning about their number. Biases (int32, int64) are adapted
        when the scales of inputs or weights change. The file is written atomically; it may be the
        one that the model was read from.

        Args:
            path: the file to write. `gemma.litertlm!prefill_decode`, where the bundle exists: the
                model in it, as for `jaxdelegate.load`; the bundle's other parts stay byte for byte.
            params: leaves by name, which replace the file's. `"<tensor name>/scale"`: a quantized
                tensor's scale, float32 in its stored shape; weights are rounded to the new grid.
                None: this model's weights.
            rescale: whether changed weights get the smallest scales that hold them (zero points do
                not change).
            calibrate: inputs, each a tuple of arrays (or a dictionary by name) as for a call: the
                activations get new scales and zero points from their ranges on these inputs.
            io: the type of quantized inputs and outputs in the file: "float32" (or "float", as for
                `function`), "int8", "uint8" or "int16"; a pair: that of inputs, and of outputs.
                QUANTIZE and DEQUANTIZE operators convert to the type in which the graph computes,
                as with TFLite's converter; int16 converts only to float32. Other inputs and outputs
                keep their types. "file": those of the file.

        Raises:
            TypeError: a path that is none, or params that are not a dictionary.
            TensorError: an unknown name, a wrong shape or dtype, values that the file cannot store,
                or a type that an input or output cannot have.
            ModelError: tensors that change and tensors that do not share data in the file, and
                cannot be separated; the graph cannot hold the batch, or nothing is quantized for
                `io`; or the file cannot be rewritten, as these require.
            OptionError: an unknown `io`.
            OSError: the file cannot be written.
        """
        check_saved("Model.save(path, params)", path, params)
        self._save(path, params, rescale=rescale, calibrate=calibrate, io=io)

    def _save(self, path: Any, params: Params | None, **how: Any) -> None:
        saving.save(self._functions, path, self._all(params), **how)

    def to_bytes(
        self,
        params: Params | None = None,
        *,
        rescale: bool = False,
        calibrate: Iterable[Any] | None = None,
        io: FileIo | tuple[FileIo, FileIo] = "file",
    ) -> bytes:
        """The content of the file that `save` writes; arguments and errors as there.

        Raises:
            ModelError: weights are in files next to the model.
        """
        if params is not None:
            check_leaves("to_bytes(params)", params)
        if self.graph.external_buffer_groups:
            raise ModelError(
                "to_bytes: weights are in files next to the model: save the model to a path"
            )
        how: dict[str, Any] = {"rescale": rescale, "calibrate": calibrate, "io": io}
        return bytes(saving.saved(self._functions, self._all(params), **how).content)

    def exact(self, params: Params | None = None) -> Self:
        """The model as integer kernels run it: the file of `save`, with quant_mode="integer".

        Args:
            params: as for `save`; None: this model's weights.

        Raises:
            TensorError, ModelError: as for `save`; or weights are in files next to the model.
        """
        if params is not None:
            check_leaves("exact(params)", params)
        return self._like(saving.exact(self._functions, self._all(params)), None)

    def _all(self, params: Params | None) -> Params | None:
        return self._own_params() if params is None else params

    # ---- variants

    def batched(self, size: int | str) -> Self:
        """The model for a batch, even if its graph has a fixed size: equal to one run per image.

        Inputs [1, ...] become [size, ...]; other inputs do not change, and are the same for all
        images; but if there are only others, each becomes [size, *shape]. Outputs [1, ...] become
        [size, ...], others [size, *shape]; each state [size, *shape]. The graph runs on the whole
        batch if every operator is known to compute each image independently and all shapes match;
        otherwise `jax.vmap` of the model is used: see `batching`.

        Args:
            size: the batch size. A name ("b"): any size, also a symbolic dimension of `jax.export`.

        Raises:
            OptionError: `size` is neither a positive number nor a name.
        """
        is_size = isinstance(size, int) and size > 0 and not isinstance(size, bool)
        if not is_size and not (isinstance(size, str) and size.isidentifier()):
            raise OptionError(
                f"batched: expected a positive number, or a name such as 'b', got {size!r:.40}"
            )
        return self._viewed(batch=size)

    def sharded(
        self,
        mesh: jax.sharding.Mesh,
        batch: str | Sequence[str] | None = "data",
        *,
        weights: WeightShardings = "replicated",
    ) -> ShardedModel:
        """The model over the devices of a mesh, which may belong to several processes.

        If the batch is divided, the model is batched as by `batched`: inputs [1, ...] become
        [n, ...], and so on, where n must be a multiple of the number of devices along the axis.
        Images are computed independently, so devices do not communicate.

        Args:
            mesh: a mesh of devices of one platform.
            batch: the axis, or axes, along which the batch is divided. None: the batch is
                replicated, and weights are divided.
            weights: "replicated": every device has all weights. An axis: weights and biases of
                convolutions and products are divided along it by output channels, if these are
                divisible. A dictionary from name patterns (`fnmatch`) to `PartitionSpec`s, of which
                the first match is used; or a function (name, shape) -> PartitionSpec, or None for
                replicated weights. `model.parameters` has names and shapes.

        Raises:
            DelegationError: XLA cannot run some operators.
            OptionError: the mesh does not have an axis or is of another platform than the model, a
                weight cannot be divided as specified, or nothing is divided.
        """
        return ShardedModel(self._functions, self._own_params(), mesh, batch, weights)

    def until(self, tensors: Names) -> Self:
        """The model with these tensors as outputs, without the operators after them.

        Args:
            tensors: one name or several, of `self.tensors`.

        Raises:
            TensorError: an unknown name.
        """
        return self._viewed(outputs=_names(tensors))

    def from_(self, tensors: Names) -> Self:
        """The model with these tensors as inputs, without the operators before them.

        Args:
            tensors: one name or several, of `self.tensors`; the outputs must follow from them,
                constants and states.

        Raises:
            TensorError: an unknown name, or the outputs do not follow from the tensors.
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
        """Export the model as StableHLO, lowered for each platform, which need not be available.

        `exported.call(params, *inputs)` returns the outputs as `apply` does, and
        `exported.serialize()` the bytes for `jax.export.deserialize`. Weights are arguments: they
        are the same for all platforms, and can be stored once (`numpy.savez(file, **params)`).

        Args:
            platforms: "cpu", "cuda", "rocm", "tpu".
            batch: as for `batched`; a name becomes a symbolic dimension. None: the file's size.
            signature: as for `function`.
            io: as for `function`.
            state: whether the exported functions take and return state, as `apply(..., state=)`.

        Returns:
            The exported functions by platform.

        Raises:
            DelegationError: XLA cannot run some operators on a platform.
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
                f"{again[0]}: this model already has {before!r}; start from the uncut model"
            )
        functions = Functions(
            self._functions.file, dataclasses.replace(view, **changes), self.source
        )
        return self._like(functions, self._own_params())

    def _like(self, functions: Functions, params: Params | None) -> Self:
        return type(self)(functions, params)

    # ---- pytree, copy, pickle

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Params]], Any]:
        """The weights, with their key, and the static part."""
        return ((jax.tree_util.GetAttrKey("params"), self.params),), self._functions

    def tree_flatten(self) -> tuple[tuple[Params], Any]:
        """The weights, and the static part."""
        return (self.params,), self._functions

    @classmethod
    def tree_unflatten(cls, static: Functions, children: tuple[Params]) -> Self:
        """The model with these weights, or with objects by which JAX replaces them."""
        return cls(static, children[0])

    def __copy__(self) -> Self:
        """A copy that shares functions and weights."""
        return self._like(self._functions, self._own_params())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that shares the functions, which never change, with copied weights."""
        return self._like(self._functions, copy.deepcopy(self._own_params(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file's content, the options, and weights that replace the file's."""
        params = self._own_params()
        host = None if params is None else jax.tree.map(np.asarray, params)
        return type(self), (self._functions, host)


def _names(tensors: Names) -> tuple[str, ...]:
    if not isinstance(tensors, str | Iterable):
        raise TypeError(f"expected names of model.tensors, got {type(tensors).__name__}")
    return (tensors,) if isinstance(tensors, str) else tuple(tensors)


def _shape(shape: Sequence[int] | None) -> str:
    return "nothing" if shape is None else f"an array of the shape {list(shape)}"
