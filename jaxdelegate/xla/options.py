"""Compiler options for XLA, by platform, processor and threads."""

import os
import re
from collections.abc import Mapping

from jaxdelegate.kernels.processor import cpu_features, is_single_threaded

Options = Mapping[str, int | float | str]

# Operations for the library: sums along axes, matrix products; else also convolutions.
_SUMS, _MATRICES = "LIBRARY_FUSION_TYPE_REDUCE", "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"

_GPU: Options = {
    # Operations in CUDA graphs: XLA's own list, and cuDNN's convolutions.
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONVOLUTION"
    ),
    # Matrix products are not split into partial sums, which go through memory in float32.
    "xla_gpu_experimental_force_split_k": 1,
}

_GPU_WITH_LOOPS: Options = {
    "xla_gpu_enable_command_buffer": f"{_GPU['xla_gpu_enable_command_buffer']},WHILE,CONDITIONAL",
    "xla_gpu_graph_min_graph_size": 1,  # what a condition or a branch launches, too
}

_TPU_IN_PLACE: Options = {
    # An array that is copied to the core's memory, read there and copied back is used for half of
    # the bytes copied, which is enough by default (0.5). If all must be used, an array that a
    # program updates in place stays where it is, and is read once.
    "xla_tpu_msa_inefficient_use_to_copy_ratio": 1.0,
}

# By JAX's names of platforms: the plugins of one may have several.
_PLATFORMS = {"cuda": "gpu", "rocm": "gpu"}


def platform_of(name: str) -> str:
    return _PLATFORMS.get(name, name)


def compiler_options(
    platform: str,
    *,
    exact: bool,
    in_place: bool = False,
    is_direct: bool = False,
    has_loop_graphs: bool = False,
) -> Options:
    """Options by the names of XLA's flags, without those that the user sets in XLA_FLAGS.

    A version of XLA may not know all of them. docs/design/gpu.md explains those for a GPU.

    Args:
        platform: "cpu", "gpu" or "tpu".
        exact: whether all products of the program have float32 factors.
        in_place: whether the program updates arrays in place.
        is_direct: whether direct calls can run it (jaxdelegate/thunks).
        has_loop_graphs: whether a GPU's graphs take in loops and branches.
    """
    by_platform = {
        "cpu": _cpu_options(exact=exact, is_direct=is_direct),
        "gpu": {**_GPU, **(_GPU_WITH_LOOPS if has_loop_graphs else {})},
        "tpu": _TPU_IN_PLACE if in_place else {},
    }
    options = by_platform.get(platform, {})
    said = re.findall(r"--(\w+)", os.environ.get("XLA_FLAGS", ""))
    return {name: value for name, value in options.items() if name not in said}


def _cpu_options(*, exact: bool, is_direct: bool) -> Options:
    """The options for XLA:CPU.

    Vectors of 512 bits gain some percent on a processor that has them. The library that
    XLA:CPU leaves products to (YNN) is slower than its own kernels for float32 on one thread,
    mostly; on several threads it is the faster one, and the only fast one for matrices of int8 and
    bfloat16. Direct calls cannot run it.
    """
    options: dict[str, int | str] = {}
    if "avx512f" in cpu_features():
        options["xla_cpu_prefer_vector_width"] = 512
    if is_direct:
        options["xla_cpu_experimental_ynn_fusion_type"] = ""
    elif is_single_threaded():
        left = _SUMS if exact else f"{_SUMS},{_MATRICES}"
        options["xla_cpu_experimental_ynn_fusion_type"] = left
    return options
