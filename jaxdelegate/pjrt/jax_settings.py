"""JAX's settings for the keys of stored programs, whether jax is imported or not.

Without importing jax its settings cannot be read. They would be those from the environment, like
those of a process in which this package imports jax first and no code changes them.
"""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from jaxdelegate.whole_imports import whole_imports

# Prefixes of settings that do not affect programs: logs, files, checks of the running process, and
# 64-bit types, under which programs are always traced. All other settings count.
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

Settings = Mapping[str, str]

_initial: list[Settings] = []  # jax's settings after its import, if it was imported here
_importing = threading.RLock()  # other threads wait until the initial settings are stored


def is_jax_imported() -> bool:
    return "jax" in sys.modules


def import_jax() -> Any:
    """Import jax and return the module; if this is the first import, remember its settings."""
    with _importing:
        if is_jax_imported():
            import jax  # noqa: PLC0415 (another thread may still be importing it)
        else:
            with whole_imports():
                import jax  # noqa: PLC0415 (slow: only if it is needed)
            _initial.append(current())
    return jax


def of_environment() -> Settings:
    """The settings in the environment, by the names of variables."""
    return _relevant({k: v for k, v in os.environ.items() if k.lower().startswith("jax_")})


def current() -> Settings:
    """JAX's settings in this thread; imports jax."""
    config = import_jax().config
    return _relevant({name: getattr(config, name, value) for name, value in config.values.items()})


def are_of_environment() -> bool:
    """Whether the settings are still those that jax read from the environment."""
    return not is_jax_imported() or [current()] == _initial


def _relevant(settings: Mapping[str, Any]) -> Settings:
    return {
        name: str(value)
        for name, value in sorted(settings.items())
        if not name.lower().startswith(_IRRELEVANT)
    }
