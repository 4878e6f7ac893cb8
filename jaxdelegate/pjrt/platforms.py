"""Predicts JAX's default platform without importing jax, where that is certain."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# Device files of accelerators that jax would use, or would warn about without a plugin.
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0")
_GROUP = "[jax_plugins]"  # of entry points


def is_cpu(platform: str | None) -> bool:
    """Whether an option `platform` (None: JAX's default) certainly means the CPU here."""
    if platform is not None:
        return platform == "cpu"
    return means_cpu(os.environ, sys.path, any(map(os.path.exists, _DEVICES)))


def means_cpu(environment: Mapping[str, str], path: Sequence[str], has_device: bool) -> bool:
    """Whether JAX's default platform is certainly the CPU."""
    chosen = environment.get("JAX_PLATFORMS") or environment.get("JAX_PLATFORM_NAME")
    if chosen:
        return chosen == "cpu"
    return not has_device and not any(map(has_plugin, path))


def has_plugin(folder: str) -> bool:
    """Whether a folder of modules has a plugin for jax: in its namespace, or by an entry point."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return False
    if "jax_plugins" in names or "libtpu" in names:
        return True
    installed = (name for name in names if name.endswith((".dist-info", ".egg-info")))
    files = (f"{folder}/{name}/entry_points.txt" for name in installed)
    return any(_GROUP in text for text in _texts(files))


def _texts(files: Iterable[str]) -> Iterable[str]:
    for file in files:
        try:
            yield Path(file).read_text("utf-8", "replace")
        except OSError:
            continue
