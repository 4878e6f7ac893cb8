"""Lowering for a GPU that is absent."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh


def lowering_for_gpu(kind: str) -> contextlib.AbstractContextManager[object]:
    """Let Pallas lower Triton kernels for a kind of GPU: since jax 0.12 it asks for the device."""
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def lowered_for_gpu(function: Callable[..., Any], *arrays: Any) -> str:
    """The text of a program for an H100, under 64-bit types as a delegate's."""
    with jax.enable_x64(True), lowering_for_gpu("NVIDIA H100 80GB HBM3"):
        lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",))
        return str(lowered.as_text())
