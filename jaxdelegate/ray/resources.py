"""The device and the CPU threads that Ray assigned to this process."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import use_threads

# JAX preallocates three quarters of a GPU's memory; for a fraction of a GPU, that fraction of it.
_MEMORY_SHARE = 0.75
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_REQUESTS = {"gpu": "num_gpus=1", "tpu": 'resources={"TPU": 1}'}


@dataclasses.dataclass(frozen=True)
class Resources:
    cpus: float = 0.0  # 0: Ray did not count them
    gpus: float = 0.0  # a fraction of one that is shared with others
    tpus: float = 0.0  # chips

    @property
    def platform(self) -> str:
        return "gpu" if self.gpus else "tpu" if self.tpus else "cpu"

    @property
    def threads(self) -> int | None:
        """How many threads XLA's CPU client may have; None: its default."""
        return max(1, int(self.cpus)) if self.cpus and self.platform == "cpu" else None


def running_ray() -> Any | None:
    """Ray if this process has joined a cluster; never imports it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def assigned_resources() -> Resources | None:
    """The resources of this process; None: it is neither an actor nor a task."""
    ray = running_ray()
    if ray is None:
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None  # the driver may use the whole machine
    assigned = context.get_assigned_resources()
    return Resources(*(float(assigned.get(name, 0.0)) for name in ("CPU", "GPU", "TPU")))


def restrict(
    resources: Resources | None,
    options: Mapping[str, Any] | DelegateOptions,
    num_threads: int | None,
) -> DelegateOptions:
    """Restrict this process to its resources: threads and memory before jax starts, and platform.

    Threads of None are one for each assigned CPU. Returns the options, with the platform.
    """
    known = DelegateOptions.of(options)
    threads = resources.threads if num_threads is None and resources is not None else num_threads
    if threads is not None:
        use_threads(threads)
    if resources is None:
        return known
    devices = max(resources.gpus, resources.tpus)
    if devices > 1:
        raise OptionError(
            f"Ray assigned {devices:g} devices to this actor, and a Predictor uses one: set "
            "num_gpus=1 and start as many actors as there are devices"
        )
    if known.platform not in (None, resources.platform):
        request = _REQUESTS.get(str(known.platform))
        raise OptionError(
            f"platform: {known.platform!r} is requested, but Ray assigned "
            f"{'only CPUs' if resources.platform == 'cpu' else f'a {resources.platform}'} to this "
            f"actor{f'; request it from Ray: map_batches(..., {request})' if request else ''}"
        )
    if 0 < resources.gpus < 1 and "jax" not in sys.modules:
        os.environ.setdefault(_MEMORY, f"{_MEMORY_SHARE * resources.gpus:.3f}")
    return DelegateOptions.of(known, platform=resources.platform)
