"""The stub library, and `load_delegate` as stock interpreters have it."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.litert.plugin import load

_LIBRARY = Path(__file__).parent / "libjaxdelegate.so"


def library_path() -> str:
    """The library to give to a stock `load_delegate` or to `--external_delegate_path`.

    Raises:
        FileNotFoundError: it was not built, for want of a C compiler.
    """
    if not _LIBRARY.exists():
        raise FileNotFoundError(
            f"{_LIBRARY} was not built: there was no C compiler when jaxdelegate was installed. "
            "Install one (gcc or clang) and then jaxdelegate again, with pip's --no-binary "
            "jaxdelegate; or give jaxdelegate.JaxDelegate() itself to experimental_delegates"
        )
    return str(_LIBRARY)


def load_delegate(library: str, options: Mapping[str, Any] | None = None) -> Any:
    """A delegate for `experimental_delegates`, from a library or from Python.

    Args:
        library: a shared library with TFLite's external delegate interface, loaded by the stock
            interpreter's function; or `package.module:Class`, a SimpleDelegate.
        options: for the delegate; values become strings.

    Raises:
        ValueError: the delegate refuses its options, or cannot be loaded.
        OSError: there is no such library.
    """
    module, colon, name = library.partition(":")
    if colon and name.isidentifier() and module.replace(".", "").isidentifier():
        return load(library, options)
    if "/" in library and not Path(library).exists():  # else a name for the loader to look for
        raise FileNotFoundError(f"{library}: no such library")
    stock = importlib.import_module("ai_edge_litert.interpreter")
    return stock.load_delegate(library, dict(options or {}))
