"""TensorFlow Lite's delegate system on JAX/XLA.

Public names are imported when they are first used: importing this package imports neither jax nor
ai_edge_litert.
"""

import importlib
from typing import TYPE_CHECKING, Any

import jaxdelegate.forks  # noqa: F401 (from now on forks are safe)
from jaxdelegate.errors import (
    CacheWarning,
    ConversionError,
    DelegationError,
    DeviceMemoryError,
    GenerationError,
    GradientError,
    InterpreterError,
    JaxDelegateError,
    LoweringError,
    ModelError,
    OptionError,
    StoppedError,
    TensorError,
    UnassignedError,
)
from jaxdelegate.version import __version__
from jaxdelegate.whole_imports import register_late, whole_imports

if TYPE_CHECKING:
    from jaxdelegate import litert, reference, testing
    from jaxdelegate.bundles.bundle import Bundle, open_bundle
    from jaxdelegate.comparison.precision_check import check_precision
    from jaxdelegate.conversion.files import from_jax, save_jax
    from jaxdelegate.custom import register_operator
    from jaxdelegate.delegate.jax_delegate import JaxDelegate
    from jaxdelegate.digests import fingerprint
    from jaxdelegate.function.files import load, save
    from jaxdelegate.function.model import CallableModel as Model
    from jaxdelegate.interpreter import Interpreter, OpResolverType
    from jaxdelegate.litert import load_delegate
    from jaxdelegate.options import DelegateOptions
    from jaxdelegate.providers import register_delegate_provider
    from jaxdelegate.report.delegation import DelegationReport
    from jaxdelegate.report.precision import PrecisionReport
    from jaxdelegate.sensitivity.ranking import quantization_sensitivity
    from jaxdelegate.sensitivity.records import SensitivityReport
    from jaxdelegate.simple_delegate import SimpleDelegate, SimpleDelegateKernel

__all__ = [
    "Bundle",
    "CacheWarning",
    "ConversionError",
    "DelegateOptions",
    "DelegationError",
    "DelegationReport",
    "DeviceMemoryError",
    "GenerationError",
    "GradientError",
    "Interpreter",
    "InterpreterError",
    "JaxDelegate",
    "JaxDelegateError",
    "LoweringError",
    "Model",
    "ModelError",
    "OpResolverType",
    "OptionError",
    "PrecisionReport",
    "SensitivityReport",
    "SimpleDelegate",
    "SimpleDelegateKernel",
    "StoppedError",
    "TensorError",
    "UnassignedError",
    "__version__",
    "check_precision",
    "fingerprint",
    "from_jax",
    "litert",
    "load",
    "load_delegate",
    "open_bundle",
    "quantization_sensitivity",
    "reference",
    "register_delegate_provider",
    "register_operator",
    "save",
    "save_jax",
    "testing",
]

# Public name -> the module that defines it, and its name there.
_LAZY = {
    "Bundle": ("jaxdelegate.bundles.bundle", "Bundle"),
    "DelegateOptions": ("jaxdelegate.options", "DelegateOptions"),
    "DelegationReport": ("jaxdelegate.report.delegation", "DelegationReport"),
    "Interpreter": ("jaxdelegate.interpreter", "Interpreter"),
    "JaxDelegate": ("jaxdelegate.delegate.jax_delegate", "JaxDelegate"),
    "Model": ("jaxdelegate.function.model", "CallableModel"),
    "OpResolverType": ("jaxdelegate.interpreter", "OpResolverType"),
    "SimpleDelegate": ("jaxdelegate.simple_delegate", "SimpleDelegate"),
    "SimpleDelegateKernel": ("jaxdelegate.simple_delegate", "SimpleDelegateKernel"),
    "fingerprint": ("jaxdelegate.digests", "fingerprint"),
    "PrecisionReport": ("jaxdelegate.report.precision", "PrecisionReport"),
    "check_precision": ("jaxdelegate.comparison.precision_check", "check_precision"),
    "SensitivityReport": ("jaxdelegate.sensitivity.records", "SensitivityReport"),
    "quantization_sensitivity": ("jaxdelegate.sensitivity.ranking", "quantization_sensitivity"),
    "load": ("jaxdelegate.function.files", "load"),
    "open_bundle": ("jaxdelegate.bundles.bundle", "open_bundle"),
    "register_delegate_provider": ("jaxdelegate.providers", "register_delegate_provider"),
    "register_operator": ("jaxdelegate.custom", "register_operator"),
    "save": ("jaxdelegate.function.files", "save"),
    "from_jax": ("jaxdelegate.conversion.files", "from_jax"),
    "save_jax": ("jaxdelegate.conversion.files", "save_jax"),
    "load_delegate": ("jaxdelegate.litert", "load_delegate"),
}
_SUBMODULES = ("litert", "reference", "testing")

register_late("jaxdelegate.litert", "native_pointer")  # stock interpreters ask delegates for it


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name not in _SUBMODULES:
        raise AttributeError(f"module 'jaxdelegate' has no attribute {name!r}")
    with whole_imports():
        if name in _SUBMODULES:
            return importlib.import_module(f"jaxdelegate.{name}")
        module, attribute = _LAZY[name]
        value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_SUBMODULES})
