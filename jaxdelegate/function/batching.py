"""Batches for a model of any fixed batch size: equal to running the model once for each image."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.errors import InterpreterError, TensorError
from jaxdelegate.function.arguments import fitting
from jaxdelegate.function.mode import AS_STORED, Mode
from jaxdelegate.function.records import Batching, Parameter, Params
from jaxdelegate.function.subgraph import SubgraphFunction
from jaxdelegate.model.records import Tensor
from jaxdelegate.passes.batch_slices import WHOLE_BATCH, BatchSlices
from jaxdelegate.passes.by_image import why_not_by_image
from jaxdelegate.pjrt import client
from jaxdelegate.xla.over_mesh import OverMesh

_PROBE = 2  # images: conditions that hold for two hold for more


class BatchedFunction:
    """A subgraph for a batch, along the first axis of every input whose first axis has the size 1.

    Other inputs are the same for all images (`is_batched` is false for them); but if no input has
    such an axis, all of them get a new first axis. Outputs [1, ...] become [n, ...]; other outputs
    and states get a new first axis.
    """

    def __init__(self, single: SubgraphFunction, size: int | str) -> None:
        """Wrap the function for one image; `size`: the batch size, or a name for any size."""
        self._single, self._size = single, size
        sizes = [_first(t) for t in single.tensors()]
        self.is_batched = [n == 1 for n in sizes] if 1 in sizes else [True for _ in sizes]
        self._has_new_axis = 1 not in sizes
        self._reasons: dict[int, str | None] = {}

    @property
    def params(self) -> Params:
        return self._single.params

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self._single.parameters

    def leaves(self, mode: Mode) -> Params:
        return self._single.leaves(mode)

    def dtypes(self, io: str = "file") -> list[np.dtype]:
        return self._single.dtypes(io)

    @property
    def batching(self) -> Batching:
        size = self._size if isinstance(self._size, int) else _PROBE
        reason = self._reason_for(size)
        return Batching(self._size, "vmap" if reason else "native", reason or "")

    def shapes(self) -> list[tuple[Any, ...]]:
        return [
            self._shape(t, is_batched)
            for t, is_batched in zip(self._single.tensors(), self.is_batched, strict=True)
        ]

    def _shape(self, tensor: Tensor, is_batched: bool) -> tuple[Any, ...]:
        if not is_batched:
            return tensor.shape
        return (self._size, *(tensor.shape if self._has_new_axis else tensor.shape[1:]))

    def initial_state(self, io: str = "file") -> Params:
        """The initial state of each image."""
        first = self._single.initial_state(io)
        if first and not isinstance(self._size, int):
            raise TensorError(
                f"a batch of any size ({self._size!r}) has no initial state: give "
                "model.batched() a number"
            )
        with jax.enable_x64(True), client.on_purpose():
            return {
                name: jnp.broadcast_to(value, (self._size, *value.shape))
                for name, value in first.items()
            }

    def with_random_key(self, key: Any, state: Params | None, io: str = "file") -> Params:
        states = self.initial_state(io) if state is None else state
        keys = jax.random.split(key, next((len(leaf) for leaf in states.values()), 1))
        return jax.vmap(lambda k, s: self._single.with_random_key(k, s, io))(keys, states)

    def checked(self, inputs: Sequence[Any], io: str = "file") -> list[Any]:
        """The inputs as arrays."""
        tensors = self._single.tensors()
        if len(inputs) != len(tensors):
            return self._single.checked(inputs, io)  # raises an error
        arrays = [
            fitting(t, x, io, may_be_symbolic=True) for t, x in zip(tensors, inputs, strict=True)
        ]
        sizes = [a.shape[0] for a, b in zip(arrays, self.is_batched, strict=True) if b and a.shape]
        size = sizes[0] if sizes and isinstance(self._size, str) else self._size
        for tensor, array, is_batched in zip(tensors, arrays, self.is_batched, strict=True):
            want = list(self._shape(tensor, is_batched))
            if is_batched and (array.shape[:1] != (size,) or self._has_other_rank(tensor, array)):
                raise TensorError(
                    f"input {tensor.index} {tensor.name!r} of a batch wants {want}, "
                    f"got {list(array.shape)}"
                )
        return arrays

    def _has_other_rank(self, tensor: Tensor, array: Any) -> bool:
        """Whether an array has another rank than a batch: an input [8, 4] is not eight of [4]."""
        is_known = bool(tensor.shape) or tensor.has_rank
        return self._has_new_axis and is_known and len(array.shape) != len(tensor.shape) + 1

    def run(self, arrays: Sequence[Any], over: OverMesh | None = None) -> tuple[Any, ...] | None:
        """The outputs, by a program compiled as for a delegate; it may run once for each image.

        Args:
            arrays: the inputs, as `checked` returns them.
            over: the mesh of which each device computes its part.

        Returns:
            None if JAX traces the inputs, or they are on several devices without a mesh, or an
            output is an input that all images share: see `call`.
        """
        if not self._whole.isdisjoint(self._single.outputs):
            return None
        size = self._size_of(arrays) // (1 if over is None else over.parts)
        is_native = self._reason_for(size) is None
        slices = WHOLE_BATCH if is_native else BatchSlices(size, self._whole, are_single=True)
        mesh = over and dataclasses.replace(over, whole=self._whole)
        return self._single.run(arrays, slices, mesh)

    @property
    def _whole(self) -> frozenset[int]:
        """The indices of inputs that are the same for all images."""
        tensors = zip(self._single.tensors(), self.is_batched, strict=True)
        return frozenset(t.index for t, is_batched in tensors if not is_batched)

    def call(
        self,
        params: Params,
        arrays: Sequence[Any],
        state: Params | None = None,
        mode: Mode = AS_STORED,
    ) -> tuple[tuple[Any, ...], Params]:
        if self._reason_for(self._size_of(arrays)) is None:
            return self._single.call(params, arrays, state, mode)

        def image(values: Sequence[Any], states: Params | None) -> tuple[tuple[Any, ...], Params]:
            inputs = [
                x if not is_batched or self._has_new_axis else x[None]
                for x, is_batched in zip(values, self.is_batched, strict=True)
            ]
            outputs, new = self._single.call(params, inputs, states, mode)
            return tuple(y[0] if y.shape[:1] == (1,) else y for y in outputs), new

        axes = [0 if is_batched else None for is_batched in self.is_batched]
        with jax.enable_x64(True), client.on_purpose():
            return jax.vmap(image, (axes, None if state is None else 0))(list(arrays), state)

    def _reason_for(self, size: Any) -> str | None:
        if not isinstance(size, int):
            return "the size of the batch is a symbol"
        if size not in self._reasons:
            self._reasons[size] = self._reason(size)
        return self._reasons[size]

    def _size_of(self, arrays: Sequence[Any]) -> Any:
        return next(a.shape[0] for a, b in zip(arrays, self.is_batched, strict=True) if b)

    def _reason(self, size: int) -> str | None:
        if self._single.has_state:
            return "each image has its own state"
        if self._has_new_axis:
            return "no input has the size 1 along its first axis"
        if not all(self.is_batched):
            return "an input is the same for all images"
        tensors = self._single.tensors()
        try:
            plan = self._single.plan(tuple((size, *t.shape[1:]) for t in tensors))
        except InterpreterError as error:
            return str(error).partition("; input ")[0]  # without the inputs' shapes
        image = self._single.plan(tuple((1, *t.shape[1:]) for t in tensors))
        for i in image.outputs:
            one, all_ = image.specs[i].shape, plan.specs[i].shape
            if one[:1] != (1,) or all_ != (size, *one[1:]):
                return f"output {image.specs[i].name!r} would be {list(all_)}, of one {list(one)}"
        return why_not_by_image(
            [node.operator for node in plan.nodes],
            plan.specs,
            [t.index for t in tensors],
            plan.outputs,
            single=image.specs,
        )


Function = SubgraphFunction | BatchedFunction


def _first(tensor: Tensor) -> int:
    """The size of the first axis for one image: 1 if it is free."""
    if not tensor.shape:
        return 0
    signature = tensor.shape_signature or tensor.shape
    return 1 if signature[0] == -1 else tensor.shape[0]
