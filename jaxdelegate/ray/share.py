"""The device and the CPU threads that belong to this process, as Ray has shared them out."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import use_threads
from jaxdelegate.ray.errors import running_ray

# JAX takes three quarters of a GPU's memory; of a part of the GPU it takes that part of them.
_MEMORY_SHARE = 0.75
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclasses.dataclass(frozen=True)
class Share:
    """What an actor or a task was given.

    Attributes:
        cpus: how many CPUs; 0: Ray did not count them.
        gpus: how many GPUs; a part of one, if others use it, too.
        tpus: how many TPU chips.
    """

    cpus: float = 0.0
    gpus: float = 0.0
    tpus: float = 0.0

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> "Share":
        """From Ray's names of resources."""
        return cls(*(float(resources.get(name, 0.0)) for name in ("CPU", "GPU", "TPU")))

    @property
    def platform(self) -> str:
        """The only one that may be used."""
        return "gpu" if self.gpus else "tpu" if self.tpus else "cpu"

    @property
    def threads(self) -> int | None:
        """How many threads XLA's CPU client may have; None: what it takes by itself."""
        return max(1, int(self.cpus)) if self.cpus and self.platform == "cpu" else None


def own_share() -> Share | None:
    """This process's share; None: it is no actor and no task of Ray's."""
    ray = running_ray()
    if ray is None:
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:
        return None  # the driver may use the whole machine
    return Share.of(context.get_assigned_resources())


def settle(
    share: Share | None, options: Mapping[str, Any], num_threads: int | None
) -> DelegateOptions:
    """Keep this process to its share: threads and memory before jax starts, and the platform.

    Args:
        share: as `own_share`.
        options: JaxDelegate's.
        num_threads: of XLA's CPU client; None: the share's CPUs.

    Returns:
        The options, with the platform.

    Raises:
        OptionError: the options ask for a device that Ray did not give, or for impossible values.
    """
    known = DelegateOptions.of(options)
    if num_threads is not None or share is None:
        use_threads(-1 if num_threads is None else num_threads)
    if share is None:
        return known
    if num_threads is None and share.threads is not None:
        use_threads(share.threads)
    if max(share.gpus, share.tpus) > 1:
        raise OptionError(
            f"Ray gave this actor {max(share.gpus, share.tpus):g} devices, a Predictor uses one: "
            "want num_gpus=1 and as many actors as there are devices"
        )
    if known.platform not in (None, share.platform):
        remedy = "" if known.platform == "cpu" else f"; {_request(known.platform)}"
        raise OptionError(
            f"platform: {known.platform!r} is asked for, but Ray gave this actor "
            f"{'no device besides CPUs' if share.platform == 'cpu' else 'a ' + share.platform}"
            f"{remedy}"
        )
    if 0 < share.gpus < 1 and "jax" not in sys.modules:
        os.environ.setdefault(_MEMORY, f"{_MEMORY_SHARE * share.gpus:.3f}")
    return DelegateOptions.of(known, platform=share.platform)


def _request(platform: str | None) -> str:
    wanted = "num_gpus=1" if platform == "gpu" else 'resources={"TPU": 1}'
    return f"ask Ray for it: map_batches(..., {wanted})"
