"""Several interpreters of one model, each with its JaxDelegate on a device of its own."""

import os
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.providers import create_delegates, open_interpreter
from jaxdelegate.providers.parsing import FlagValues


def open_on_devices(
    values: FlagValues, model: str | os.PathLike[str] | bytes, count: int
) -> list[Any]:
    """An interpreter on each of the first devices of the platform that the flags ask for.

    Args:
        values: of all providers' flags.
        model: a path, or the file's content.
        count: of devices; 0: all that this process has.

    Raises:
        ModelError: the file is no model.
        OptionError: there are fewer devices, JaxDelegate is not asked for, or `jax_device_index`
            names one device.
    """
    if values.is_set("jax_device_index"):
        raise OptionError(
            "num_devices takes the first devices of a platform, and jax_device_index="
            f"{values.jax_device_index} names one; give one of them"
        )
    from jaxdelegate.delegate.jax_delegate import JaxDelegate  # noqa: PLC0415 (for a count only)

    own = [row.delegate for row in create_delegates(values)]
    jax_delegates = [d for d in own if isinstance(d, JaxDelegate)]
    if not jax_delegates:
        raise OptionError(
            "num_devices is for JaxDelegate, which the flags do not ask for: leave it out, or use "
            "--use_jax"
        )
    there = _devices_like(jax_delegates[0].device)
    if count > len(there):
        raise OptionError(_too_many(count, there))
    return [_open_on(values, model, index) for index in range(count or len(there))]


def _open_on(values: FlagValues, model: Any, index: int) -> Any:
    chosen = values.replaced(jax_device_index=index)
    return open_interpreter(chosen, model, [row.delegate for row in create_delegates(chosen)])


def _devices_like(device: Any) -> list[Any]:
    import jax  # noqa: PLC0415 (tools that find their program on disk do without)

    return list(jax.local_devices(backend=device.platform))


def _too_many(count: int, there: list[Any]) -> str:
    platform = there[0].platform
    remedy = (
        f". To have a CPU count as {count} devices set JAX_NUM_CPU_DEVICES={count}, or "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}, before the tool starts"
        if platform == "cpu"
        else ""
    )
    names = ", ".join(map(str, there))
    return f"num_devices: want {count}, and {platform} has {len(there)}: {names}{remedy}"
