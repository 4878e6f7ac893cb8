"""Which platform JAX would choose, where that can be said without asking it."""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

# Where a driver shows a device that jax would look for, or whose absence it would remark on.
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0")
_GROUP = "[jax_plugins]"  # of entry points


def is_cpu(platform: str | None) -> bool:
    """Whether an option `platform` means the CPU in this process, as far as jax need not be asked.

    Args:
        platform: of the delegate's options; None: JAX's default.
    """
    return platform == "cpu" or (
        platform is None
        and defaults_to_cpu(os.environ)
        and not any(map(os.path.exists, _DEVICES))
        and not any(map(has_plugin, sys.path))
    )


def defaults_to_cpu(environment: Mapping[str, str]) -> bool:
    """Whether the environment leaves the choice to jax, or names the CPU."""
    asked = (environment.get(name, "") for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"))
    return all(text in ("", "cpu") for text in asked)


def has_plugin(folder: str) -> bool:
    """Whether a folder of modules has a plugin for jax: of its namespace, or by an entry point."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return False
    if "jax_plugins" in names or "libtpu" in names:
        return True
    installed = (f"{folder}/{name}/entry_points.txt" for name in names if _is_installed(name))
    return any(_GROUP in text for text in _texts(installed))


def _is_installed(name: str) -> bool:
    return name.endswith((".dist-info", ".egg-info"))


def _texts(files: Iterable[str]) -> Iterable[str]:
    for file in files:
        try:
            yield Path(file).read_text("utf-8", "replace")
        except OSError:
            continue
