"""Calls of models in a function that becomes a file: their operators are written back unchanged.

While `from_jax` traces a function, a model's call is one primitive, which has the call's record.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend import core

from jaxdelegate.function.context import Ends, ModelContext
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.records import Parameter, Params
from jaxdelegate.model.records import Tensor
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.plan.planner import EntryPoint

_WRITING: ContextVar[bool] = ContextVar("_WRITING", default=False)
_ARE_WRITTEN = ("file", "float")  # types of inputs and outputs
primitive: Any = core.Primitive("tflite_model")
primitive.multiple_results = True


class Weights(Protocol):
    """The leaves of the function that is called."""

    @property
    def parameters(self) -> Mapping[str, Parameter]: ...

    @property
    def params(self) -> Params: ...


@dataclasses.dataclass(frozen=True, eq=False)
class WrittenCall:
    """The operands of the primitive are leaves, by `leaves`, then the inputs of `ends`."""

    model: ModelContext
    ends: Ends
    weights: Weights
    specs: Sequence[TensorSpec]  # of all tensors of the subgraph, for the inputs' shapes
    leaves: tuple[str, ...]
    io: str

    def results(self) -> list[Any]:
        """The shapes and dtypes of the outputs."""
        specs = [self.specs[i] for i in self.ends.outputs]
        floats = [self.io == "float" and s.quantization is not None for s in specs]
        dtypes = [
            np.dtype(np.float32) if f else s.dtype for s, f in zip(specs, floats, strict=True)
        ]
        return [jax.core.ShapedArray(s.shape, t) for s, t in zip(specs, dtypes, strict=True)]


primitive.def_abstract_eval(lambda *_, call: call.results())


@contextlib.contextmanager
def written_calls() -> Iterator[None]:
    """While it is open, calls of models are the primitive where that is possible."""
    token = _WRITING.set(True)
    try:
        yield
    finally:
        _WRITING.reset(token)


def _is_handle(tensor: Tensor) -> bool:
    return tensor.type in (TensorType.RESOURCE, TensorType.VARIANT)


def outputs_of(
    weights: Weights,
    entry: tuple[ModelContext, Ends, EntryPoint],
    params: Params,
    arrays: Sequence[Any],
    mode: Mode,
) -> tuple[Any, ...] | None:
    """The outputs of a call as the primitive; None: the call is traced as it is.

    That is so outside of `written_calls`, for models with resources or shapes that depend on
    data, for symbolic shapes, and for modes of training.
    """
    if not _WRITING.get():
        return None
    model, ends, point = entry
    shapes = {i: tuple(a.shape) for i, a in zip(ends.inputs, arrays, strict=True)}
    known = all(isinstance(n, int) for shape in shapes.values() for n in shape)
    plain = mode.io in _ARE_WRITTEN and Mode(mode.io, mode.platform) == mode
    if not plain or not known or any(map(_is_handle, point.subgraph.tensors)):
        return None
    own = weights.params
    leaves = tuple(n for n in own if n in params and params[n] is not own[n])
    specs = point.specs({**point.declared_shapes, **shapes})
    if any(specs[i].is_dynamic for i in ends.outputs):
        return None
    call = WrittenCall(model, ends, weights, specs, leaves, mode.io)
    return tuple(primitive.bind(*(params[n] for n in leaves), *arrays, call=call))
