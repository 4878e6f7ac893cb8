"""The parts of a key for versions, the device, flags, the host and JAX's settings.

Nothing here imports jax. A process without jax has the settings that jax would read from the
environment. They are stored in the directory under a digest of the environment and jax's version,
by a process that imported jax and did not change them.
"""

import contextlib
import functools
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxlib import version as jaxlib_version

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Part
from jaxdelegate.digests import file_digest
from jaxdelegate.kernels import library as kernels
from jaxdelegate.kernels.processor import host_cpu, max_cpu_isa, threads
from jaxdelegate.pjrt import jax_settings
from jaxdelegate.xla.options import compiler_options, platform_of

SETTINGS = ".settings"  # the suffix of files
_DIGEST = re.compile(r"[0-9a-f]{32}")
_PLUGINS = {
    "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "jax-cuda13-pjrt"),
    "tpu": ("libtpu",),
}
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")


def environment_parts(device: Any) -> dict[str, Part]:
    """The parts that depend on neither the model nor options; without our sources."""
    platform = platform_of(device.platform)
    options = (
        compiler_options(platform, exact=exact, in_place=in_place, is_direct=is_direct)
        for exact, in_place, is_direct in itertools.product((True, False), repeat=3)
    )
    values = {
        "versions": versions(platform).items(),
        "device": device_identity(device),
        "host_cpu": host_cpu(),
        "max_cpu_isa": [max_cpu_isa()],
        "xla_flags": ((name, os.environ.get(name)) for name in _VARIABLES),
        "threads": threads(),
        "kernels": [_digest_of(kernels.LIBRARY) if platform == "cpu" else None],
        "compiler_options": (tuple(o.items()) for o in options),
    }
    return {name: _part(tuple(value)) for name, value in values.items()}


@functools.lru_cache(maxsize=64)
def _part(value: tuple[Any, ...]) -> Part:
    return Part.of(value)


@functools.cache
def _digest_of(path: Path) -> str | None:
    return file_digest(path) if path.exists() else None


@functools.cache
def versions(platform_name: str) -> Mapping[str, str | None]:
    """The versions of Python, jax, jaxlib and the platform's plugins."""
    plugins = {name: _installed(name) for name in _PLUGINS.get(platform_name, ())}
    own = {
        "python": sys.implementation.cache_tag,
        "jax": jax_version(),
        "jaxlib": jaxlib_version.__version__,
    }
    return {**own, **plugins}


_VERSION_LINE = re.compile(r"^_version = ['\"](.+)['\"]$", re.MULTILINE)


def jax_version() -> str | None:
    """The version of jax, read from its version.py without importing jax; None: not found."""
    spec = importlib.util.find_spec("jax")
    if spec is None or spec.origin is None:
        return None
    found = _VERSION_LINE.search(Path(spec.origin).with_name("version.py").read_text("utf-8"))
    return None if found is None else found[1]


def _installed(distribution: str) -> str | None:
    from importlib import metadata  # noqa: PLC0415 (takes 50 ms; not needed for CPUs)

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def device_identity(device: Any) -> list[Any]:
    return [
        device.platform,
        device.device_kind,
        device.id,
        device.process_index,
        str(getattr(device, "compute_capability", None)),
        device.client.platform_version,
    ]


def settings_part(directory: PrivateDirectory) -> Part | None:
    """The part of a key; None: jax is not imported, and its settings are not stored."""
    name = Part.of([versions("cpu"), jax_settings.of_environment()]).digest + SETTINGS
    if not jax_settings.is_jax_imported():
        return _stored_settings(directory, name)
    part = Part.of(jax_settings.current())
    if jax_settings.are_of_environment() and _stored_settings(directory, name) != part:
        with contextlib.suppress(OSError):  # storing the program will warn of it
            directory.write(name, [f"{part.digest} {part.text}".encode()])
    return part


def _stored_settings(directory: PrivateDirectory, name: str) -> Part | None:
    try:
        digest, _, text = directory.read(name).decode().partition(" ")
    except (OSError, UnicodeDecodeError):
        return None
    return Part(digest, text) if _DIGEST.fullmatch(digest) else None
