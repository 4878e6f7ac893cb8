"""The device that a delegate's options mean, and how programs get there."""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

from jaxdelegate.pjrt import client, jax_settings, platforms
from jaxdelegate.pjrt.client import Runtime
from jaxdelegate.whole_imports import whole_imports
from jaxdelegate.xla.options import platform_of

_LOGGER = logging.getLogger("jaxdelegate")

_AMPERE = 8.0  # compute capability


@functools.cache
def compilation_module() -> ModuleType:
    """The module that compiles; importing it imports jax."""
    jax_settings.import_jax()
    with whole_imports():
        from jaxdelegate.compile import compilation  # noqa: PLC0415 (stored programs do not need it)

    return compilation


class Target:
    """A device by its platform and index. Jax is imported unless it is certain to be the CPU.

    Attributes:
        can_do_without_jax: it is the CPU; jax need not be asked.
        platform: "cpu", "gpu" or "tpu".
    """

    def __init__(self, platform: str | None, index: int) -> None:
        self._asked = platform, index
        self.can_do_without_jax = index == 0 and platforms.is_cpu(platform)
        self.platform = platform_of("cpu" if self.can_do_without_jax else self.device.platform)

    @functools.cached_property
    def device(self) -> Any:
        return compilation_module().find_device(*self._asked)

    @property
    def key(self) -> Any:
        return ("cpu", 0) if self.can_do_without_jax else self.device

    @property
    def runs_triton(self) -> bool:
        """Whether XLA compiles Triton kernels for it: for NVIDIA GPUs since Ampere."""
        if self.platform != "gpu":
            return False
        try:  # AMD's are names, such as "gfx90a"
            return float(getattr(self.device, "compute_capability", "")) >= _AMPERE
        except ValueError:
            return False

    @property
    def runtime(self) -> Runtime:
        """Where programs run: without jax where possible, unless it is already imported."""
        if self.can_do_without_jax and not jax_settings.is_jax_imported():
            try:
                return client.without_jax()
            except client.LOAD_ERRORS as error:
                _LOGGER.debug("jaxlib cannot be used without jax: %s", error)
        return client.of_jax(self.device)

    @property
    def processors(self) -> int | None:
        """A GPU's multiprocessors; None: not known, or another platform."""
        return getattr(self.device, "core_count", None) if self.platform == "gpu" else None


class AbsentTarget(Target):
    """A platform that is not here, for which functions are exported; its device is a CPU."""

    def __init__(self, platform: str) -> None:
        self.can_do_without_jax = False
        self.platform = platform_of(platform)
        self.device = compilation_module().find_device("cpu", 0)
