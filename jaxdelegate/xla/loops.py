"""How a GPU runs the loops of programs: step by step, or in a CUDA graph. Does not import jax."""

import functools
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

from jaxdelegate.options import GpuLoops, gpu_loops
from jaxdelegate.xla.options import platform_of

_LOGGER = logging.getLogger("jaxdelegate")
_TRIAL = "jaxdelegate.xla.loop_trial"
_TRIAL_SECONDS = 300.0
_CUDA = (12, 3)  # graphs have loops from this version on

Version = tuple[int, ...]
# host: the host reads the condition before each step; graph: the device does, in a CUDA graph;
# unrolled: the host does, before several steps.
Form = Literal["host", "graph", "unrolled"]
# How many decode steps the loops of a program run at a time, one loop after the other.
STEPS: dict[Form, tuple[int, ...]] = {"host": (1,), "graph": (1,), "unrolled": (4, 1)}


def form_on(device: Any) -> Form:
    """How programs on a device run their loops; an OptionError if JAXDELEGATE_GPU_LOOPS is wrong.

    With "tried" another process tries a loop in a graph, once for this process.
    """
    wanted, platform = gpu_loops(), platform_of(device.platform)
    if wanted == "host" or platform != "gpu":
        return "host"
    cuda = cuda_version(device.client.platform_version)
    return loop_form(wanted, platform, cuda, _passes)


def loop_form(
    wanted: GpuLoops, platform: str, cuda: Version | None, passes: Callable[[], bool]
) -> Form:
    """How programs run their loops.

    Args:
        wanted: the switch.
        platform: "cpu", "gpu" or "tpu".
        cuda: the version that XLA was built for; None: it was built for another kind of GPU.
        passes: whether the trial passes; called only if CUDA allows graphs with loops.
    """
    if platform != "gpu" or wanted == "host":
        return "host"
    if wanted != "tried":
        return wanted
    return "graph" if cuda is not None and cuda >= _CUDA and passes() else "unrolled"


def cuda_version(platform_version: str) -> Version | None:
    """The version in a PJRT client's platform_version, as "cuda 12090"; None: not CUDA."""
    found = re.search(r"\bcuda (\d+)", platform_version)
    return None if found is None else (int(found[1]) // 1000, int(found[1]) % 1000 // 10)


@functools.cache
def _passes() -> bool:
    """Whether another process can run a loop in a graph: a failure may end the process."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", _TRIAL]
    try:
        tried = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRIAL_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _LOGGER.warning("no loops in CUDA graphs: the trial did not end: %s", error)
        return False
    if tried.returncode:
        said = tried.stderr.strip().splitlines()[-1:]
        _LOGGER.warning("no loops in CUDA graphs: exit status %d %s", tried.returncode, said)
    return tried.returncode == 0
