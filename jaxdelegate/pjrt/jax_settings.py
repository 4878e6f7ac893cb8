"""JAX's settings as keys of stored programs know them, whether jax has been imported or not.

A process that does not import jax cannot ask it. Its settings would be those that jax takes from
the environment, and so are those of a process in which this package imports jax first and nobody
changes them.
"""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from jaxdelegate.whole_imports import whole_imports

# Settings that change no program: logs, files, checks of the running process, and 64-bit types,
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

Settings = Mapping[str, str]

_at_import: list[Settings] = []  # what jax began with, if it was imported here
_importing = threading.RLock()  # who comes second must find what the first has noted


def is_jax_imported() -> bool:
    """Whether this process has jax already."""
    return "jax" in sys.modules


def import_jax() -> Any:
    """The module jax; if nobody has imported it before, its settings are remembered."""
    with _importing:
        if is_jax_imported():
            import jax  # noqa: PLC0415 (another thread may still be at it)
        else:
            with whole_imports():
                import jax  # noqa: PLC0415 (this is what everything that can do without it waits for)
            _at_import.append(current())
    return jax


def of_environment() -> Settings:
    """What the environment says of them, by the names of variables."""
    return _relevant({k: v for k, v in os.environ.items() if k.lower().startswith("jax_")})


def current() -> Settings:
    """JAX's settings as this thread has them; imports jax."""
    config = import_jax().config
    return _relevant({name: getattr(config, name, value) for name, value in config.values.items()})


def are_of_environment() -> bool:
    """Whether nobody can have changed them since jax took them from the environment."""
    return not is_jax_imported() or [current()] == _at_import


def _relevant(settings: Mapping[str, Any]) -> Settings:
    return {
        name: str(value)
        for name, value in sorted(settings.items())
        if not name.lower().startswith(_IRRELEVANT)
    }
