"""A .tflite as a pure JAX function: jit, vmap, grad, shard or export it."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import ModelError, OptionError, TensorError
from jaxdelegate.function.subgraph import Params, SubgraphFunction
from jaxdelegate.model.records import Model, SignatureDef, Subgraph, read_model
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.options import DelegateOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.runtime.sizes import MAX_TENSOR_BYTES

Apply = Callable[..., Any]

# Of JaxDelegate's options those that change a program, less what is the caller's here.
_OPTIONS = {
    field.name for field in dataclasses.fields(DelegateOptions) if field.metadata["keyed"]
} - {"donate_inputs", "device_index"}


@dataclasses.dataclass(frozen=True, eq=False)
class TensorInfo:
    """One input or output of a signature. -1 stands for a dimension that the model leaves open."""

    name: str
    shape: Shape
    dtype: np.dtype
    quantization: Quantization | None


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


class CallableModel:
    """A model to call from JAX; `jaxdelegate.load` makes it.

    `model(*inputs)` answers a tuple, `model(**named)` a dictionary, as jax arrays: compiled for
    each set of input shapes as delegates compile, or, called with what JAX traces, part of the
    caller's program. Variable tensors (recurrent state) begin at zero in every call; `function()`
    lets the caller thread them.
    """

    def __init__(
        self,
        graph: Model,
        source: Any = None,
        options: DelegateOptions | None = None,
        *,
        max_tensor_bytes: int = MAX_TENSOR_BYTES,
    ) -> None:
        """Wrap a model that was read from `source`; nothing is lowered yet."""
        self.graph, self.source = graph, source
        self.options = DelegateOptions() if options is None else options
        self._max_tensor_bytes = max_tensor_bytes
        self._functions: dict[str | None, SubgraphFunction] = {}

    @property
    def signatures(self) -> dict[str, Signature]:
        """The model's signatures by key; empty if the file names none."""
        return {
            s.key: _signature(self.graph.subgraphs[s.subgraph], s) for s in self.graph.signatures
        }

    def __repr__(self) -> str:
        """The model's name, and the main subgraph's inputs and outputs with dtypes and shapes."""
        main = self.graph.subgraphs[0]

        def ends(indices: Sequence[int]) -> str:
            found = [main.tensors[i] for i in indices]
            return ", ".join(
                f"{t.name} {t.dtype} {list(t.shape_signature or t.shape)}" for t in found
            )

        name = os.path.basename(self.graph.source)
        return f"<jaxdelegate.Model {name!r}: {ends(main.inputs)} -> {ends(main.outputs)}>"

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
        if inputs and named:
            raise TensorError("call a model with positional or with named inputs, not with both")
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return self(**inputs[0])
        if not named:
            return self._function(None).run(inputs)
        key, input_names, output_names = self._names_for(named)
        results = self._function(key).run(tuple(named[name] for name in input_names))
        return dict(zip(output_names, results, strict=True))

    def function(self, signature: str | None = None) -> tuple[Apply, Params]:
        """The model as `(apply, params)`: `apply(params, *inputs) -> tuple` is pure and traceable.

        Args:
            signature: which one; None: the main subgraph, inputs and outputs in the file's order.

        Returns:
            apply: shapes follow the arrays it is given. With `state=` (see `initial_state`) it
                answers `(outputs, new_state)`.
            params: weights by tensor name, in the file's layout; constant arithmetic is folded.

        Raises:
            DelegationError: an operator that XLA cannot run; lists all of them.
            ValueError: no such signature.
        """
        function = self._function(signature)
        return function.apply, function.params

    def initial_state(self, signature: str | None = None) -> Params:
        """What every state begins with, by name.

        Zeros for variable tensors, seeds for random operators, and for resource variables what the
        model's initialization (CALL_ONCE) assigns, or zeros.
        """
        return self._function(signature).initial_state()

    def _function(self, key: str | None) -> "SubgraphFunction":
        if key not in self._functions:
            self._functions[key] = self._make(key)
        return self._functions[key]

    def _make(self, key: str | None) -> "SubgraphFunction":
        more = self.options, self._max_tensor_bytes
        if key is None:
            subgraph = self.graph.subgraphs[0]
            return SubgraphFunction(self.graph, 0, subgraph.inputs, subgraph.outputs, *more)
        by_key = {s.key: s for s in self.graph.signatures}
        if key not in by_key:
            there = f"it has {sorted(by_key)}" if by_key else "it has none: leave the argument out"
            raise ValueError(f"signature {key!r} is not in the model; {there}")
        s = by_key[key]
        outputs = tuple(s.outputs.values())
        inputs = tuple(s.inputs.values())
        return SubgraphFunction(self.graph, s.subgraph, inputs, outputs, *more)

    def _names_for(self, named: Mapping[str, Any]) -> tuple[str | None, list[str], list[str]]:
        for s in self.graph.signatures:
            if set(s.inputs) == set(named):
                return s.key, list(s.inputs), list(s.outputs)
        main = self.graph.subgraphs[0]
        inputs = [main.tensors[i].name for i in main.inputs]
        if set(inputs) == set(named):
            return None, inputs, [main.tensors[i].name for i in main.outputs]
        known = [sorted(s.inputs) for s in self.graph.signatures] or [inputs]
        raise TensorError(
            f"inputs {sorted(named)} fit no signature; the model has {' or '.join(map(str, known))}"
        )


def load(
    source: Any,
    options: Mapping[str, Any] | DelegateOptions | None = None,
    *,
    max_tensor_bytes: int | None = None,
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
    graph = read_model(source)
    if not graph.subgraphs:
        raise ModelError(f"{graph.source}: Model.subgraphs: at least one is needed, got none")
    limit = MAX_TENSOR_BYTES if max_tensor_bytes is None else max_tensor_bytes
    return CallableModel(graph, source, given, max_tensor_bytes=limit)


def _signature(subgraph: Subgraph, s: SignatureDef) -> Signature:
    def info(index: int) -> TensorInfo:
        tensor = subgraph.tensors[index]
        return TensorInfo(
            tensor.name, tensor.shape_signature or tensor.shape, tensor.dtype, tensor.quantization
        )

    return Signature(
        {name: info(i) for name, i in s.inputs.items()},
        {name: info(i) for name, i in s.outputs.items()},
    )
