"""The host's processor, as the compiler and the keys of stored programs want to know it."""

import functools
import os
import platform


@functools.cache
def host_cpu() -> list[str]:
    """The host's architecture, processor and instruction sets."""
    known = {"vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part"}
    lines = [platform.machine(), platform.system()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():  # the first processor's block ends here
                    break
                name, _, value = line.partition(":")
                if name.strip() in known:
                    lines.append(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    except OSError:
        lines.append(platform.processor())
    return lines


@functools.cache
def cpu_features() -> frozenset[str]:
    """The words that name the processor's instruction sets, such as avx512f."""
    return frozenset(" ".join(host_cpu()).split())


def threads() -> list[str | int | None]:
    """What XLA:CPU makes of its pool: the environment's word, and how many cores there are."""
    return [os.environ.get("NPROC"), len(os.sched_getaffinity(0))]


@functools.cache
def is_single_threaded() -> bool:
    """Whether XLA:CPU has one thread; it makes its pool once in a process."""
    asked, cores = threads()
    return (asked or str(cores)) == "1"
