"""Optional dependencies, which the extras of the package install."""

import importlib
import threading
from typing import Any

from jaxdelegate.errors import OptionError

_OURS = "jaxdelegate"
# Python fails if one thread imports a package, and another one a module that the package imports.
_IMPORTING = threading.RLock()


def install(extra: str) -> str:
    """The command that installs what an extra of this package names: `pip install 'ray[data]'`.

    It names the packages, not `jaxdelegate[extra]`: on PyPI that is not this package.
    """
    packages = _packages(extra)
    return f"pip install {' '.join(map(repr, packages or [f'.[{extra}]']))}"


def _packages(extra: str) -> list[str]:
    """The requirements of an extra; empty if this package runs without being installed."""
    from importlib import metadata  # noqa: PLC0415 (rarely used)

    try:
        required = metadata.requires(_OURS) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in required:
        package, _, marker = line.partition(";")
        if marker.replace("'", '"').strip() != f'extra == "{extra}"':
            continue
        ours, _, inner = package.strip().partition("[")
        if ours == _OURS:
            for one in inner.rstrip("]").split(","):
                found += _packages(one)
        else:
            found.append(package.strip())
    return sorted(set(found))


def needs(what: str, missing: ModuleNotFoundError, extra: str) -> ImportError:
    """The error of a module that needs a package of an extra: `serving needs uvicorn: ...`."""
    return ImportError(f"{what} needs {missing.name}: {install(extra)}", name=missing.name)


def is_failure(error: BaseException) -> bool:
    """Whether a package failed, unlike Ctrl-C: a panic of Rust is not an Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def optional_module(name: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        name: of the module.
        extra: of jaxdelegate that installs it.

    Raises:
        OptionError: it cannot be imported.
    """
    try:
        with _IMPORTING:
            return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"{name.partition('.')[0]} is not installed ({error}): {install(extra)}"
        ) from error
