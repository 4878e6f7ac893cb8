"""Describes the host's processor, for compiling and for the keys of stored programs."""

import functools
import os

from jaxdelegate.errors import OptionError

# The environment variable that limits this package to an instruction set and older ones, like
# ONEDNN_MAX_CPU_ISA. XLA has a separate one: XLA_FLAGS=--xla_cpu_max_isa=AVX2.
MAX_CPU_ISA = "JAXDELEGATE_MAX_CPU_ISA"

# Its values, oldest first, with the features that each adds to the previous ones, by their names in
# /proc/cpuinfo. The native kernels are written for these sets (kernels/).
_FEATURES = {
    "none": (),
    "avx2": ("avx2", "fma"),
    "avxvnni": ("avx_vnni",),
    "avx512f": ("avx512f",),
    "avx512vnni": ("avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    "avx512bf16": ("avx512_bf16",),
}
INSTRUCTION_SETS = tuple(_FEATURES)
_NEWER = ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx512_fp16", "avx10_1")


@functools.cache
def host_cpu() -> list[str]:
    """The host's architecture, processor and instruction sets."""
    known = {"vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part"}
    lines = [os.uname().machine, os.uname().sysname]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():  # the first processor's block ends here
                    break
                name, _, value = line.partition(":")
                if name.strip() in known:
                    lines.append(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    except OSError:
        lines.append(os.uname().version)
    return lines


def max_cpu_isa() -> str | None:
    """The newest that JAXDELEGATE_MAX_CPU_ISA allows; None: it is not set."""
    name = os.environ.get(MAX_CPU_ISA)
    if name and name not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS)
        raise OptionError(f"{MAX_CPU_ISA}: expected one of {known}, got {name!r}")
    return name or None


@functools.cache
def cpu_features() -> frozenset[str]:
    """The processor's features, such as avx512f, within the limit of `max_cpu_isa`."""
    return allowed_features(frozenset(" ".join(host_cpu()).split()), max_cpu_isa())


def allowed_features(features: frozenset[str], limit: str | None) -> frozenset[str]:
    """The features that are not newer than a limit; None: no limit."""
    if limit is None:
        return features
    newer = INSTRUCTION_SETS[INSTRUCTION_SETS.index(limit) + 1 :]
    return features.difference(_NEWER, *(_FEATURES[name] for name in newer))


def core_count() -> int:
    """The cores that this process may use, or all cores if that is unknown."""
    # Not os.process_cpu_count, which PYTHON_CPU_COUNT overrides: XLA uses sched_getaffinity.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def threads() -> list[str | int]:
    """What determines XLA:CPU's threads: their number, by NPROC or else the cores; the cores.

    Source: DefaultThreadPoolSize in xla/pjrt/utils.cc. Other text than a number stays as it is.
    """
    chosen, cores = os.environ.get("NPROC", ""), core_count()
    if not chosen:
        return [cores, cores]
    return [int(chosen) if chosen.isdecimal() else chosen, cores]


@functools.cache
def thread_count() -> int:
    """The number of XLA:CPU's threads, whose pool is created once per process."""
    chosen, cores = threads()
    return chosen if isinstance(chosen, int) else int(cores)


def is_single_threaded() -> bool:
    return thread_count() == 1
