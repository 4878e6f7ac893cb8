"""Programs lowered for a GPU that is absent."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

# Since jax 0.12 Pallas asks for the kind of GPU when it lowers a Triton kernel.
_H100 = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")


def lowered_for_gpu(function: Callable[..., Any], *arrays: Any) -> str:
    """The text of a program for an H100, under 64-bit types as a delegate's."""
    with jax.enable_x64(True), use_abstract_mesh(AbstractMesh((), (), abstract_device=_H100)):
        lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        return str(lowered.as_text())
