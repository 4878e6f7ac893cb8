"""Calls of models in a function that becomes a file: their operators are written back unchanged.

While `from_jax` traces a function, a model's call is one primitive, which has the call's record.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching

from jaxdelegate.errors import ConversionError
from jaxdelegate.function.context import Ends, ModelContext
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.records import Params
from jaxdelegate.model.records import Model, Subgraph
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.plan.planner import EntryPoint
from jaxdelegate.text import printable

_WRITING: ContextVar[bool] = ContextVar("_WRITING", default=False)
_LOGGER = logging.getLogger("jaxdelegate")
primitive: Any = core.Primitive("tflite_model")
primitive.multiple_results = True


class Weights(Protocol):
    """The leaves of the function that is called."""

    def leaves(self, mode: Mode) -> Params: ...

    def fitting(self, params: Params, mode: Mode) -> Params: ...


@dataclasses.dataclass(frozen=True)
class Called:
    """A function of a model: a subgraph of the file, or of a part of it, between these ends."""

    file: Model
    model: ModelContext
    ends: Ends
    point: EntryPoint


@dataclasses.dataclass(frozen=True, eq=False)
class WrittenCall:
    """The operands of the primitive are leaves, by `leaves`, then the inputs of `ends`."""

    called: Called
    weights: Weights
    specs: Sequence[TensorSpec]  # of all tensors of the subgraph, for the inputs' shapes
    leaves: tuple[str, ...]
    mode: Mode
    plain: Callable[..., Any]  # the outputs for the operands, as JAX traces them

    def results(self) -> list[Any]:
        """The shapes and dtypes of the outputs."""
        specs = [self.specs[i] for i in self.called.ends.outputs]
        floats = [self.mode.io == "float" and s.quantization is not None for s in specs]
        dtypes = [
            np.dtype(np.float32) if f else s.dtype for s, f in zip(specs, floats, strict=True)
        ]
        return [jax.core.ShapedArray(s.shape, t) for s, t in zip(specs, dtypes, strict=True)]


primitive.def_abstract_eval(lambda *_, call: call.results())


def _derivative(primals: Any, tangents: Any, *, call: WrittenCall) -> Any:
    _check_transformed(call, "jax.grad: take the gradient outside of from_jax")
    return jax.jvp(call.plain, primals, tuple(map(ad.instantiate_zeros, tangents)))


def _batch(operands: Any, axes: Any, *, call: WrittenCall) -> Any:
    _check_transformed(call, "jax.vmap: call model.batched(n) on the whole batch")
    outputs = jax.vmap(call.plain, tuple(axes))(*operands)
    return outputs, [0] * len(outputs)


ad.primitive_jvps[primitive] = _derivative
batching.primitive_batchers[primitive] = _batch


def _check_transformed(call: WrittenCall, instead: str) -> None:
    """Operators of floats become JAX's; quantized ones would silently become floats."""
    if any(t.quantization is not None for t in call.called.point.subgraph.tensors):
        raise ConversionError(
            f"from_jax: the quantized model {printable(call.called.file.source)} is written by its "
            f"operators, not inside of {instead}"
        )


@contextlib.contextmanager
def written_calls() -> Iterator[None]:
    """While it is open, calls of models are the primitive where that is possible."""
    token = _WRITING.set(True)
    try:
        yield
    finally:
        _WRITING.reset(token)


def outputs_of(
    called: Called,
    weights: Weights,
    params: Params,
    arrays: Sequence[Any],
    mode: Mode,
    state: Params | None,
    plain: Callable[[Params, Sequence[Any]], tuple[Any, ...]],
) -> tuple[Any, ...] | None:
    """The outputs of a call as the primitive; None: the call is traced as it is.

    That is so outside of `written_calls`, and for what `_why_not` says. `plain` traces it.
    """
    if not _WRITING.get():
        return None
    shapes = {i: tuple(a.shape) for i, a in zip(called.ends.inputs, arrays, strict=True)}
    specs: Sequence[TensorSpec] = ()
    reason = _why_not(called.point.subgraph, shapes.values(), mode, state)
    if reason is None:
        specs = called.point.specs({**called.point.declared_shapes, **shapes})
        if any(specs[i].is_dynamic for i in called.ends.outputs):
            reason = "the shapes of its outputs depend on data"
    if reason is not None:
        _warn(called, reason)
        return None
    own, given = weights.leaves(mode), weights.fitting(params, mode)
    leaves = tuple(n for n in own if given[n] is not own[n])

    def traced(*operands: Any) -> list[Any]:
        new = dict(zip(leaves, operands[: len(leaves)], strict=True))
        return list(plain({**given, **new}, operands[len(leaves) :]))

    call = WrittenCall(called, weights, specs, leaves, mode, traced)
    return tuple(primitive.bind(*(given[n] for n in leaves), *arrays, call=call))


def _why_not(
    subgraph: Subgraph, shapes: Iterable[tuple[Any, ...]], mode: Mode, state: Params | None
) -> str | None:
    handles = (TensorType.RESOURCE, TensorType.VARIANT)
    if state is not None:
        return "it is called with a state"
    if any(t.type in handles for t in subgraph.tensors):
        return "it has resource variables"
    if not all(isinstance(n, int) for shape in shapes for n in shape):
        return "its inputs have symbolic shapes"
    return "its inputs and outputs are in reduced precision" if mode.io == "reduced" else None


def _warn(called: Called, reason: str) -> None:
    """Say that integers become floats."""
    if any(t.quantization is not None for t in called.point.subgraph.tensors):
        name = printable(called.file.source)
        text = "from_jax: the quantized model %s is written in floats, not by its operators: %s"
        _LOGGER.warning(text, name, reason)
