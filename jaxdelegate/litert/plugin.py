"""Creates delegates from a name and string options, for `load_delegate` and the C libraries."""

import ctypes
import importlib
from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.litert.native import native_pointer
from jaxdelegate.simple_delegate import SimpleDelegate

DELEGATE_OPTION = "delegate"  # names the class; all other options are passed to it
DEFAULT = "jaxdelegate:JaxDelegate"


def load(name: str, options: Mapping[str, Any] | None = None) -> SimpleDelegate:
    """An instance of the importable class `package.module:Class`.

    The options are for its `from_strings`; values become strings, as in the stock `load_delegate`.
    An OptionError if the class does not exist, or does not accept these options.
    """
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"delegate: expected package.module:Class, got {name!r}: {error}"
        raise OptionError(message) from error
    if not (isinstance(found, type) and issubclass(found, SimpleDelegate)):
        raise OptionError(f"delegate: {name!r} is not a SimpleDelegate class")
    return found.from_strings({key: str(value) for key, value in (options or {}).items()})


_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_STRINGS = ctypes.POINTER(ctypes.c_char_p)
_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, _STRINGS, _STRINGS, ctypes.c_int, _REPORT)
_DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Hooks(ctypes.Structure):
    """`hooks` of plugin.h."""

    _fields_ = (("create", _CREATE), ("destroy", _DESTROY))


# Delegates that only C code refers to, by address.
_LOADED: dict[int, SimpleDelegate] = {}


def _create(keys: Any, values: Any, count: int, report: Any) -> int | None:
    try:
        options = {keys[i].decode(): values[i].decode() for i in range(count)}
        delegate = load(options.pop(DELEGATE_OPTION, DEFAULT), options)
        address = native_pointer(delegate)
    except BaseException as error:
        if report:
            report(f"{error}".encode().replace(b"\0", b"?"))
        return None
    _LOADED[address] = delegate
    return address


def _destroy(address: int, loaded: dict[int, SimpleDelegate] = _LOADED) -> None:
    loaded.pop(address, None)


def install(address: int) -> None:
    """Fill in the C library's table of functions."""
    hooks = _Hooks.from_address(address)
    hooks.create, hooks.destroy = _CALLBACKS
    # C may call `destroy` during Python's shutdown, when this module is already empty.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_CALLBACKS))


_CALLBACKS = _CREATE(_create), _DESTROY(_destroy)
