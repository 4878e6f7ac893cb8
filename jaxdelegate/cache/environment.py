"""What else a compiled program depends on: versions, the device, flags, the host."""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jaxlib import version as jaxlib_version

from jaxdelegate.cache.key import Part
from jaxdelegate.digests import file_digest
from jaxdelegate.jax_private import config_values
from jaxdelegate.kernels import library as kernels
from jaxdelegate.processor import host_cpu, max_cpu_isa, threads
from jaxdelegate.xla_options import compiler_options

_PLUGINS = {
    "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    "tpu": ("libtpu",),
}
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")

# JAX settings that change no program: logs, files, checks of the running process, and 64-bit types,
# under which programs are always traced. Whatever is not named here counts.
_IRRELEVANT = (
    "jax_array_garbage_collection_guard",
    "jax_captured_constants",
    "jax_check_proxy_envs",
    "jax_compilation_cache",
    "jax_debug_log_modules",
    "jax_debug_leaked",
    "jax_dump",
    "jax_enable_compilation_cache",
    "jax_enable_x64",
    "jax_explain",
    "jax_log",
    "jax_persistent_cache",
    "jax_platform",
    "jax_pprint",
    "jax_raise_persistent_cache_errors",
    "jax_thread_guard",
    "jax_traceback",
    "jax_tracer_error",
    "jax_transfer_guard",
)


def environment_parts(device: jax.Device) -> dict[str, Part]:
    """The parts of a key that no model and no option changes, but for those of our sources."""
    options = (compiler_options(device.platform, exact=exact) for exact in (True, False))
    values = {
        "versions": versions(device.platform).items(),
        "device": device_identity(device),
        "host_cpu": host_cpu(),
        "max_cpu_isa": [max_cpu_isa()],
        "jax_config": jax_config().items(),
        "xla_flags": ((name, os.environ.get(name)) for name in _VARIABLES),
        "threads": threads(),
        "kernels": [_digest_of(kernels.LIBRARY) if device.platform == "cpu" else None],
        "compiler_options": (tuple(o.items()) for o in options),
    }
    return {name: _part(tuple(value)) for name, value in values.items()}


@functools.lru_cache(maxsize=64)
def _part(value: tuple[Any, ...]) -> Part:
    return Part.of(value)


@functools.cache
def _digest_of(path: Path) -> str | None:
    """Of a file; None: it is not there."""
    return file_digest(path) if path.exists() else None


@functools.cache
def versions(platform_name: str) -> Mapping[str, str | None]:
    """Of Python, jax, jaxlib and the platform's plugins."""
    plugins = {name: _installed(name) for name in _PLUGINS.get(platform_name, ())}
    own = {
        "python": sys.implementation.cache_tag,
        "jax": jax.__version__,
        "jaxlib": jaxlib_version.__version__,
    }
    return {**own, **plugins}


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def device_identity(device: jax.Device) -> list[Any]:
    """Platform, kind, ordinal and runtime of a device."""
    return [
        device.platform,
        device.device_kind,
        device.id,
        device.process_index,
        str(getattr(device, "compute_capability", None)),
        device.client.platform_version,
    ]


def jax_config() -> Mapping[str, str]:
    """JAX's settings as this thread has them, but for those that change no program."""
    return {
        name: str(value)
        for name, value in config_values().items()
        if not name.startswith(_IRRELEVANT)
    }
