"""Meshes: what has one, and checks of it and of the axes along which a batch is divided."""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from jax.sharding import Mesh

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.xla.options import platform_of

Batch = str | Sequence[str] | None


class OnMesh:
    """Something with devices of this process."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a sharded model cannot be pickled or copied, because its mesh has devices of this "
            "process: pickle the model, and call its `sharded` in each process"
        )


def batch_axes(batch: Batch, mesh: Any) -> tuple[str, ...]:
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


def check_mesh(mesh: Mesh, options: DelegateOptions) -> None:
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


def check_axes(what: str, axes: tuple[str, ...], mesh: Mesh) -> None:
    """Check that a mesh has these axes."""
    for axis in axes:
        if axis not in mesh.axis_names:
            known = ", ".join(map(repr, mesh.axis_names))
            raise OptionError(
                f"sharded: {what}: the mesh has no axis {axis!r}; its axes are {known}"
            )
