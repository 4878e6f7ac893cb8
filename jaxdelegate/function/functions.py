"""A function for each signature of a model, or of a part of it, for an image or a batch."""

import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.errors import DelegationError, TensorError
from jaxdelegate.function.batching import BatchedFunction, Function
from jaxdelegate.function.context import Compilers, Ends, ModelContext
from jaxdelegate.function.leaves import Leaves
from jaxdelegate.function.records import (
    Names,
    Params,
    Signature,
    TensorInfo,
    computed_names,
    info_of,
    positional_and_named,
    unique_names,
)
from jaxdelegate.function.signatures import named_infos, selected, signatures_of
from jaxdelegate.function.states import ModelStates
from jaxdelegate.function.subgraph import SubgraphFunction
from jaxdelegate.function.training.trainable import Trainable
from jaxdelegate.function.views import View
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.records import Model, SignatureDef, Tensor
from jaxdelegate.model.source import Source
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.propagation import Subgraphs
from jaxdelegate.pjrt.client import check_process
from jaxdelegate.plan.shape_signatures import shape_signatures
from jaxdelegate.runtime.open_model import resources_after
from jaxdelegate.simple_delegate import GraphKey


class Functions:
    """A model's functions, lowered when they are first used. Equal for equal files and views."""

    def __init__(
        self, file: Model, view: View, source: Any = None, weights: DeviceWeights | None = None
    ) -> None:
        """`weights`: those of its device, which prepared weights join; None: none."""
        self.file, self.view, self.source = file, view, source
        self.graph = selected(file, view)
        self.trainable = Trainable(file.subgraphs)
        self._weights = weights
        self._functions: dict[Ends, Function] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def _context(self) -> ModelContext:
        subgraphs, view = self.graph.subgraphs, self.view
        assigned = functools.partial(resources_after, subgraphs=subgraphs, limits=view.limits)
        return ModelContext(
            Subgraphs(subgraphs),
            view,
            trainable=self.trainable,
            states=ModelStates(subgraphs, assigned),
            compilers=Compilers(view, self._weights),
            leaves=Leaves(subgraphs, as_floats=view.options.quant_mode == "float_view"),
        )

    @functools.cached_property
    def signatures(self) -> dict[str, Signature]:
        """The signatures by key, with -1 for free dimensions."""
        return signatures_of(self.graph, self.view.limits)

    @functools.cached_property
    def main(self) -> Signature:
        """Inputs and outputs of the main subgraph, by tensor name."""
        main = self.graph.subgraphs[0]
        named = (
            dict(zip(unique_names(main, indices), indices, strict=True))
            for indices in (main.inputs, main.outputs)
        )
        return Signature(*(named_infos(self.graph, main, n, self.view.limits) for n in named))

    def tensors(self) -> dict[str, TensorInfo]:
        """The inputs and computed tensors of the file's main subgraph, by name, in order."""
        main = self.file.subgraphs[0]
        named = computed_names(main)
        shapes = shape_signatures(
            main, self.file.subgraphs, tuple(named.values()), self.view.limits
        )
        return {n: info_of(main.tensors[i], shapes[i], n) for n, i in named.items()}

    def function_of(self, key: str | None) -> Function:
        """The function of a signature; None: the main subgraph's."""
        check_process()  # here, because every computation needs a function
        self.file.origin.check_unchanged()
        ends = self._ends(key)
        with self._lock:
            if ends not in self._functions:
                self._functions[ends] = self._function(ends)
            return self._functions[ends]

    def declare(self, key: str | None, shapes: Mapping[str, Shape]) -> None:
        """Lower a signature with prepared weights for these shapes of its inputs first."""
        function = self.function_of(key)
        if isinstance(function, SubgraphFunction):
            function.declare(tuple(shapes[name] for name in self.names_of(key).inputs))

    def _function(self, ends: Ends) -> Function:
        entry = self.view.inputs, self.view.outputs, *ends
        key = GraphKey(self.file, entry, os.path.basename(self.file.source))
        single, batch = SubgraphFunction(self._context, ends, key), self.view.batch
        return single if batch is None else BatchedFunction(single, batch)

    def initial_state(self, key: str | None, io: str) -> Params:
        """The initial states of a signature, by name; None: those of all signatures."""
        functions = self.each() if key is None else [self.function_of(key)]
        return {n: v for f in reversed(functions) for n, v in f.initial_state(io).items()}

    def each(self) -> list[Function]:
        """The function of the main subgraph, and of each signature with other outputs."""
        keys: dict[tuple[int, frozenset[int]], str | None] = {}
        for key in (None, *self.signatures):
            subgraph, _, outputs = self._ends(key)
            keys.setdefault((subgraph, frozenset(outputs)), key)
        return [self.function_of(key) for key in keys.values()]

    def _ends(self, key: str | None) -> Ends:
        if key is None:
            main = self.graph.subgraphs[0]
            return Ends(0, main.inputs, main.outputs)
        s = self._by_key(key)
        return Ends(s.subgraph, tuple(s.inputs.values()), tuple(s.outputs.values()))

    def called(
        self,
        run: Callable[[str | None, tuple[Any, ...]], tuple[Any, ...]],
        inputs: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        """The result of calling the model: a tuple, or a dictionary if inputs are named.

        `run` runs a signature (None: the main subgraph) on its inputs in order. A single positional
        dictionary has the meaning of `named`.
        """
        inputs, named = positional_and_named("a model", inputs, named)
        if inputs and isinstance(inputs[0], Mapping):
            raise TensorError(
                "model(params, ...): params are for the apply of model.function(); "
                "model.with_params(params) is a model with other weights"
            )
        if not named:
            return run(None, inputs)
        key = self.key_for(named)
        names = self.names_of(key)
        return names.named(run(key, names.in_order(named)))

    def names_of(self, key: str | None) -> Names:
        if key is None:
            return Names(list(self.main.inputs), list(self.main.outputs))
        s = self._by_key(key)
        return Names(list(s.inputs), list(s.outputs))

    def key_for(self, named: Mapping[str, Any]) -> str | None:
        """The signature whose inputs have these names; None if the main subgraph's inputs do.

        Language models have a signature for each prompt length, all with the same names: the first
        one whose shapes match is used, or the first one if none matches.
        """
        of_names = [s for s in self.graph.signatures if set(s.inputs) == set(named)]
        shapes = {name: np.shape(value) for name, value in named.items()}
        for s in (*(s for s in of_names if self._takes(s, shapes)), *of_names):
            return s.key
        if set(self.main.inputs) == set(named):
            return None
        known = [sorted(s.inputs) for s in self.graph.signatures] or [list(self.main.inputs)]
        raise TensorError(
            f"inputs {sorted(named)} fit no signature; the model has {' or '.join(map(str, known))}"
        )

    def _takes(self, s: SignatureDef, shapes: Mapping[str, Shape]) -> bool:
        tensors = self.graph.subgraphs[s.subgraph].tensors
        return all(_fits(tensors[i], shapes[name]) for name, i in s.inputs.items())

    def _by_key(self, key: str) -> SignatureDef:
        if not isinstance(key, str):
            raise TypeError(
                f"signature: expected a key of model.signatures, got {type(key).__name__}"
            )
        by_key = {s.key: s for s in self.graph.signatures}
        if key not in by_key:
            known = f"it has {sorted(by_key)}" if by_key else "it has none: leave the argument out"
            raise ValueError(f"signature {key!r} is not in the model; {known}")
        return by_key[key]

    def leaves(self) -> dict[str, Any]:
        """All weights by name, including folded ones; see `lowerable`."""
        return {n: leaf for f in self.lowerable() for n, leaf in f.params.items()}

    def lowerable(self) -> list[Function]:
        """The functions of all signatures that XLA can run."""
        functions, refusals = [], []
        for function in self.each():
            try:
                _ = function.params
                functions.append(function)
            except DelegationError as error:
                refusals.append(error)
        if not functions:
            raise refusals[0]
        return functions

    @functools.cached_property
    def identity(self) -> tuple[str, int, str]:
        """The file's SHA-256 and size, and the view as JSON, as a stored export keeps them."""
        view = self.view
        part = json.dumps([view.options.changed(), view.inputs, view.outputs, view.batch])
        return self._digest, self.file.nbytes, part

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.file.content).hexdigest()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Functions):
            return NotImplemented  # a stored export compares itself
        if self.view != other.view:
            return False
        return self.file is other.file or self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self.file.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file's content instead of its path, which may not exist elsewhere."""
        if self.file.external_buffer_groups:  # stored in files next to it
            return _read_again, (self.file.source, None, self.view)
        return _read_again, (self.file.source, bytes(self.file.content), self.view)

    def __repr__(self) -> str:
        return f"<functions of {self.file.source!r}>"


def _read_again(name: str, content: bytes | None, view: View) -> Functions:
    if content is None:
        return Functions(open_model(name), view, name)
    return Functions(open_model(Source(name, memoryview(content))), view, content)


def _fits(tensor: Tensor, shape: Shape) -> bool:
    declared = tensor.shape_signature or tensor.shape
    return len(declared) == len(shape) and all(
        n in (-1, m) for n, m in zip(declared, shape, strict=True)
    )
