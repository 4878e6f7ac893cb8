"""The compiled libraries, and the counterpart of stock interpreters' `load_delegate`."""

import ctypes
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.litert.plugin import load
from jaxdelegate.not_built import why_missing

_FOLDER = Path(__file__).parent


def library_path() -> str:
    """The library for a stock `load_delegate`.

    Raises:
        FileNotFoundError: it was not built; the message says why.
    """
    return str(_built(_FOLDER / "libjaxdelegate.so"))


def runtime_path() -> str:
    """The folder for `Environment.create`, for CompiledModel on `HardwareAccelerator.GPU`.

    Raises:
        FileNotFoundError: its library was not built; the message says why.
    """
    return str(_built(_FOLDER / "libLiteRtGpuAccelerator.so").parent)


def _built(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(
            f"{why_missing(path)}; or pass jaxdelegate.JaxDelegate() itself to "
            "experimental_delegates"
        )
    return path


def load_delegate(library: str, options: Mapping[str, Any] | None = None) -> Any:
    """A delegate for `experimental_delegates`, from a library or from Python.

    Args:
        library: a shared library with TFLite's external delegate interface, loaded by the stock
            interpreter's function; or `package.module:Class`, a SimpleDelegate.
        options: for the delegate; values become strings.

    Raises:
        ValueError: the delegate refuses its options, or cannot be loaded.
        OSError: the library does not exist, or cannot be loaded.
        TypeError: the library is not a string.
    """
    if not isinstance(library, str):
        raise TypeError(
            f"library: expected a path or 'package.module:Class', got {type(library).__name__}; "
            "options are the second argument, and JaxDelegate(...) needs no library"
        )
    module, colon, name = library.partition(":")
    if colon and name.isidentifier() and module.replace(".", "").isidentifier():
        return load(library, options)
    if "/" in library and not Path(library).exists():  # other names are searched by the loader
        raise FileNotFoundError(f"{library}: no such library")
    _check_interface(library)
    stock = importlib.import_module("ai_edge_litert.interpreter")
    return stock.load_delegate(library, dict(options or {}))


def _check_interface(library: str) -> None:
    # Without these symbols the stock class prints a traceback from its finalizer.
    loaded = ctypes.PyDLL(library)
    for symbol in ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate"):
        if not hasattr(loaded, symbol):
            raise ValueError(f"{library}: not an external delegate: it does not export {symbol}")
