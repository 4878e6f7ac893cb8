"""Several interpreters of one model, each with its JaxDelegate on another device."""

import os
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.providers import create_delegates, open_interpreter
from jaxdelegate.providers.parsing import FlagValues


def open_on_devices(
    values: FlagValues, model: str | os.PathLike[str] | bytes, count: int
) -> list[Any]:
    """An interpreter on each of the first devices of the platform that the flags choose.

    A count of 0 is all devices of this process. An OptionError if there are fewer, the flags do not
    request JaxDelegate, or `jax_device_index` names one device.
    """
    if values.is_set("jax_device_index"):
        raise OptionError(
            "num_devices takes the first devices of a platform, and jax_device_index="
            f"{values.jax_device_index} names one; give one of them"
        )
    from jaxdelegate.delegate.jax_delegate import JaxDelegate  # noqa: PLC0415 (for a count only)

    delegates = [row.delegate for row in create_delegates(values)]
    jax_delegates = [d for d in delegates if isinstance(d, JaxDelegate)]
    if not jax_delegates:
        raise OptionError(
            "num_devices is for JaxDelegate, which the flags do not request: omit it, or use "
            "--use_jax"
        )
    import jax  # noqa: PLC0415 (tools that find their program on disk do not need it)

    available = jax.local_devices(backend=jax_delegates[0].device.platform)
    if count > len(available):
        raise OptionError(_too_many(count, available))
    return [_open_on(values, model, index) for index in range(count or len(available))]


def _open_on(values: FlagValues, model: Any, index: int) -> Any:
    chosen = values.replaced(jax_device_index=index)
    return open_interpreter(chosen, model, [row.delegate for row in create_delegates(chosen)])


def _too_many(count: int, available: list[Any]) -> str:
    platform = available[0].platform
    remedy = (
        f". To have a CPU count as {count} devices set JAX_NUM_CPU_DEVICES={count}, or "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}, before the tool starts"
        if platform == "cpu"
        else ""
    )
    names = ", ".join(map(str, available))
    return f"num_devices: {count} requested, but {platform} has {len(available)}: {names}{remedy}"
