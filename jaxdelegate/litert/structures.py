"""The C API of TFLite's interpreters as ctypes structures, and the supported interpreters.

Sources: core/c/common.h, core/c/c_api_types.h. New versions only append fields.
"""

import ctypes
import functools
import importlib.metadata
import sys
from collections.abc import Iterable

from jaxdelegate.errors import InterpreterError

OK, ERROR, DELEGATE_ERROR = 0, 1, 2  # TfLiteStatus
INIT_FAILED = ctypes.c_void_p(-1).value  # TfLiteKernelInitFailed()
ALLOW_DYNAMIC_TENSORS = 1  # TfLiteDelegateFlags
NULL_HANDLE = -1  # kTfLiteNullBufferHandle
AFFINE, BLOCKWISE, MULTI_AXIS = 1, 2, 3  # TfLiteQuantizationType

# TfLiteAllocationType
MMAP_RO, DYNAMIC, PERSISTENT_RO = 1, 4, 5
ON_HEAP = frozenset((DYNAMIC, PERSISTENT_RO))

_STATUS = ctypes.c_int
_POINTER = ctypes.c_void_p
_INTS = ctypes.POINTER(ctypes.c_int)


class Array(ctypes.Structure):
    """TfLiteIntArray and TfLiteFloatArray: the elements follow the size."""

    _fields_ = (("size", ctypes.c_int),)


class QuantizationParams(ctypes.Structure):
    """TfLiteQuantizationParams: the legacy pair for a whole tensor."""

    _fields_ = (("scale", ctypes.c_float), ("zero_point", ctypes.c_int32))


class Quantization(ctypes.Structure):
    """TfLiteQuantization: `type` determines what `params` points to."""

    _fields_ = (("type", ctypes.c_int), ("params", _POINTER))


class AffineQuantization(ctypes.Structure):
    _fields_ = (
        ("scale", _POINTER),
        ("zero_point", _POINTER),
        ("quantized_dimension", ctypes.c_int32),
    )


class BlockwiseQuantization(ctypes.Structure):
    """TfLiteBlockwiseQuantization; scales and zero points are tensors."""

    _fields_ = (
        ("scale", ctypes.c_int32),
        ("zero_point", ctypes.c_int32),
        ("blocksize", ctypes.c_int32),
        ("quantized_dimension", ctypes.c_int32),
    )


class MultiAxisQuantization(ctypes.Structure):
    """TfLiteMultiAxisQuantization; scales and zero points are tensors."""

    _fields_ = (
        ("scales", ctypes.c_int32),
        ("zero_points", ctypes.c_int32),
        ("blocksize", ctypes.c_int32),
        ("quantized_dimensions", _POINTER),
    )


class DimensionMetadata(ctypes.Structure):
    """TfLiteDimensionMetadata; format 1: compressed rows."""

    _fields_ = (
        ("format", ctypes.c_int),
        ("dense_size", ctypes.c_int),
        ("array_segments", _POINTER),
        ("array_indices", _POINTER),
    )


class Sparsity(ctypes.Structure):
    _fields_ = (
        ("traversal_order", _POINTER),
        ("block_map", _POINTER),
        ("dim_metadata", _POINTER),
        ("dim_metadata_size", ctypes.c_int),
    )


class Tensor(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("data", _POINTER),
        ("dims", _POINTER),
        ("params", QuantizationParams),
        ("allocation_type", ctypes.c_int),
        ("bytes", ctypes.c_size_t),
        ("allocation", _POINTER),
        ("name", ctypes.c_char_p),
        ("delegate", _POINTER),
        ("buffer_handle", ctypes.c_int),
        ("data_is_stale", ctypes.c_bool),
        ("is_variable", ctypes.c_bool),
        ("quantization", Quantization),
        ("sparsity", _POINTER),
        ("dims_signature", _POINTER),
    )


class Node(ctypes.Structure):
    _fields_ = (
        ("inputs", _POINTER),
        ("outputs", _POINTER),
        ("intermediates", _POINTER),
        ("temporaries", _POINTER),
        ("user_data", _POINTER),
        ("builtin_data", _POINTER),
        ("custom_initial_data", _POINTER),
        ("custom_initial_data_size", ctypes.c_int),
        ("delegate", _POINTER),
        ("might_have_side_effect", ctypes.c_bool),
    )


INIT = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER, ctypes.c_size_t)
FREE = ctypes.CFUNCTYPE(None, _POINTER, _POINTER)
RUN = ctypes.CFUNCTYPE(_STATUS, _POINTER, _POINTER)  # prepare and invoke: (context, node)


class Registration(ctypes.Structure):
    _fields_ = (
        ("init", INIT),
        ("free", FREE),
        ("prepare", RUN),
        ("invoke", RUN),
        ("profiling_string", _POINTER),
        ("builtin_code", ctypes.c_int32),
        ("custom_name", ctypes.c_char_p),
        ("version", ctypes.c_int),
        ("registration_external", _POINTER),
        ("async_kernel", _POINTER),
        ("inplace_operator", ctypes.c_uint64),
    )


class DelegateParams(ctypes.Structure):
    """TfLiteDelegateParams: what one delegate kernel replaces."""

    _fields_ = (
        ("delegate", _POINTER),
        ("nodes_to_replace", _POINTER),
        ("input_tensors", _POINTER),
        ("output_tensors", _POINTER),
    )


class Context(ctypes.Structure):
    """TfLiteContext. Functions of the graph exist only while a delegate prepares."""

    _fields_ = (
        ("tensors_size", ctypes.c_size_t),
        ("GetExecutionPlan", ctypes.CFUNCTYPE(_STATUS, _POINTER, ctypes.POINTER(_POINTER))),
        ("tensors", _POINTER),
        ("impl_", _POINTER),
        ("ResizeTensor", ctypes.CFUNCTYPE(_STATUS, _POINTER, _POINTER, _POINTER)),
        ("ReportError", ctypes.CFUNCTYPE(None, _POINTER, ctypes.c_char_p)),
        ("AddTensors", _POINTER),
        (
            "GetNodeAndRegistration",
            ctypes.CFUNCTYPE(
                _STATUS,
                _POINTER,
                ctypes.c_int,
                ctypes.POINTER(ctypes.POINTER(Node)),
                ctypes.POINTER(ctypes.POINTER(Registration)),
            ),
        ),
        (
            "ReplaceNodeSubsetsWithDelegateKernels",
            ctypes.CFUNCTYPE(_STATUS, _POINTER, Registration, _POINTER, _POINTER),
        ),
        ("recommended_num_threads", ctypes.c_int),
        ("GetExternalContext", _POINTER),
        ("SetExternalContext", _POINTER),
        ("allow_fp32_relax_to_fp16", ctypes.c_bool),
        ("profiler", _POINTER),
        ("AllocatePersistentBuffer", _POINTER),
        ("AllocateBufferForEval", _POINTER),
        ("RequestScratchBufferInArena", _POINTER),
        ("GetScratchBuffer", _POINTER),
        ("ResizeTensorExplicit", _POINTER),
        (
            "PreviewDelegatePartitioning",
            ctypes.CFUNCTYPE(
                _STATUS,
                _POINTER,
                _POINTER,
                ctypes.POINTER(ctypes.POINTER(DelegateParams)),
                _INTS,
            ),
        ),
        ("GetTensor", _POINTER),
        ("GetEvalTensor", _POINTER),
        ("GetModelMetadata", _POINTER),
        (
            "AcquireSubgraphContext",
            ctypes.CFUNCTYPE(_STATUS, _POINTER, ctypes.c_int, ctypes.POINTER(_POINTER)),
        ),
        ("ReleaseSubgraphContext", ctypes.CFUNCTYPE(_STATUS, _POINTER, ctypes.c_int)),
    )


PREPARE = ctypes.CFUNCTYPE(_STATUS, _POINTER, _POINTER)  # (context, delegate)
FREE_HANDLE = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _INTS)
# (context, delegate, buffer handle, tensor)
COPY_FROM_HANDLE = ctypes.CFUNCTYPE(_STATUS, _POINTER, _POINTER, ctypes.c_int, _POINTER)


class Delegate(ctypes.Structure):
    _fields_ = (
        ("data_", _POINTER),
        ("Prepare", PREPARE),
        ("CopyFromBufferHandle", COPY_FROM_HANDLE),
        ("CopyToBufferHandle", _POINTER),
        ("FreeBufferHandle", FREE_HANDLE),
        ("flags", ctypes.c_int64),
        ("opaque_delegate_builder", _POINTER),
    )


# Sizes by the headers on 64-bit Linux and macOS; a Windows context has two more members.
SIZES: dict[type[ctypes.Structure], int] = {
    Tensor: 112,
    Node: 80,
    Registration: 88,
    Context: 200,
    Delegate: 56,
}

# The oldest version of each package whose C API was compared with these structures.
_HOSTS = {"ai_edge_litert": (1, 4), "tensorflow": (2, 19)}
_TOO_OLD = "tflite_runtime"


def check_host() -> None:
    """Refuse interpreters whose structures may differ, before any of them is read."""
    if sys.platform == "win32" or any(ctypes.sizeof(cls) != n for cls, n in SIZES.items()):
        raise InterpreterError(
            "Python delegates run in stock interpreters on 64-bit Linux and macOS, not on "
            f"{sys.platform} with {8 * ctypes.sizeof(_POINTER)} bits; use jaxdelegate.Interpreter"
        )
    if _TOO_OLD in sys.modules:
        raise InterpreterError(
            f"{_TOO_OLD} is built for numpy 1 and cannot share a process with jax; use the "
            "Interpreter of its successor ai_edge_litert >= 1.4, or jaxdelegate's"
        )
    for package, oldest in _HOSTS.items():
        version = host_version(package) if package in sys.modules else None
        if version is not None and tuple(map(int, version.split(".")[:2])) < oldest:
            raise InterpreterError(
                f"{package} {version} is too old for Python delegates: use "
                f"{oldest[0]}.{oldest[1]} or newer, or jaxdelegate.Interpreter"
            )


def host_version(package: str) -> str:
    version = getattr(sys.modules[package], "__version__", None)
    return version or importlib.metadata.version(package.replace("_", "-"))


def elements(address: int | None, ctype: type = ctypes.c_int) -> list:
    """The elements of a TfLiteIntArray or TfLiteFloatArray; empty for a null pointer."""
    if not address:
        return []
    size = Array.from_address(address).size
    return list((ctype * size).from_address(address + ctypes.sizeof(Array)))


def int_array(values: Iterable[int]) -> ctypes.Array:
    """A TfLiteIntArray for calls that only read it."""
    listed = list(values)
    return (ctypes.c_int * (1 + len(listed)))(len(listed), *listed)


def allocated_int_array(values: Iterable[int]) -> int:
    """The address of a new TfLiteIntArray that the interpreter will own and free."""
    array = int_array(values)
    address = _libc().malloc(ctypes.sizeof(array))
    if not address:
        raise MemoryError("malloc of a TfLiteIntArray")
    ctypes.memmove(address, array, ctypes.sizeof(array))
    return int(address)


@functools.cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    return library
