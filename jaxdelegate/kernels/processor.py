"""The host's processor, as the compiler and the keys of stored programs want to know it."""

import functools
import os

from jaxdelegate.errors import OptionError

# The environment variable that keeps this package from newer instruction sets than the one it
# names, as ONEDNN_MAX_CPU_ISA does. XLA has its own: XLA_FLAGS=--xla_cpu_max_isa=AVX2.
MAX_CPU_ISA = "JAXDELEGATE_MAX_CPU_ISA"

# What it can say, the oldest first, and what each has that those before it have not, by the names
# of /proc/cpuinfo. These are the sets that the native kernels are written for (kernels/).
_FEATURES = {
    "none": (),
    "avx2": ("avx2", "fma"),
    "avxvnni": ("avx_vnni",),
    "avx512f": ("avx512f",),
    "avx512vnni": ("avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    "avx512bf16": ("avx512_bf16",),
}
INSTRUCTION_SETS = tuple(_FEATURES)
_BEHIND_ALL = ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "avx512_fp16", "avx10_1")


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
    """The newest instruction set that JAXDELEGATE_MAX_CPU_ISA allows; None: it is not set.

    Raises:
        OptionError: the variable says something else than a name of INSTRUCTION_SETS.
    """
    name = os.environ.get(MAX_CPU_ISA)
    if name and name not in INSTRUCTION_SETS:
        raise OptionError(f"{MAX_CPU_ISA}: want one of {', '.join(INSTRUCTION_SETS)}, got {name!r}")
    return name or None


@functools.cache
def cpu_features() -> frozenset[str]:
    """The words that name the processor's instruction sets, such as avx512f.

    Raises:
        OptionError: as `max_cpu_isa`, whose limit they keep.
    """
    return allowed_features(frozenset(" ".join(host_cpu()).split()), max_cpu_isa())


def allowed_features(features: frozenset[str], limit: str | None) -> frozenset[str]:
    """Those of them that a limit leaves; None: all."""
    if limit is None:
        return features
    newer = INSTRUCTION_SETS[INSTRUCTION_SETS.index(limit) + 1 :]
    return features.difference(_BEHIND_ALL, *(_FEATURES[name] for name in newer))


def core_count() -> int:
    """How many cores this process may use; where the system does not tell, how many there are."""
    # Not os.process_cpu_count: XLA counts as sched_getaffinity does, whatever Python is told.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def threads() -> list[str | int | None]:
    """What XLA:CPU makes of its pool: the environment's word, and how many cores there are."""
    return [os.environ.get("NPROC"), core_count()]


@functools.cache
def is_single_threaded() -> bool:
    """Whether XLA:CPU has one thread; it makes its pool once in a process."""
    asked, cores = threads()
    return (asked or str(cores)) == "1"
