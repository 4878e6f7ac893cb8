"""The compiled libraries, and `load_delegate` as stock interpreters have it."""

import ctypes
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.litert.plugin import load

_FOLDER = Path(__file__).parent


def library_path() -> str:
    """The library to give to a stock `load_delegate`.

    Raises:
        FileNotFoundError: it was not built, for want of a C compiler.
    """
    return str(_built(_FOLDER / "libjaxdelegate.so"))


def runtime_path() -> str:
    """The folder to give to `Environment.create`, for CompiledModel on `HardwareAccelerator.GPU`.

    Raises:
        FileNotFoundError: its library was not built, for want of a C compiler.
    """
    return str(_built(_FOLDER / "libLiteRtGpuAccelerator.so").parent)


def _built(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} was not built: that takes a C compiler when jaxdelegate is installed. "
            "Install one (on Debian: apt-get install gcc) and then jaxdelegate again, from its "
            "source: pip install --force-reinstall --no-deps FOLDER; or give "
            "jaxdelegate.JaxDelegate() itself to experimental_delegates"
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
        OSError: there is no such library, or it does not load.
        TypeError: the library is no string.
    """
    if not isinstance(library, str):
        raise TypeError(
            f"library: want a path or 'package.module:Class', got {type(library).__name__}; "
            "options come second, and JaxDelegate(...) needs no library"
        )
    module, colon, name = library.partition(":")
    if colon and name.isidentifier() and module.replace(".", "").isidentifier():
        return load(library, options)
    if "/" in library and not Path(library).exists():  # else a name for the loader to look for
        raise FileNotFoundError(f"{library}: no such library")
    _check_interface(library)
    stock = importlib.import_module("ai_edge_litert.interpreter")
    return stock.load_delegate(library, dict(options or {}))


def _check_interface(library: str) -> None:
    # The stock class prints a traceback from its finalizer where it gets no further than this.
    loaded = ctypes.PyDLL(library)
    for symbol in ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate"):
        if not hasattr(loaded, symbol):
            raise ValueError(f"{library}: not an external delegate: it does not export {symbol}")
