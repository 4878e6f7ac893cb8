"""Measures the peak arithmetic throughput and memory bandwidth of a device."""

import dataclasses
import functools
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdelegate.xla.options import compiler_options, platform_of

_SIZES = tuple(n << 20 for n in (1, 4, 16, 64, 256))  # bytes of an array: caches, then memory
_SIDES = {"cpu": (512, 1024, 2048)}  # the matrices' sides
_DEFAULT_SIDES = (4096, 8192)
_ROUNDS = 5
_LOOPS = 8  # over the largest array, so that the copy before the loop hardly counts


@dataclasses.dataclass(frozen=True)
class DevicePeaks:
    flops: float  # per second, in a matrix product
    # Bytes read and written per second, by the size of the array in bytes.
    bandwidths: Mapping[int, float]
    dtype: str = "float32"  # the type of the factors

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, as `examples/plot_results --kind=roofline` reads it."""
        largest = max(self.bandwidths)
        return {
            "flops_per_second": self.flops,
            "bytes_per_second": self.bandwidths[largest],
            "flops_source": f"measured: product of matrices, {self.dtype}",
            "bytes_source": "measured: addition in place",
            "cached": {str(size): b for size, b in self.bandwidths.items() if size < largest},
        }


def measured_peaks(device: Any, dtype: np.dtype) -> DevicePeaks:
    """Measure with matrix products (float32 sums) and additions in place; takes some seconds."""
    sides = _SIDES.get(device.platform, _DEFAULT_SIDES)
    return DevicePeaks(
        max(_product_flops(device, dtype, n) for n in sides),
        {size: _bandwidth(device, size) for size in _SIZES},
        np.dtype(dtype).name,
    )


def _product_flops(device: Any, dtype: np.dtype, n: int) -> float:
    jax = importlib.import_module("jax")
    factor = jax.device_put(np.ones((n, n), dtype), device)
    dot = functools.partial(jax.numpy.dot, precision="highest", preferred_element_type=np.float32)
    options = compiler_options(platform_of(device.platform), exact=dtype == np.float32)
    aot = importlib.import_module("jaxdelegate.xla.aot")
    compiled = aot.compiled_with(options, jax.jit(dot).lower(factor, factor))
    return 2 * n**3 / _best(lambda: compiled(factor, factor).block_until_ready())


def _bandwidth(device: Any, size: int) -> float:
    """The bandwidth of additions in a loop inside the program, without dispatch."""
    jax = importlib.import_module("jax")
    array = jax.device_put(np.zeros(size // 4, np.float32), device)
    times = _LOOPS * _SIZES[-1] // size
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, times, lambda _, y: y + 1, x))
    return 2 * times * size / _best(lambda: loop(array).block_until_ready())


def _best(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
