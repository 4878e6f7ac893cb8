"""One program on all devices of a mesh, each with its part of the batch."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.pjrt.client import Runtime, on_purpose


def divided(*axes: str | tuple[str, ...] | None) -> PartitionSpec:
    """A PartitionSpec by dimension; without arguments: replicated."""
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


WHOLE = divided()


@dataclasses.dataclass(frozen=True)
class OverMesh:
    """The layout of arrays on a mesh: weights replicated, batches divided."""

    mesh: Mesh  # its axes are `AxisType.Auto`; see `over`
    axes: tuple[str, ...]  # they divide the first dimension of a batch; empty: replicated
    whole: frozenset[int] = frozenset()  # inputs, by tensor, that are always replicated

    @property
    def parts(self) -> int:
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    @property
    def local_parts(self) -> int:
        along = [self.mesh.axis_names.index(axis) for axis in self.axes]
        own = jax.process_index()
        places = np.ndenumerate(self.mesh.devices)
        mine = [i for i, device in places if device.process_index == own]
        return len({tuple(i[axis] for axis in along) for i in mine})

    @property
    def device(self) -> jax.Device:
        device: jax.Device = self.mesh.local_devices[0]
        return device

    @property
    def batch(self) -> PartitionSpec:
        """The PartitionSpec of an array whose first dimension is the batch."""
        return divided(self.axes) if self.axes else WHOLE

    def spec(self, index: int | None) -> PartitionSpec:
        """The PartitionSpec of an input, by tensor; None: replicated."""
        return WHOLE if index is None or index in self.whole else self.batch

    def sharding(self, index: int | None) -> NamedSharding:
        """The sharding of an input, by tensor; None: replicated."""
        return NamedSharding(self.mesh, self.spec(index))

    def part(self, index: int, shape: Shape) -> Shape:
        """The shape of one device's part of an input."""
        if index in self.whole or not self.axes:
            return tuple(shape)
        return (shape[0] // self.parts, *shape[1:])

    def _whole(self, index: int | None, part: Any) -> Any:
        """The whole array of which a device has such a part."""
        shape = part.shape
        if index is not None and index not in self.whole and self.axes:
            shape = (shape[0] * self.parts, *shape[1:])
        return jax.ShapeDtypeStruct(shape, part.dtype, sharding=self.sharding(index))  # type: ignore[no-untyped-call]

    def on_each(
        self,
        program: Callable[..., tuple[Any, ...]],
        avals: Sequence[Any],
        indices: Sequence[int | None],
        outputs: int,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """A function that runs a program on each device with its part, and its arguments.

        Args:
            program: a function of one part's arrays.
            avals: the shapes and dtypes of these arrays.
            indices: their tensors; None: replicated.
            outputs: how many of its first results are returned; their first dimension is the
                batch.
        """

        def wanted(*arrays: Any) -> tuple[Any, ...]:
            return program(*arrays)[:outputs]

        wanted.__name__ = program.__name__
        mapped = self.mapped(wanted, tuple(map(self.spec, indices)))
        return mapped, [self._whole(i, a) for i, a in zip(indices, avals, strict=True)]

    def mapped(self, part: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
        """A function of whole arrays with these PartitionSpecs, from a function of their parts."""
        return jax.shard_map(
            part, mesh=self.mesh, in_specs=specs, out_specs=self.batch, check_vma=False
        )

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}: {size}" for name, size in self.mesh.shape.items())
        return f"a mesh of {self.mesh.size} {self.device.platform} devices ({sizes})"


def over(mesh: Mesh, axes: tuple[str, ...]) -> OverMesh:
    """A layout with the same devices and axes, whose shardings XLA may choose."""
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    return OverMesh(Mesh(mesh.devices, mesh.axis_names, axis_types=auto), axes)


def placed(array: Any, sharding: NamedSharding) -> jax.Array:
    """An array with this sharding, from elements that every process has; no communication."""
    with jax.enable_x64(True), on_purpose():
        if sharding.is_fully_addressable:
            whole: jax.Array = jax.device_put(array, sharding)
            return whole
        elements = np.asarray(array)
        return jax.make_array_from_callback(elements.shape, sharding, lambda i: elements[i])


def constrained(array: Any, sharding: NamedSharding) -> Any:
    """A traced array with this sharding."""
    return jax.lax.with_sharding_constraint(array, sharding)  # type: ignore[no-untyped-call]


def joined(own: Any, sharding: NamedSharding) -> jax.Array:
    """An array from the parts that the processes have."""
    with jax.enable_x64(True), on_purpose():
        whole: jax.Array = jax.make_array_from_process_local_data(  # type: ignore[no-untyped-call]
            sharding, np.asarray(own)
        )
    return whole


@functools.lru_cache(maxsize=8)
def mesh_runtime(over_mesh: OverMesh) -> "MeshRuntime":
    """The runtime of a mesh, created once, so that its programs share weights."""
    return MeshRuntime(over_mesh)


class MeshRuntime(Runtime):
    """This process's devices of a mesh, each with all weights."""

    def __init__(self, over_mesh: OverMesh) -> None:
        self.replicated = NamedSharding(over_mesh.mesh, WHOLE)
        super().__init__(over_mesh.device, self.replicated, jax.core.ShapedArray)
        self.devices = over_mesh.mesh.local_devices

    def put(self, array: Any) -> Any:
        """An array with these elements on every device."""
        return placed(array, self.replicated)

    def from_device(self, value: Any) -> Any:
        """The value itself: arguments of a mesh's program are already placed."""
        return value
