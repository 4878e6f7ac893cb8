"""Finds and checks the compiled kernels, and registers them with XLA once per process."""

import ctypes
import functools
import itertools
import os
import threading
from pathlib import Path

import numpy as np

from jaxdelegate.kernels.processor import MAX_CPU_ISA, max_cpu_isa
from jaxdelegate.not_built import why_missing
from jaxdelegate.pjrt import client

MACHINE = os.uname().machine
LIBRARY = Path(__file__).parent / "libjaxdelegate_kernels.so"

# The names that compiled programs call, also those in JAX's own cache: the number at the end
# increases whenever the meaning of operands or attributes changes.
PRODUCT, DEPTHWISE = "jaxdelegate.product.3", "jaxdelegate.depthwise.3"
WINOGRAD, ATTENTION = "jaxdelegate.winograd.3", "jaxdelegate.attention.2"
MEAN = "jaxdelegate.mean.1"
PRODUCT_BFLOAT16 = "jaxdelegate.product_bfloat16.2"
PRODUCT_INT8, DEPTHWISE_INT8 = "jaxdelegate.product_int8.2", "jaxdelegate.depthwise_int8.2"
PRODUCT_INT16, DEPTHWISE_INT16 = "jaxdelegate.product_int16.1", "jaxdelegate.depthwise_int16.1"
PRODUCT_DYNAMIC_RANGE, DEPTHWISE_DYNAMIC_RANGE = (
    "jaxdelegate.product_dynamic_range.1",
    "jaxdelegate.depthwise_dynamic_range.1",
)
FULLY_CONNECTED = "jaxdelegate.fully_connected.2"
BATCH_MATMUL, SOFTMAX = "jaxdelegate.batch_matmul.1", "jaxdelegate.softmax.1"
LAYER_NORM = "jaxdelegate.layer_norm.1"
TRANSPOSED, TRANSPOSED_INT8 = "jaxdelegate.transposed.1", "jaxdelegate.transposed_int8.1"
PRODUCT_ORDERED = "jaxdelegate.product_ordered.1"
# Call batches refer to kernels by their index here; `why_not` checks that the library agrees.
BATCHED = (
    *(PRODUCT, DEPTHWISE, WINOGRAD, ATTENTION, MEAN, PRODUCT_BFLOAT16),
    *(PRODUCT_INT8, DEPTHWISE_INT8, PRODUCT_DYNAMIC_RANGE, DEPTHWISE_DYNAMIC_RANGE),
    *(PRODUCT_INT16, DEPTHWISE_INT16, FULLY_CONNECTED, BATCH_MATMUL, LAYER_NORM, SOFTMAX),
    *(TRANSPOSED, TRANSPOSED_INT8, PRODUCT_ORDERED),
)
CALL_BATCH = "jaxdelegate.call_batch.1"

# Columns of a panel of weights; the fewest channels of kernels that work by channel (kernels.h).
PANEL = LEAST_CHANNELS = 16

_LOCK = threading.Lock()


def why_not() -> str | None:
    """Register the kernels at the first call; returns why they cannot be used, or None."""
    with _LOCK:
        return _why_not(LIBRARY)


def in_use() -> str:
    """The name of the instruction set that the kernels use, if `why_not` returns None."""
    return instruction_set(opened(LIBRARY)) or "none"


@functools.cache
def _why_not(path: Path) -> str | None:
    if MACHINE not in ("x86_64", "AMD64"):
        return f"{path.name} is for x86-64 processors, and this is {MACHINE}"
    if not path.exists():
        return why_missing(path)
    try:
        library = opened(path)
        if kernel_names(library) != list(map(_function, BATCHED)):
            return f"{path.name} was built from other sources, with kernels in another order"
        if (limit := max_cpu_isa()) is not None:
            library.jaxdelegate_limit_instruction_set(limit.encode())
        if instruction_set(library) is None:
            disabled = f"native kernels are disabled by {MAX_CPU_ISA}=none"
            return disabled if limit == "none" else "this processor lacks AVX2 or FMA"
        for name in (*BATCHED, CALL_BATCH):
            client.register(name, library[_function(name)])
    except (OSError, AttributeError, RuntimeError, ValueError) as error:
        return f"{path.name} cannot be used: {error}"
    return None


def addresses() -> dict[str, int]:
    """The addresses of the kernels by the names that programs call; empty: they cannot be used."""
    if why_not() is not None:
        return {}
    library = opened(LIBRARY)
    found = ((name, library[_function(name)]) for name in (*BATCHED, CALL_BATCH))
    return {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in found}


def _function(name: str) -> str:
    """The function of the library that is registered under a name."""
    return name.rpartition(".")[0].replace(".", "_")


# Values of XLA_FFI_DataType by dtype (xla/ffi/api/c_api.h).
_FFI_TYPES = {
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "bfloat16": 16,
}


def ffi_type(dtype: np.dtype) -> int:
    """The number of an element type in XLA's foreign function interface."""
    return _FFI_TYPES[dtype.name]


def multiplies_bfloat16() -> bool:
    """Whether this processor supports PRODUCT_BFLOAT16, provided that it supports the kernels."""
    return bool(opened(LIBRARY).jaxdelegate_multiplies_bfloat16())


@functools.cache
def bfloat16_gain() -> float:
    """How many times the speed of float32 products bfloat16 has here; 0 without such kernels.

    Measured at the first call, in less than a millisecond.
    """
    if why_not() is not None:
        return 0.0
    measure = opened(LIBRARY).jaxdelegate_bfloat16_gain
    measure.restype = ctypes.c_double
    gain: float = measure()
    return gain


def adds_int8_products() -> bool:
    """Whether the kernels multiply int8 and add in one instruction, provided `why_not` is None."""
    return in_use() in ("avxvnni", "avx512vnni", "avx512bf16")


@functools.cache
def opened(path: Path) -> ctypes.CDLL:
    """The library with the types of its functions; an OSError if it is not for this platform."""
    library = ctypes.CDLL(str(path))
    library.jaxdelegate_instruction_set.restype = ctypes.c_char_p
    library.jaxdelegate_limit_instruction_set.argtypes = [ctypes.c_char_p]
    library.jaxdelegate_kernel_name.restype = ctypes.c_char_p
    library.jaxdelegate_kernel_name.argtypes = [ctypes.c_long]
    return library


def kernel_names(library: ctypes.CDLL) -> list[str]:
    """The library's kernels, in the order of their indices in call batches."""
    names = map(library.jaxdelegate_kernel_name, itertools.count())
    return [name.decode() for name in itertools.takewhile(bool, names)]


def instruction_set(library: ctypes.CDLL) -> str | None:
    """The library's; None: it supports none of this processor's."""
    name: bytes | None = library.jaxdelegate_instruction_set()
    return None if name is None else name.decode()
