"""The compilers of a model's functions: for programs on devices, and for functions to trace."""

import dataclasses
import functools

import jax

from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.options import DelegateOptions

_MAX_DEVICES = 64


class Compilers:
    def __init__(self, options: DelegateOptions) -> None:
        self._options = options
        self._by_device: LruCache[jax.Device, Compiler] = LruCache(_MAX_DEVICES)

    @functools.cached_property
    def traced(self) -> Compiler:
        """The compiler for functions that JAX transforms, without native kernels."""
        return Compiler(dataclasses.replace(self._options, native_kernels=False))

    def on(self, device: jax.Device) -> Compiler:
        def compiler() -> Compiler:
            index = jax.devices(device.platform).index(device)
            own = {"platform": device.platform, "device_index": index}
            return Compiler(dataclasses.replace(self._options, **own))

        return self._by_device.get(device, compiler)
