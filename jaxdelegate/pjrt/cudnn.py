"""Starts cuDNN on a GPU before a program runs that was not compiled in this process.

Compiling starts it. A stored program would start it with its first convolution, which XLA records
in a CUDA graph: cuDNN cannot allocate memory then, and the run fails with "No DNN support for
stream" (jaxlib 0.11 on an H200).
"""

import functools
from typing import Any

import numpy as np

from jaxdelegate.pjrt.client import as_programs

# A single operation is in no CUDA graph, and XLA need not choose its algorithm by timing.
_OPTIONS: dict[str, Any] = {"xla_gpu_autotune_level": 0}


def is_called(code: bytes | memoryview) -> bool:
    """Whether a serialized program of a GPU calls cuDNN: jaxlib 0.11 leaves its names readable."""
    return b"cudnn" in bytes(code)


@functools.cache
def start(device: Any) -> None:
    """Compile and run a small convolution on a GPU; only the first call for it does."""
    import jax  # noqa: PLC0415 (imported already, since the device is jax's)

    def convolve(x: Any, w: Any) -> Any:
        layouts = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layouts)

    with as_programs(device):
        zeros = [np.zeros(shape, np.float32) for shape in ((1, 8, 8, 8), (3, 3, 8, 8))]
        arrays = jax.device_put(zeros, device)
        compiled = jax.jit(convolve).lower(*arrays).compile(compiler_options=_OPTIONS)
        compiled(*arrays).block_until_ready()
