"""The compiled kernels: found, checked, and made known to XLA once in a process."""

import ctypes
import functools
import itertools
import os
import threading
from pathlib import Path

import numpy as np

from jaxdelegate.kernels.processor import MAX_CPU_ISA, max_cpu_isa
from jaxdelegate.pjrt import client

MACHINE = os.uname().machine
LIBRARY = Path(__file__).parent / "libjaxdelegate_kernels.so"

# What compiled programs call, ours in JAX's own cache as well: the number goes up where operands or
# attributes come to mean something else.
PRODUCT, DEPTHWISE = "jaxdelegate.product.3", "jaxdelegate.depthwise.3"
WINOGRAD, ATTENTION = "jaxdelegate.winograd.3", "jaxdelegate.attention.1"
MEAN = "jaxdelegate.mean.1"
PRODUCT_BFLOAT16 = "jaxdelegate.product_bfloat16.2"
PRODUCT_INT8, DEPTHWISE_INT8 = "jaxdelegate.product_int8.2", "jaxdelegate.depthwise_int8.2"
PRODUCT_DYNAMIC_RANGE, DEPTHWISE_DYNAMIC_RANGE = (
    "jaxdelegate.product_dynamic_range.1",
    "jaxdelegate.depthwise_dynamic_range.1",
)
_HANDLERS = {
    PRODUCT: "jaxdelegate_product",
    DEPTHWISE: "jaxdelegate_depthwise",
    WINOGRAD: "jaxdelegate_winograd",
    ATTENTION: "jaxdelegate_attention",
    MEAN: "jaxdelegate_mean",
    PRODUCT_BFLOAT16: "jaxdelegate_product_bfloat16",
    PRODUCT_INT8: "jaxdelegate_product_int8",
    DEPTHWISE_INT8: "jaxdelegate_depthwise_int8",
    PRODUCT_DYNAMIC_RANGE: "jaxdelegate_product_dynamic_range",
    DEPTHWISE_DYNAMIC_RANGE: "jaxdelegate_depthwise_dynamic_range",
}
CALL_BATCH = "jaxdelegate.call_batch.1"
# What a call batch calls, by number: `why_not` compares the list with the library's.
BATCHED = tuple(_HANDLERS)

# Columns of a panel of weights, and the least channels of what is computed by channel (kernels.h).
PANEL = LEAST_CHANNELS = 16

_LOCK = threading.Lock()


_ADVICE = (
    "Install one (on Debian: apt-get install g++) and then jaxdelegate again, from its source: "
    "pip install --force-reinstall --no-deps FOLDER; in a clone: make clean demo"
)


def why_not() -> str | None:
    """Why programs of this process cannot call the kernels; None if they can, from now on.

    Raises:
        OptionError: JAXDELEGATE_MAX_CPU_ISA names no instruction set.
    """
    with _LOCK:
        return _why_not(LIBRARY)


def in_use() -> str:
    """The name of the instruction set that the kernels use, where `why_not` answers None."""
    return instruction_set(opened(LIBRARY)) or "none"


@functools.cache
def _why_not(path: Path) -> str | None:
    if MACHINE not in ("x86_64", "AMD64"):
        return f"{path.name} is for x86-64 processors, and this is {MACHINE}"
    if not path.exists():
        return (
            f"{path.name} was not built: that takes a C++ compiler when jaxdelegate is installed. "
            f"{_ADVICE}"
        )
    try:
        library = opened(path)
        if kernel_names(library) != list(_HANDLERS.values()):
            return f"{path.name} was built of other sources, with kernels in another order"
        if (limit := max_cpu_isa()) is not None:
            library.jaxdelegate_limit_instruction_set(limit.encode())
        if instruction_set(library) is None:
            is_hidden = limit == "none"
            return f"{MAX_CPU_ISA} is none" if is_hidden else "this processor lacks AVX2 or FMA"
        for name, function in (*_HANDLERS.items(), (CALL_BATCH, "jaxdelegate_call_batch")):
            client.register(name, library[function])
    except (OSError, AttributeError, RuntimeError, ValueError) as error:
        return f"{path.name} cannot be used: {error}"
    return None


# Of element types, as XLA_FFI_DataType numbers them (xla/ffi/api/c_api.h).
_FFI_TYPES = {
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "float32": 11,
    "float64": 12,
    "bfloat16": 16,
}


def ffi_type(dtype: np.dtype) -> int:
    """The number by which XLA's foreign function interface knows an element type."""
    return _FFI_TYPES[dtype.name]


def multiplies_bfloat16() -> bool:
    """Whether PRODUCT_BFLOAT16 runs on this processor, if any of the kernels does."""
    return bool(opened(LIBRARY).jaxdelegate_multiplies_bfloat16())


@functools.cache
def opened(path: Path) -> ctypes.CDLL:
    """The library at `path`, with its functions' types.

    Raises:
        OSError: it is not there, or not for this platform.
    """
    library = ctypes.CDLL(str(path))
    library.jaxdelegate_instruction_set.restype = ctypes.c_char_p
    library.jaxdelegate_limit_instruction_set.argtypes = [ctypes.c_char_p]
    library.jaxdelegate_kernel_name.restype = ctypes.c_char_p
    library.jaxdelegate_kernel_name.argtypes = [ctypes.c_long]
    return library


def kernel_names(library: ctypes.CDLL) -> list[str]:
    """Its kernels, in the order of the numbers by which call batches call them."""
    names = map(library.jaxdelegate_kernel_name, itertools.count())
    return [name.decode() for name in itertools.takewhile(bool, names)]


def instruction_set(library: ctypes.CDLL) -> str | None:
    """The instruction set that its kernels use; None: none of those that they know."""
    name: bytes | None = library.jaxdelegate_instruction_set()
    return None if name is None else name.decode()
